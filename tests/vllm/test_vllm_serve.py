"""``vllm serve`` with the plugin, as a user starts it, and what it answers over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from graphcache.vllm.models import write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POLICY = """
policy: dynamic-dual
ladder: {kind: explicit, sizes: [32, 64]}
backend: eager
store: null
"""
START_SECONDS = 300


def ask(url, **body):
    """Return what the server answers, as text; a body makes it a POST."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def wait_for(server, url):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, "the server ended while it started"
        try:
            return ask(f"{url}/health")
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    pytest.fail(f"no server after {START_SECONDS} s")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a server on a port of its own; yield its URL and its log; end it as an operator would."""
    folder = tmp_path_factory.mktemp("serve")
    model = write_model(folder / "model", hidden=64, layers=2)
    (folder / "policy.yaml").write_text(POLICY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GRAPHCACHE_", "VLLM_"))}
    environment = {
        **kept,
        "GRAPHCACHE_PLATFORM": "cpu",
        "GRAPHCACHE_POLICY": str(folder / "policy.yaml"),
        "VLLM_PLUGINS": "graphcache",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIG_ROOT": str(folder / "config"),
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
    }
    options = ["--runner", "pooling", "--convert", "embed", "--dtype", "float32", "--max-model-len", "64"]
    options += ["--max-num-batched-tokens", "64", "--max-num-seqs", "4", "--port", str(port)]
    options += ["--host", "127.0.0.1", "--kv-cache-memory-bytes", str(64 * 2**20), "--served-model-name", "m"]
    log = folder / "log"
    with log.open("w") as out:
        # `vllm serve` itself does not start from vLLM's CPU wheel, which is not called what it asks for.
        module = "vllm.entrypoints.openai.api_server"
        command = [sys.executable, "-m", module, "--model", str(model), *options]
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            wait_for(server, f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}", log
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                code = server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                code = server.wait()
            print(log.read_text()[-4000:])
    assert code == 0, "the server did not end cleanly"
    assert not list(folder.glob("graphcache-stats-*")), "the server left its snapshots behind"


def test_the_official_client_gets_embeddings(server):
    from openai import OpenAI

    url, _ = server
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="m", input=["one text", "another, longer text"])
    assert [len(item.embedding) for item in answer.data] == [64, 64]


def test_the_server_tells_what_its_cache_counts(server):
    url, _ = server
    ask(f"{url}/v1/embeddings", model="m", input="a text")
    stats = json.loads(ask(f"{url}/graphcache/stats"))
    assert stats["total"]["compiles"] == 4
    assert stats["total"]["hits"] >= 1
    command = [sys.executable, "-m", "graphcache", "stats", "--url", url, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(told)["total"]["total"]["compiles"] == 4


def test_the_metrics_are_in_vllms_own(server):
    url, log = server
    ask(f"{url}/v1/embeddings", model="m", input="a text")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lines = [
            line for line in ask(f"{url}/metrics").splitlines() if line.startswith("graphcache_hits_total")
        ]
        if sum(float(line.split()[-1]) for line in lines) >= 1:
            break
        time.sleep(0.5)
    else:
        pytest.fail("no hits in /metrics\n" + log.read_text()[-2000:])
    metrics = ask(f"{url}/metrics")
    assert 'graphcache_resident_graphs{kind="prefill",mode="custom"} 2.0' in metrics or (
        'graphcache_resident_graphs{mode="custom",kind="prefill"} 2.0' in metrics
    )
    assert "vllm:" in metrics
