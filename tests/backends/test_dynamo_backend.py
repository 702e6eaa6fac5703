"""Any compiler of ``torch.compile`` behind the cache, by name or as a function."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_model import CAUSAL, CUSTOM, TinyProgram, same

from graphcache.backends.dynamo import DynamoBackend, find_compiler
from graphcache.backends.protocol import Artifact, EvictUnit
from graphcache.backends.watch import SAME_INPUTS, Watch, describe, difference
from graphcache.cache import GraphCache, OnMiss
from graphcache.compile.inline import InlineSupplier
from graphcache.contract import RULES, Verdict, check, subject
from graphcache.errors import CompileError, ConfigError, FrozenError, LoadError
from graphcache.key import GraphKey
from graphcache.ladder import Ladder
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Ladders
from graphcache.stats import Stats


class Counting:
    """A compiler that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0
        self.options: dict[str, Any] = {}
        self.made: list[weakref.ref[Any]] = []

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        self.options = options

        class Run:
            def __call__(self, *tensors: Any) -> Any:
                return graph(*tensors)

        run = Run()
        self.made.append(weakref.ref(run))
        return run


@pytest.fixture
def compiler() -> Counting:
    return Counting()


@pytest.fixture
def backend(program: TinyProgram, compiler: Counting) -> DynamoBackend:
    return DynamoBackend(program, compiler=compiler)


@pytest.fixture
def cache(backend: DynamoBackend) -> Iterator[GraphCache]:
    stats = Stats(strict=True)
    cache = GraphCache(
        DynamicDual(Ladders(Ladder((16, 32)))), InlineSupplier(backend, stats=stats), stats=stats
    )
    backend.watch(cache)
    yield cache
    cache.close()


def test_it_keeps_the_rules_of_every_backend() -> None:
    results = list(check(subject(lambda: DynamoBackend(TinyProgram(), compiler="eager"))))
    assert [result for result in results if result.verdict is Verdict.FAIL] == []
    assert len(results) == len(RULES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("default::DeprecationWarning")  # what importing Inductor says
def test_with_inductor_it_keeps_the_rules_that_are_about_bytes() -> None:
    texts = [text for text in RULES if "artifact" in text or "bytes" in text or "another instance" in text]
    results = list(check(subject(lambda: DynamoBackend(TinyProgram()), [CAUSAL]), texts))
    assert [(result.rule, result.detail) for result in results if result.verdict is not Verdict.PASS] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("default::DeprecationWarning")  # what importing Inductor says
def test_inductor_s_artifacts_spare_another_instance_the_compile(program: TinyProgram) -> None:
    from torch._dynamo.utils import counters

    payload = DynamoBackend(program).compile(CAUSAL).payload
    missed = counters["inductor"]["fxgraph_cache_miss"]
    graph = DynamoBackend(program).load(CAUSAL, Artifact(payload=payload))
    assert counters["inductor"]["fxgraph_cache_miss"] == missed
    assert same(graph(*program.inputs(CAUSAL)), program.model(*program.inputs(CAUSAL)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("default::DeprecationWarning")  # what importing Inductor says
def test_artifacts_of_another_key_are_refused_because_something_was_compiled(program: TinyProgram) -> None:
    backend = DynamoBackend(program)
    payload = backend.compile(GraphKey(1, 8)).payload
    with pytest.raises(LoadError, match=r"prefill/causal/1x9.*anew"):
        DynamoBackend(program).load(GraphKey(1, 9), Artifact(payload=payload))


def test_a_graph_is_compiled_whole_once_and_called_often(
    backend: DynamoBackend, compiler: Counting, program: TinyProgram
) -> None:
    for key in (CAUSAL, CUSTOM):
        graph = backend.load(key, backend.compile(key))
        for seed in range(3):
            ours, theirs = program.inputs(key, seed=seed), program.inputs(key, seed=seed)
            assert same(graph(*ours), program.model(*theirs))
    assert compiler.graphs == 2


def test_more_graphs_than_dynamo_s_limit_are_compiled_and_none_falls_to_eager(
    backend: DynamoBackend, compiler: Counting, program: TinyProgram
) -> None:
    keys = [GraphKey(1, length) for length in range(2, 2 * torch._dynamo.config.recompile_limit)]
    graphs = [backend.load(key, backend.compile(key)) for key in keys]
    assert compiler.graphs == len(keys)
    for key, graph in zip(keys, graphs, strict=True):
        graph(*program.inputs(key))
    assert compiler.graphs == len(keys)


def test_a_graph_that_hits_dynamo_s_limit_is_an_error(backend: DynamoBackend, program: TinyProgram) -> None:
    graph = backend.load(CAUSAL, backend.compile(CAUSAL))
    with torch._dynamo.config.patch(recompile_limit=2):
        graph(*program.inputs(GraphKey(1, 2)))
        with pytest.raises(CompileError, match=r"prefill/causal/1x32.*recompile_limit of 2"):
            graph(*program.inputs(GraphKey(1, 3)))


def test_a_module_that_is_not_one_graph_is_an_error(program: TinyProgram, compiler: Counting) -> None:
    class Broken(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return inputs[0] + 1

    program.model = Broken()  # type: ignore[assignment]
    with pytest.raises(CompileError, match="prefill/causal/1x32"):
        InlineSupplier(DynamoBackend(program, compiler=compiler)).fetch(CAUSAL)
    assert compiler.graphs == 0


def test_what_the_compiler_raises_is_raised(program: TinyProgram) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("out of device memory")

    with pytest.raises(RuntimeError, match="out of device memory"):
        DynamoBackend(program, compiler=fails).compile(CAUSAL)


def test_a_hidden_recompile_is_counted_and_named(
    backend: DynamoBackend, cache: GraphCache, compiler: Counting, program: TinyProgram
) -> None:
    cache.bring(CAUSAL)
    cache.resident[CAUSAL](*program.inputs(GraphKey(1, 30)))
    assert cache.stats.of(CAUSAL).compiles == compiler.graphs == 2
    (event,) = [event for event in cache.stats.events if event.kind == "recompile"]
    assert event.key == str(CAUSAL)
    assert event.reason == "input 0: int64[1, 32] -> int64[1, 30]; input 2: int64[32] -> int64[30]"


def test_nothing_compiles_once_frozen(cache: GraphCache, compiler: Counting, program: TinyProgram) -> None:
    cache.bring(CAUSAL)
    cache.freeze(OnMiss.RAISE)
    graph = cache.resident[CAUSAL]
    with pytest.raises(FrozenError, match=r"prefill/causal/1x32.*\[1, 32\] -> int64\[1, 31\]"):
        graph(*program.inputs(GraphKey(1, 31)))
    graph(*program.inputs(CAUSAL))
    assert compiler.graphs == 1


def test_a_frozen_graph_whose_code_changed_is_stopped_before_it_compiles(
    cache: GraphCache, compiler: Counting, program: TinyProgram
) -> None:
    class Switched(torch.nn.Module):
        on = False

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return inputs[1].cos() if self.on else inputs[1].exp()

    program.model = model = Switched()  # type: ignore[assignment]
    cache.bring(CAUSAL)
    cache.freeze(OnMiss.RAISE)
    model.on = True
    with pytest.raises(FrozenError, match=r"prefill/causal/1x32.*the inputs are the same"):
        cache.resident[CAUSAL](*program.inputs(CAUSAL))
    assert compiler.graphs == 1


def test_a_graph_let_go_is_freed(backend: DynamoBackend, cache: GraphCache, compiler: Counting) -> None:
    assert backend.evict_unit is EvictUnit.ENTRY
    for key in (CAUSAL, CUSTOM):
        cache.bring(key)
    cache._roster.evict(CAUSAL, "for the test")
    gc.collect()
    assert [made() is None for made in compiler.made] == [True, False]


def test_options_reach_the_compiler_and_change_the_fingerprint(
    program: TinyProgram, compiler: Counting
) -> None:
    backend = DynamoBackend(program, compiler=compiler, options={"level": 2})
    backend.compile(CAUSAL)
    assert compiler.options == {"level": 2}
    plain = DynamoBackend(program, compiler=compiler).fingerprint()
    assert backend.fingerprint() != plain
    assert DynamoBackend(program, compiler="eager").fingerprint() != plain
    assert DynamoBackend(program, compiler=compiler, drop=print, nbytes=lambda key: 1).fingerprint() == plain


def test_what_holds_more_than_a_callable_is_declared_and_dropped(
    program: TinyProgram, compiler: Counting
) -> None:
    dropped: list[GraphKey] = []
    backend = DynamoBackend(
        program, compiler=compiler, drop=dropped.append, evict_unit="never", nbytes=lambda key: key.tokens
    )
    graph = backend.load(CAUSAL, backend.compile(CAUSAL))
    graph.close()
    assert (backend.evict_unit, graph.nbytes, dropped) == (EvictUnit.NEVER, 32, [CAUSAL])


def test_an_unknown_compiler_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ConfigError, match=r"'no-such'.*inductor"):
        find_compiler("no-such")


def test_a_difference_names_what_is_missing_and_what_is_no_tensor() -> None:
    assert difference(["a"], ["a"]) == SAME_INPUTS
    assert difference(["a", "b"], ["a"]) == "input 1: b -> nothing"
    assert difference(["a"], ["c", "b"]) == "input 0: a -> c; input 1: nothing -> b"
    assert describe(None) == "None"


def test_a_watch_without_a_cache_forbids_nothing_and_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    watch.report(CAUSAL, "why", 0.0)
    assert not watch.frozen
    assert "prefill/causal/1x32 was compiled again (0.00 s): why" in caplog.text
