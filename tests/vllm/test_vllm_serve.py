"""``vllm serve`` with the plugin: what the official client gets, and that nothing is left when it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI
from servers import SMALL, serving

from graphcache.store.disk import DiskStore
from graphcache.vllm.models import write_model

pytestmark = pytest.mark.timeout(600)

EMBEDDING_POLICY = """
policy: dynamic-dual
ladder: {kind: explicit, sizes: [32, 64]}
backend: eager
strict: true
"""
GENERATION_POLICY = f"""{EMBEDDING_POLICY}
ladders: {{decode: {{kind: explicit, sizes: [64]}}, rows: {{kind: explicit, sizes: [1, 4]}}}}
"""
QUESTION = [{"role": "user", "content": "why?"}]
PROMPTS = ["one", "a second prompt", "and a third one that is longer", "four", "user: why?\nassistant: "]
NEW_TOKENS = 16
GREEDY = {"model": "m", "temperature": 0.0, "max_tokens": NEW_TOKENS}
EXTRA = {"ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def stock(run_generation, model):
    """What stock vLLM generates from the prompts, in the order of `PROMPTS`."""
    engine = {"max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 64 * 2**20}
    job = {"model": str(model), "engine": engine, "new_tokens": NEW_TOKENS, "runs": [], "prompts": PROMPTS}
    return run_generation(job)["engine"]


@pytest.fixture(scope="module")
def generating(tmp_path_factory, model):
    """Serve completions; end as a service manager would."""
    folder = tmp_path_factory.mktemp("generating")
    with serving(folder, model, GENERATION_POLICY, *SMALL, end=signal.SIGTERM) as server:
        yield server
        counted = stats(server)["total"]
    assert kept(folder) == counted


@pytest.fixture(scope="module")
def embedding(tmp_path_factory, model):
    """Serve embeddings; end as Ctrl-C would."""
    options = ("--runner", "pooling", "--convert", "embed", *SMALL)
    folder = tmp_path_factory.mktemp("embedding")
    with serving(folder, model, EMBEDDING_POLICY, *options, end=signal.SIGINT) as server:
        yield server
        counted = stats(server)["total"]
    assert kept(folder) == counted


def stats(server):
    return json.loads(server.ask("/graphcache/stats"))


def kept(folder):
    """Return what the one run of a server counted, as its store tells once it has ended."""
    with DiskStore(folder / "store") as store:
        (run,) = store.ledger.runs().values()
    return run["total"]


@pytest.fixture
def client(generating):
    with OpenAI(base_url=f"{generating.url}/v1", api_key="none") as client:
        yield client


def test_completions_equal_stock_vllms(client, stock):
    answer = client.completions.create(**GREEDY, prompt=PROMPTS, extra_body=EXTRA)
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    assert [choice.token_ids for choice in choices] == stock["tokens"][: len(PROMPTS)]
    assert [choice.text for choice in choices] == stock["texts"][: len(PROMPTS)]
    assert len(set(stock["texts"][: len(PROMPTS)])) == len(PROMPTS)


def test_a_streamed_completion_is_the_same(client, stock):
    with client.completions.create(**GREEDY, prompt=PROMPTS[2], extra_body=EXTRA, stream=True) as stream:
        chunks = [choice for chunk in stream for choice in chunk.choices]
    assert len(chunks) > 1
    assert "".join(chunk.text for chunk in chunks) == stock["texts"][2]
    assert [token for chunk in chunks for token in chunk.token_ids or ()] == stock["tokens"][2]


def test_a_chat_equals_stock_vllms(client, stock):
    answer = client.chat.completions.create(**GREEDY, messages=QUESTION, extra_body=EXTRA)
    assert answer.choices[0].message.content == stock["texts"][PROMPTS.index("user: why?\nassistant: ")]


def test_a_streamed_chat_is_the_same(client, stock):
    with client.chat.completions.create(**GREEDY, messages=QUESTION, extra_body=EXTRA, stream=True) as stream:
        parts = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert len(parts) > 1
    assert "".join(parts) == stock["texts"][PROMPTS.index("user: why?\nassistant: ")]


def test_what_was_generated_came_out_of_the_cache(client, generating):
    client.completions.create(**GREEDY, prompt=PROMPTS, extra_body=EXTRA)
    counted = stats(generating)
    hits = {key.rsplit("/", 1)[0] for key, counters in counted["keys"].items() if counters["hits"]}
    assert hits >= {"prefill/custom", "decode/prefix"}
    assert counted["errors"] == {}
    assert generating.wait_for("graphcache_hits_total", 1) <= counted["total"]["hits"]


def test_the_log_tells_what_was_warmed(generating):
    log = generating.log.read_text()
    assert "warming prefill/causal/1x64, " in log
    assert "graphcache is warm after " in log


@pytest.mark.slow
def test_the_official_client_gets_embeddings(embedding):
    with OpenAI(base_url=f"{embedding.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="m", input=["one text", "another, longer text"])
    assert [len(item.embedding) for item in answer.data] == [64, 64]


@pytest.mark.slow
def test_the_server_tells_what_its_cache_counts(embedding):
    embedding.ask("/v1/embeddings", model="m", input="a text")
    counted = stats(embedding)["total"]
    assert counted["compiles"] == 4
    assert counted["hits"] >= 1
    command = [sys.executable, "-m", "graphcache", "stats", "--url", embedding.url, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(told)["total"]["total"]["compiles"] == 4


@pytest.mark.slow
def test_the_metrics_are_in_vllms_own(embedding):
    embedding.ask("/v1/embeddings", model="m", input="a text")
    embedding.wait_for("graphcache_hits_total", 1)
    assert embedding.metrics("graphcache_resident_graphs") == [2.0, 2.0]
    assert embedding.metrics("graphcache_compiles_total") == [2.0, 2.0]
    assert "vllm:" in embedding.ask("/metrics")


@pytest.mark.slow
def test_the_log_tells_what_was_changed(embedding):
    assert "graphcache runs each prompt whole: " in embedding.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("api_servers", [1, 2])
def test_two_engines_are_counted_once_each(tmp_path, model, api_servers):
    options = ("--data-parallel-size", "2", "--api-server-count", str(api_servers))
    with (
        serving(tmp_path, model, GENERATION_POLICY, *SMALL, *options) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        ThreadPoolExecutor(8) as together,
    ):
        assert server.metrics("graphcache_compiles_total") == [4.0, 4.0, 4.0, 4.0]
        for answer in [
            together.submit(client.completions.create, **GREEDY, prompt=PROMPTS) for _ in range(8)
        ]:
            answer.result()
        counted = stats(server)
        each = [rank["steps"] for rank in counted["ranks"]]
        assert len(each) == 2
        assert min(each) > 0
        assert sum(each) == counted["steps"] == server.wait_for("graphcache_steps_total", sum(each))
        assert server.metrics("graphcache_resident_graphs") == [4.0, 4.0, 4.0, 4.0]
        assert sum(server.metrics("graphcache_hits_total")) == counted["total"]["hits"]
    with DiskStore(tmp_path / "store") as store:
        assert sorted(run["steps"] for run in store.ledger.runs().values()) == sorted(each)
