"""The backend on torch-xla's real runtime: what is compiled is counted, named, forbidden, and kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is not installed; `make test-xla` runs these tests")

import torch
from small_program import CAUSAL, CUSTOM, HIDDEN, SmallProgram

from graphcache.backends.protocol import Artifact, EvictUnit
from graphcache.backends.xla import XlaBackend, compiles, describe_sharded
from graphcache.batch import Batch
from graphcache.cache import GraphCache, OnMiss
from graphcache.compile.inline import InlineSupplier
from graphcache.contract import RULES, Verdict, check, subject
from graphcache.errors import CompileError, ConfigError, FrozenError, LoadError
from graphcache.key import GraphKey
from graphcache.ladder import Ladder
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders
from graphcache.stats import Stats
from graphcache.step import Outcome

COMPILERS = ["openxla", None]


def cache_of(backend: XlaBackend, graphs: int | None = None) -> GraphCache:
    stats = Stats(strict=True)
    policy = DynamicDual(Ladders(Ladder((32, 64))))
    supplier = InlineSupplier(backend, stats=stats)
    cache = GraphCache(policy, supplier, budget=Budget(graphs), evict_unit=backend.evict_unit, stats=stats)
    backend.watch(cache)
    return cache


@pytest.fixture(params=COMPILERS, ids=str)
def backend(request: pytest.FixtureRequest) -> XlaBackend:
    return XlaBackend(SmallProgram(), compiler=request.param)


UNUSED = itertools.count(101)
"""Lengths that no other test has compiled: torch-xla keeps graphs for as long as the process lives."""


@pytest.fixture
def other() -> GraphKey:
    return GraphKey(1, next(UNUSED))


@pytest.mark.parametrize("compiler", COMPILERS, ids=str)
def test_it_keeps_the_rules_of_every_backend(compiler: str | None) -> None:
    results = list(check(subject(lambda: XlaBackend(SmallProgram(), compiler=compiler))))
    assert [result for result in results if result.verdict is Verdict.FAIL] == []
    skipped = [result.rule for result in results if result.verdict is Verdict.SKIP]
    assert all("instance loads" in rule or "damaged" in rule for rule in skipped)
    assert len(results) == len(RULES)


def test_a_mask_that_differs_is_seen(backend: XlaBackend) -> None:
    graph = backend.load(CUSTOM, backend.compile(CUSTOM))
    x, mask = backend.inputs(CUSTOM)
    causal = graph(x, mask).cpu()
    seen = mask.cpu()
    seen[:, 0] = False
    seen[0, 0] = True
    assert not torch.allclose(graph(x, seen.to(backend.device)).cpu(), causal)


def test_each_key_is_compiled_once_and_hits_compile_nothing(backend: XlaBackend) -> None:
    cache, before = cache_of(backend), compiles()
    for key in (CAUSAL, CUSTOM) * 3:
        cache.bring(key)
        cache.resident[key](*backend.inputs(key)).cpu()
    total = cache.stats.total()
    assert compiles() - before == total.compiles
    assert total.compiles + total.loads == 2


def test_a_hidden_recompile_is_counted_and_named_with_the_difference(
    backend: XlaBackend, other: GraphKey
) -> None:
    cache, before = cache_of(backend), compiles()
    cache.bring(CAUSAL)
    graph = cache.resident[CAUSAL]
    length = other.seq_len + 1000
    graph(torch.zeros(1, length, HIDDEN).to(backend.device)).cpu()
    graph(torch.zeros(1, length, HIDDEN).to(backend.device)).cpu()
    counters = cache.stats.of(CAUSAL)
    assert compiles() - before == counters.compiles
    (event,) = [event for event in cache.stats.events if event.kind == "recompile"]
    assert event.key == str(CAUSAL)
    assert event.reason == f"input 0: float32[1, 32, 16] -> float32[1, {length}, 16]"
    assert event.seconds > 0


def test_nothing_compiles_once_the_cache_is_frozen_and_the_offender_is_named(backend: XlaBackend) -> None:
    cache = cache_of(backend)
    cache.bring(CAUSAL)
    cache.freeze(OnMiss.RAISE)
    graph, before = cache.resident[CAUSAL], compiles()
    with pytest.raises(FrozenError, match=r"prefill/causal/1x32 .*\[1, 32, 16\] -> float32\[1, 999, 16\]"):
        graph(torch.zeros(1, 999, HIDDEN).to(backend.device))
    with pytest.raises(FrozenError, match=r"prefill/causal/1x32 .*input 1: nothing -> bool"):
        graph(*backend.inputs(CUSTOM))
    assert compiles() == before
    graph(*backend.inputs(CAUSAL)).cpu()
    assert compiles() == before


class Switched(torch.nn.Module):
    """A model whose code depends on something that is no input."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos().sin() if self.on else x.exp()


@pytest.mark.parametrize("compiler", COMPILERS, ids=str)
def test_a_frozen_graph_whose_code_changed_is_stopped_before_it_compiles(
    compiler: str | None, other: GraphKey
) -> None:
    program = SmallProgram()
    program.model = model = Switched()  # type: ignore[assignment]
    backend = XlaBackend(program, compiler=compiler)
    cache = cache_of(backend)
    cache.bring(other)
    cache.freeze(OnMiss.RAISE)
    model.on, before = True, compiles()
    with pytest.raises(FrozenError, match=f"{other}.*the inputs are the same"):
        cache.resident[other](*backend.inputs(other))
    assert compiles() == before


def test_a_graph_that_torch_xla_still_has_is_loaded_not_compiled(backend: XlaBackend) -> None:
    cache, before, outcomes = cache_of(backend, graphs=1), compiles(), []
    for length in (20, 50, 20, 50):
        with cache.step(Batch.of([length])) as step:
            for launch in step:
                launch.graph(*backend.inputs(launch.key)).cpu()
                outcomes.append(launch.outcome)
    total = cache.stats.total()
    assert outcomes[2:] == [Outcome.LOAD, Outcome.LOAD]
    assert compiles() - before == total.compiles
    assert (total.compiles + total.loads, total.evictions) == (4, 3)


def test_what_is_let_go_is_dropped_by_the_hook() -> None:
    dropped: list[GraphKey] = []
    backend = XlaBackend(SmallProgram(), drop=dropped.append, evict_unit="entry")
    assert backend.evict_unit is EvictUnit.ENTRY
    backend.load(CAUSAL, backend.compile(CAUSAL)).close()
    assert dropped == [CAUSAL]
    assert XlaBackend(SmallProgram()).evict_unit is EvictUnit.NEVER


@pytest.mark.parametrize("other", [{"compiler": None}, {"options": {"mesh": "2x4"}}])
def test_every_option_that_changes_code_changes_the_fingerprint(other: dict[str, object]) -> None:
    assert XlaBackend(SmallProgram(), **other).fingerprint() != XlaBackend(SmallProgram()).fingerprint()  # type: ignore[arg-type]


def test_what_frees_nothing_changes_no_fact() -> None:
    hooked = XlaBackend(SmallProgram(), drop=print, nbytes=lambda key: 9, other_graphs=1)
    assert hooked.fingerprint() == XlaBackend(SmallProgram()).fingerprint()


def test_an_unknown_compiler_is_refused() -> None:
    with pytest.raises(ConfigError, match="no-such"):
        XlaBackend(SmallProgram(), compiler="no-such")


def test_an_artifact_of_another_process_is_refused() -> None:
    with pytest.raises(LoadError, match="prefill/causal/1x32"):
        XlaBackend(SmallProgram()).load(CAUSAL, Artifact())


def test_what_the_compiler_says_reaches_the_caller_with_the_key() -> None:
    program = SmallProgram()

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 3 else -x

    program.model = Branches()  # type: ignore[assignment]
    with pytest.raises(CompileError, match=r"prefill/causal/1x32.*[Dd]ata.dependent"):
        InlineSupplier(XlaBackend(program)).fetch(CAUSAL)


def test_a_cache_directory_after_the_first_compile_is_refused(tmp_path: Path, backend: XlaBackend) -> None:
    backend.compile(CAUSAL)
    found = '{"persists": true, "reason": "said so"}'
    import torch_xla

    (tmp_path / "persistence.json").write_text(f'{{"torch_xla {torch_xla.__version__} on CPU": {found}}}')
    with pytest.raises(ConfigError, match=r"cache_dir.*has compiled"):
        XlaBackend(SmallProgram(), cache_dir=tmp_path)


def test_a_cache_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="cache_dir"):
        XlaBackend(SmallProgram(), cache_dir=tmp_path)


def test_an_input_that_is_no_tensor_is_described_by_its_value() -> None:
    assert describe_sharded(3) == "3"
    assert describe_sharded(torch.zeros(2, 3)) == "float32[2, 3]"


SMALL_CACHE = """
import torch
torch.set_grad_enabled(False)
from small_program import *
from graphcache.backends.xla import *
from test_xla_backend import cache_of
import torch_xla.runtime as xr
from graphcache.cache import OnMiss
from graphcache.errors import FrozenError

backend = XlaBackend(SmallProgram(), other_graphs=1)
cache = cache_of(backend, graphs=2)
keys = [GraphKey(1, n) for n in (8, 16, 24, 32)]
graphs = {key: backend.load(key, backend.compile(key)) for key in keys}
print(compiles(), xr.get_num_cached_compilation_graph())
again = graphs[keys[0]](*backend.inputs(keys[0])).cpu()
print(torch.allclose(again, SmallProgram().model.to("cpu")(*backend.program.inputs(keys[0])), atol=1e-5))
print(compiles(), cache.stats.of(keys[0]).compiles)
cache.freeze(OnMiss.RAISE)
try:
    graphs[keys[1]](*backend.inputs(keys[1]))
except FrozenError as error:
    print(error)
print(compiles())
"""


def test_torch_xla_s_own_cache_is_as_large_as_the_budget(in_child: Callable[..., str]) -> None:
    filled, same, revived, refused, last = in_child(SMALL_CACHE).splitlines()
    assert filled == "4 3", "a budget of 2, and room for 1 other"
    assert (same, revived) == ("True", "5 1"), "what it let go is compiled again, counted, and right"
    assert refused.startswith("prefill/causal/1x16 would be compiled again")
    assert last == "5"


SHARDED = """
import torch, numpy
torch.set_grad_enabled(False)
import torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
xr.use_spmd()
from small_program import *
from graphcache.backends.xla import *
from test_xla_backend import cache_of

backend = XlaBackend(SmallProgram())
cache = cache_of(backend)
key = GraphKey(2, 32)
cache.bring(key)
before = compiles()
mesh = xs.Mesh(numpy.arange(2), (2,), ("batch",))
(x,) = backend.inputs(key)
xs.mark_sharding(x, mesh, ("batch", None, None))
cache.resident[key](x).cpu()
print(compiles() - before, cache.stats.of(key).compiles - 1)
print(cache.stats.events[-1].reason)
"""


def test_a_recompile_for_another_sharding_is_named(in_child: Callable[..., str]) -> None:
    counts, reason = in_child(SHARDED, CPU_NUM_DEVICES="2").splitlines()
    assert counts == "1 1"
    assert reason.startswith("input 0: float32[2, 32, 16]")
    assert "devices=[2,1,1]" in reason


KEPT = """
import sys, torch
torch.set_grad_enabled(False)
from small_program import *
from graphcache.backends.xla import *
backend = XlaBackend(SmallProgram(), cache_dir=sys.argv[1])
print(backend.persistence.persists)
print(backend.persistence.reason)
backend.compile(CAUSAL)
print(compiles())
"""


def test_pjrt_s_cpu_can_t_read_back_and_stablehlo_is_kept_instead(
    in_child: Callable[..., str], tmp_path: Path
) -> None:
    from graphcache.backends.xla_probe import recorded

    persists, reason, compiled = in_child(KEPT, str(tmp_path)).splitlines()
    assert (persists, compiled) == ("False", "1")
    assert reason == "the device's plugin writes executables that it can't read back"
    ((where, found),) = recorded(tmp_path).items()
    assert where.endswith("on CPU")
    assert found == (False, reason)
    (text,) = tmp_path.rglob("*.mlirbc")
    assert text.name == "prefill-causal-1x32.mlirbc"
    assert text.read_bytes().startswith(b"ML\xefR")
    assert list(tmp_path.glob("probe-*")) == []
