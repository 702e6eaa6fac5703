"""What steps feel of compilation: a loop at steady load meets shapes that nothing is compiled for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from graphcache.backends.inductor import InductorBackend
from graphcache.backends.protocol import Artifact, Backend
from graphcache.batch import Batch
from graphcache.bench.sample import SampleProgram, Sizes
from graphcache.bench.timing import Progress, silent
from graphcache.cache import GraphCache
from graphcache.compile.background import BackgroundSupplier
from graphcache.compile.inline import InlineSupplier
from graphcache.compile.protocol import Failed, Supplied, Urgency
from graphcache.errors import CompileError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Ladders

SIZES = Sizes(hidden=256, heads=4, kv_heads=2, max_tokens=1024)
STEP_TOKENS = 64
LOAD = 0.5
"""The share of the time that the server is busy while nothing compiles."""


class Row(NamedTuple):
    """One way to compile: seconds from when a step was due until it was done.

    They are at the median, at the 99th percentile and the longest.  ``stalls`` are steps that waited for a
    graph, ``upgrades`` graphs that came beside the steps.
    """

    compile: str
    steps: int
    p50_seconds: float
    p99_seconds: float
    max_seconds: float
    stalls: int
    upgrades: int


class Nobody(InlineSupplier):
    """Fetches what is waited for, and lets all other requests lie: the floor."""

    background = True


class InThread(InlineSupplier):
    """Compiles requests in a thread of the serving process."""

    background = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="graphcache-bench")
        self._under_way: dict[GraphKey, Future[tuple[Artifact, float]]] = {}

    def fetch(self, key: GraphKey) -> Supplied:
        """Compile a graph while its step waits, or wait for the thread to have done so.

        Raises:
            CompileError: the compiler failed.
        """
        compiled = self._under_way.pop(key, None)
        if compiled is None:
            return super().fetch(key)
        outcome = self._outcome(key, compiled)
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome

    def request(self, key: GraphKey, urgency: Urgency = Urgency.UPGRADE) -> None:
        """Have the thread compile a graph after those before it."""
        self._under_way[key] = self._thread.submit(self._timed_compile, key)
        self._under_way[key].add_done_callback(self._tell)

    def ready(self) -> Sequence[Supplied | Failed]:
        """Load what is compiled by now."""
        self.due = False
        done = [key for key, compiled in self._under_way.items() if compiled.done()]
        return [self._outcome(key, self._under_way.pop(key)) for key in done]

    def close(self) -> None:
        """Drop what was not begun, and wait for what was."""
        self._thread.shutdown(cancel_futures=True)

    def _tell(self, compiled: Future[Any]) -> None:
        self.due = True

    def _timed_compile(self, key: GraphKey) -> tuple[Artifact, float]:
        began = time.perf_counter()
        return self.backend.compile(key), time.perf_counter() - began

    def _outcome(self, key: GraphKey, compiled: Future[tuple[Artifact, float]]) -> Supplied | Failed:
        error = compiled.exception()
        if error is not None:
            return Failed(key, "compile", CompileError(key, error))
        artifact, seconds = compiled.result()
        return Supplied(key, self.backend.load(key, artifact), "compile", seconds)


CONTENDERS: dict[str, tuple[OnMiss, Callable[[Any], InlineSupplier]]] = {
    "none": (OnMiss.FALLBACK, Nobody),
    "in line": (OnMiss.COMPILE, InlineSupplier),
    "in a thread": (OnMiss.FALLBACK, InThread),
    "in workers": (OnMiss.FALLBACK, BackgroundSupplier),
}
"""Each way by its name: what a miss does, and what makes the supplier from a backend."""


def measure(
    seconds: float = 60.0,
    shapes: int = 4,
    *,
    contenders: Sequence[str] = tuple(CONTENDERS),
    make_backend: Callable[[SampleProgram], Backend] = InductorBackend,
    sizes: Sizes = SIZES,
    progress: Progress = silent,
) -> Iterator[Row]:
    """Serve for so many seconds in each way, and meet the new shapes in the first half of them.

    Steps are of one sequence.  At the start one graph is resident, which serves them all; each shape wants
    one of its own.
    """
    program = SampleProgram(sizes)
    period = 0.0
    ladders = Ladders(Ladder(STEP_TOKENS * (index + 1) for index in range(shapes + 1)))
    largest = GraphKey(1, ladders.prefill.top, mode=MaskMode.CUSTOM)
    for index, name in enumerate(contenders):
        progress(f"compiles: {name}", index, len(contenders))
        on_miss, make_supplier = CONTENDERS[name]
        backend = make_backend(program)
        supplier = make_supplier(backend)
        with GraphCache(
            DynamicDual(ladders), supplier, evict_unit=backend.evict_unit, on_miss=on_miss
        ) as cache:
            if isinstance(supplier, BackgroundSupplier):
                supplier.prepare(cache.policy.warm_keys())
            cache.warm([largest])
            period = period or _period(cache, program, shapes)
            taken = _serve(cache, program, seconds, shapes, period)
            total = cache.stats.total()
        taken.sort()
        p50, p99 = (taken[len(taken) * percent // 100] for percent in (50, 99))
        yield Row(name, len(taken), p50, p99, taken[-1], total.stalls, total.upgrades)


def _period(cache: GraphCache, program: SampleProgram, shapes: int) -> float:
    """Return the seconds from one step to the next, by what a step takes on the graph that serves all."""
    both = Batch.of([STEP_TOKENS * (shapes + 1) - 1, 1])
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        _step(cache, program, both)
        taken.append(time.perf_counter() - began)
    return min(taken) / LOAD


def _serve(
    cache: GraphCache, program: SampleProgram, seconds: float, shapes: int, period: float
) -> list[float]:
    """Run the steps that are due in so many seconds; return when each was done, in seconds after it was due.

    Steps come whether the server keeps up or not: whatever holds one up holds up those behind it.
    """
    taken: list[float] = []
    began = time.perf_counter()
    for index in range(max(1, int(seconds / period))):
        due = index * period
        time.sleep(max(0.0, began + due - time.perf_counter()))
        known = 1 + min(shapes - 1, int(due / seconds * 2 * shapes))
        _step(cache, program, Batch.of([STEP_TOKENS * (1 + index % known)]))
        taken.append(time.perf_counter() - began - due)
    return taken


def _step(cache: GraphCache, program: SampleProgram, batch: Batch) -> None:
    with cache.step(batch) as step:
        for launch in step:
            launch.graph(*program.inputs(launch.key))
