"""Runs are kept with their policy, and add up."""

import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.errors import ConfigError, GraphCacheError
from graphcache.key import GraphKey
from graphcache.runs import STATS_PATH, RunLog, ask_server, hit_ratio, summarise
from graphcache.stats import Stats, merge
from graphcache.store.ledger import Ledger, MemoryTable


def stats(hits=0, stalls=0, fallbacks=0, steps=0, key="prefill/causal/1x128"):
    counted = Stats()
    counted.steps = steps
    counters = counted.of(GraphKey.parse(key))
    counters.hits, counters.stalls, counters.fallbacks = hits, stalls, fallbacks
    counted.event("stall", GraphKey.parse(key))
    return counted


def test_a_run_is_kept_in_place_of_what_it_was_before():
    ledger, counted, now = Ledger(MemoryTable()), stats(hits=1), iter([10.0, 11.0, 12.0])
    log = RunLog(ledger, counted, "dynamic-dual", clock=lambda: next(now))
    log.flush()
    counted.of(GraphKey(1, 128)).hits = 5
    log.flush()
    (run_id, kept), *others = ledger.runs().items()
    assert (run_id, others) == (log.run_id, [])
    assert (kept["policy"], kept["started"], kept["updated"]) == ("dynamic-dual", 10.0, 12.0)
    assert kept["total"]["hits"] == 5
    assert "events" not in kept


def test_two_caches_are_two_runs():
    ledger = Ledger(MemoryTable())
    for policy in ("static-mask", "dynamic-dual"):
        RunLog(ledger, stats(hits=1), policy).flush()
    assert [run["policy"] for run in ledger.runs().values()] == ["static-mask", "dynamic-dual"]


counts = st.integers(0, 100)


@given(st.lists(st.tuples(st.sampled_from("ab"), counts, counts, counts, counts)))
def test_runs_add_up_in_all_and_per_policy(rows):
    runs = {
        str(index): {**stats(hits, stalls, fallbacks, steps).snapshot(), "policy": policy}
        for index, (policy, hits, stalls, fallbacks, steps) in enumerate(rows)
    }
    summary = summarise(runs)
    assert summary["total"]["total"]["hits"] == sum(row[1] for row in rows)
    assert summary["total"]["steps"] == sum(row[4] for row in rows)
    assert summary["policies"].keys() == {row[0] for row in rows}
    for policy, merged in summary["policies"].items():
        assert merged["total"]["stalls"] == sum(row[2] for row in rows if row[0] == policy)
        assert merged["hit_ratio"] == hit_ratio(merged["total"])
    assert [head["id"] for head in summary["runs"]] == list(runs)
    json.dumps(summary)


def test_the_hit_ratio_counts_each_wanted_graph_once():
    total = stats(hits=6, stalls=1, fallbacks=3).snapshot()["total"]
    assert hit_ratio(total) == pytest.approx(0.6)
    assert hit_ratio(stats().snapshot()["total"]) is None


@pytest.mark.parametrize(
    "damaged",
    [{}, {"keys": 3}, {"keys": {"k": {"hits": 1, "of-a-newer-version": 2}}, "errors": {}, "steps": 1}],
)
def test_a_run_that_can_not_be_read_is_left_out_and_counted(damaged):
    summary = summarise({"good": stats(hits=2).snapshot(), "bad": damaged})
    assert summary["unreadable"] == 1
    assert [head["id"] for head in summary["runs"]] == ["good"]
    assert summary["total"]["total"]["hits"] == 2


def test_a_run_without_a_policy_is_told_as_such():
    assert summarise({"r": stats(hits=1).snapshot()})["policies"].keys() == {"unknown"}


class Answer(BaseHTTPRequestHandler):
    """A server that answers one path with what the test says."""

    body = b"{}"
    code = 200

    def do_GET(self):
        self.send_response(self.code if self.path == STATS_PATH else 404)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_running_server_tells_what_it_counts(server, monkeypatch):
    stats = Stats()
    stats.of(GraphKey(1, 16)).hits = 3
    body = {**merge([stats.snapshot()]), "hit_ratio": 1.0, "ranks": []}
    monkeypatch.setattr(Answer, "body", json.dumps(body).encode())
    summary = ask_server(server + "/")
    assert summary["policies"][server + "/"]["total"]["hits"] == 3


@pytest.mark.parametrize("body", [b"not json", b"{}", b"[]"])
def test_a_server_that_tells_something_else_is_named(server, monkeypatch, body):
    monkeypatch.setattr(Answer, "body", body)
    with pytest.raises(GraphCacheError, match=rf"{server} tells something else at /graphcache/stats"):
        ask_server(server)


@pytest.mark.parametrize(("code", "body"), [(404, b""), (503, b"no graph cache")])
def test_a_server_that_does_not_tell_says_why_and_the_remedy(server, monkeypatch, code, body):
    monkeypatch.setattr(Answer, "body", body)
    monkeypatch.setattr(Answer, "code", code)
    reason = f"answers {code} at /graphcache/stats: {body.decode() or 'Not Found'}; .* VLLM_PLUGINS names"
    with pytest.raises(GraphCacheError, match=reason):
        ask_server(server)


def test_a_server_that_is_not_there(server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(GraphCacheError, match=rf"no server answers at {url}: .*[Rr]efused"):
            ask_server(url)


def test_what_does_not_speak_http_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def talk():
            with listening.accept()[0] as connection:
                connection.sendall(b"220 some other protocol\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(GraphCacheError, match=rf"{url} tells something else|no server answers at {url}"):
            ask_server(url)
        thread.join()


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "localhost:8000", "http://", "http://localhost:port", "http://[::1", "http://a b"],
)
def test_nothing_but_a_server_is_asked(url):
    with pytest.raises(ConfigError, match=f"url: {re.escape(repr(url))} is not allowed"):
        ask_server(url)
