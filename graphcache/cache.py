"""The coordinator: joins policy, residency, supplier and statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from graphcache.backends.protocol import Backend, EvictUnit, Graph
from graphcache.batch import Batch, Launch, Plan, Sequence
from graphcache.coarse import fewest, within
from graphcache.compile.protocol import Failed, Supplied, Supplier, Urgency
from graphcache.compile.single_flight import SingleFlight
from graphcache.costs import Costs, PaddedWork
from graphcache.errors import BudgetError, ClosedError, CompileError, GraphCacheError, LoadError
from graphcache.key import GraphKey
from graphcache.miss import Misses, OnMiss
from graphcache.policy.protocol import Action, Budget, Evict, Policy, View
from graphcache.roster import Roster
from graphcache.stats import Stats
from graphcache.step import BoundLaunch, Learner, Outcome, Step
from graphcache.warm import Progress, WarmOrder, WarmReport, ordered, undominated, warm

_Shape = tuple[Sequence, ...]


class GraphCache:
    """Fetches the right compiled graphs for each batch of a model runner.

    ``step`` is for one runner thread; ``get_or_compile`` may be called from any.  What is resident
    changes only between two steps.  ``costs`` is a frozen table; a ``learner`` replaces it every
    `LEARN_STEPS` steps.  ``max_slowdown`` bounds a fallback: one that runs longer than that many times
    the wanted graph is refused.  ``saved_state`` and ``key_value`` are what earlier processes left: the
    policy's state, and the seconds that a key's graph ran.  A strict ``stats`` raises the faults that are
    else survived.
    """

    LEARN_STEPS = 256
    MEMO_ENTRIES = 4096

    def __init__(
        self,
        policy: Policy,
        supplier: Supplier,
        *,
        budget: Budget | None = None,
        evict_unit: EvictUnit = EvictUnit.ENTRY,
        on_miss: OnMiss = OnMiss.COMPILE,
        frozen_on_miss: OnMiss | None = None,
        costs: Costs | None = None,
        learner: Learner | None = None,
        max_slowdown: float | None = None,
        saved_state: Any = None,
        key_value: Callable[[GraphKey], float] = lambda key: 0.0,
        stats: Stats | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.policy = policy
        self.supplier = supplier
        self.stats = stats or Stats()
        self._roster = Roster(
            policy, self.stats, budget or Budget(), evict_unit, costs or PaddedWork(), saved_state, learner
        )
        self._misses = Misses(self._roster, supplier, self.stats, OnMiss(on_miss), max_slowdown, clock)
        self._lock = self._roster.lock
        self._frozen_on_miss = frozen_on_miss
        self._learner = learner
        self._key_value = key_value
        self._clock = clock
        self._flight: SingleFlight[Graph] = SingleFlight()
        self._memo: dict[_Shape, Step] = {}
        self._bound: dict[int, tuple[Plan, Step]] = {}
        self._memo_version = 0
        self._due: list[Action] = []
        self._arrived: dict[GraphKey, Supplied] = {}
        self._at_close: list[Callable[[], None]] = []
        self._open = False
        self._closed = False

    @classmethod
    def from_yaml(cls, source: str | Path, backend: Backend, **given: Any) -> GraphCache:
        """Build the cache that a shipped policy's name, or the path of a YAML file, describes.

        ``given`` goes to `graphcache.config.build.build_cache`.

        Raises:
            ConfigError: a mistake in the file; names file, line, field, value and what is allowed.
            StoreError: the store can't be used.
        """
        from graphcache.config import load_config
        from graphcache.config.build import build_cache

        return build_cache(load_config(source), backend, **given)

    def __enter__(self) -> GraphCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def on_miss(self) -> OnMiss:
        """What a step does when a graph it wants is not resident."""
        return self._misses.on_miss

    @property
    def view(self) -> View:
        """What decisions look at now; replaced whole when anything in it changes."""
        return self._roster.view

    @property
    def resident(self) -> Mapping[GraphKey, Graph]:
        """The loaded graphs, oldest first; replaced whole when anything in it changes."""
        return self._roster.graphs

    # -- one step -------------------------------------------------------------------------------

    def step(self, batch: Batch) -> Step:
        """Return this batch's launches, each with a graph that serves it; use it as a context.

        Raises:
            PolicyError: the policy, as configured, can't serve the batch.
            LadderError: the batch is longer than the ladder.
            CompileError: a graph can't be compiled, and no resident one can stand in.
            FrozenError: a graph is missing that ``on_miss: raise`` forbids to compile.
            ClosedError: the cache was closed.
            GraphCacheError: the step before was not left.
        """
        self._lock.acquire()  # Twice as fast as `with`, on the path that every step takes.
        try:
            if self._open:
                raise GraphCacheError("a step is open; leave it (`with cache.step(batch)`) before the next")
            self.stats.steps += 1
            self._open = True
            if not (self._due or self._arrived or self.supplier.due or self._learns()):
                step = self._recall(batch)
                if step is not None:
                    return step
        finally:
            self._lock.release()
        try:
            return self._decide(batch)
        except BaseException:
            self._open = False
            raise

    def _recall(self, batch: Batch) -> Step | None:
        """Return the memoised step of an equal batch, if nothing has changed since."""
        if self._memo_version != self._roster.version:
            self._memo.clear()
            self._bound.clear()
            self._memo_version = self._roster.version
            return None
        step = self._memo.get(batch.sequences)
        if step is not None:
            self._reuse(step, batch)
        return step

    def _reuse(self, step: Step, batch: Batch) -> None:
        for launch in step.launches:
            launch.count_reuse()
        self._due += self._roster.advance(batch, step.plan)

    def _leave(self) -> None:
        self._open = False

    def _decide(self, batch: Batch) -> Step:
        self._cross_boundary()
        with self._lock:
            step = self._recall(batch)
        if step is not None:
            return step
        plan = self._roster.plan(batch)
        known = self._bound.get(id(plan))
        if known is not None:
            with self._lock:
                self._memoise(batch, known[1])
                self._reuse(known[1], batch)
            return known[1]
        launches = self._bind(plan)
        served = Plan(tuple(Launch(b.key, b.sequences, b.layout) for b in launches))
        step = Step(launches, served, self._leave, self._learner)
        with self._lock:
            lasting = [self._lasts(launch) for launch in launches]
            if all(lasting):
                self._remember(batch, plan, step)
            self._due += self._roster.advance(batch, step.plan)
        return step

    def _lasts(self, launch: BoundLaunch) -> bool:
        """Count a launch that waited for nothing; say whether it would be bound the same way again."""
        if launch.outcome not in (Outcome.HIT, Outcome.FALLBACK):
            return False
        launch.count_reuse()
        return launch.outcome is Outcome.HIT or self._roster.pending(launch.wanted)

    def _remember(self, batch: Batch, plan: Plan, step: Step) -> None:
        """Keep a step by its batch's shape, and by its plan, which policies hand out again."""
        if self._memo_version != self._roster.version:
            return
        self._memoise(batch, step)
        if len(self._bound) >= self.MEMO_ENTRIES:
            self._bound.clear()
        self._bound[id(plan)] = (plan, step)

    def _memoise(self, batch: Batch, step: Step) -> None:
        if len(self._memo) >= self.MEMO_ENTRIES:
            self._memo.clear()
        self._memo[batch.sequences] = step

    def _bind(self, plan: Plan) -> tuple[BoundLaunch, ...]:
        """Bind the launches to the graphs they ask for, or to fewer where all of those find no room."""
        asked = within(plan, self.view.budget, self._roster.sizes)
        try:
            return self._bind_to(asked, plan)
        except BudgetError:
            coarse = fewest(plan)
            if coarse == asked:
                raise
        return self._bind_to(coarse, plan)

    def _bind_to(self, asked: Plan, plan: Plan) -> tuple[BoundLaunch, ...]:
        """Bind the launches, the largest first: what no longer fits can be served by what is there."""
        pinned: set[GraphKey] = set()
        bound: dict[int, BoundLaunch] = {}
        launches = plan.launches
        sizes = [(asked.launches[i].key.tokens, launches[i].key.tokens) for i in range(len(launches))]
        for index in sorted(range(len(launches)), key=sizes.__getitem__, reverse=True):
            bound[index] = self._bind_launch(launches[index], asked.launches[index].key, pinned)
            pinned.add(bound[index].key)
        return tuple(bound[index] for index in range(len(launches)))

    def _bind_launch(self, launch: Launch, asked: GraphKey, pinned: set[GraphKey]) -> BoundLaunch:
        key, outcome = self._misses.serve(asked, pinned)
        if outcome is Outcome.HIT and key != launch.key:
            outcome = Outcome.FALLBACK
        return BoundLaunch(
            key=key,
            wanted=launch.key,
            sequences=launch.sequences,
            layout=launch.layout,
            graph=self.resident[key],
            outcome=outcome,
            counters=self.stats.of(key),
            wanted_counters=self.stats.of(launch.key),
            saved_seconds=self._roster.saved_seconds(key, launch.key),
        )

    # -- between two steps ----------------------------------------------------------------------

    def _cross_boundary(self) -> None:
        """Apply what is due: graphs that are ready, loads and evictions that were decided."""
        if self._closed:
            raise ClosedError("the cache was closed")
        if self._learner is not None and self._learns():
            self._roster.use_costs(self._learner.snapshot())
        for item in (*self.supplier.ready(), *self._take_arrived()):
            if isinstance(item, Failed):
                self._roster.settle(item.key)
                self.stats.fault(item.reason, item.error)
            else:
                self._upgrade(item)
        due, self._due = self._due, []
        for action in due:
            self._act(action)

    def _learns(self) -> bool:
        return self._learner is not None and self.stats.steps % self.LEARN_STEPS == 0

    def _take_arrived(self) -> list[Supplied]:
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        return list(arrived.values())

    def _upgrade(self, supplied: Supplied) -> None:
        try:
            self._roster.admit(supplied)
        except BudgetError as error:
            self._misses.survive(supplied.key, error)
            return
        self.stats.of(supplied.key).upgrades += 1

    def _act(self, action: Action) -> None:
        key = action.key
        if isinstance(action, Evict):
            self._roster.evict(key, action.reason)
        elif key in self.resident or key in self._roster.blocked or self._roster.refusal(key):
            return
        elif self.supplier.background:
            self._misses.request(key)
        else:
            try:
                self._misses.demand(key)
            except (CompileError, LoadError, BudgetError) as error:
                self._misses.survive(key, error)

    # -- beside the steps -----------------------------------------------------------------------

    def get_or_compile(self, key: GraphKey, compile_fn: Callable[[GraphKey], Callable[..., Any]]) -> Graph:
        """Return one graph; on a miss ``compile_fn(key)`` makes it, once for all who ask meanwhile.

        Callable from any thread.  Hold `pin` while a graph runs where other threads may evict it.

        Raises:
            CompileError: ``compile_fn`` raised; so for all who waited.
            FrozenError: it is missing, and ``on_miss: raise`` forbids to compile.
            BudgetError: it does not fit, whatever is evicted.
            ClosedError: the cache was closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the cache was closed")
            graph = self._present(key)
            if graph is not None:
                self.stats.of(key).hits += 1
                self._roster.advance(*_alone(key))
                return graph
        return self._flight.do(key, partial(self._compile_with, key, compile_fn))

    def _present(self, key: GraphKey) -> Graph | None:
        arrived = self._arrived.get(key)
        return arrived.graph if arrived else self.resident.get(key)

    def _compile_with(self, key: GraphKey, compile_fn: Callable[[GraphKey], Callable[..., Any]]) -> Graph:
        with self._lock:
            graph = self._present(key)
        if graph is not None:
            return graph
        self._misses.check_may_compile(key)
        began = self._clock()
        try:
            made = compile_fn(key)
        except Exception as cause:
            raise CompileError(key, cause) from cause
        graph = made if isinstance(made, Graph) else Graph(made)
        supplied = Supplied(key, graph, "compile", self._clock() - began)
        with self._lock:
            if self._open:
                self._arrived[key] = supplied
            else:
                self._roster.admit(supplied)
        return graph

    @contextmanager
    def pin(self, key: GraphKey) -> Iterator[None]:
        """Keep a graph from being evicted while the context is open."""
        pins = self._roster.pins
        with self._lock:
            pins[key] += 1
        try:
            yield
        finally:
            with self._lock:
                pins.subtract({key: 1})
                if not pins[key]:
                    del pins[key]

    def block(self, key: GraphKey, reason: str = "blocked by hand") -> None:
        """Serve no batch with this graph any more: it leaves at the next step, a stand-in takes over."""
        self._roster.block(key, reason)
        with self._lock:
            self._due.append(Evict(key, reason))

    def warm(
        self,
        keys: Iterable[GraphKey] | None = None,
        *,
        order: WarmOrder = WarmOrder.VALUE,
        deadline_seconds: float | None = None,
        progress: Progress | None = None,
    ) -> WarmReport:
        """Make graphs resident before serving, in this order, until the budget is full.

        ``keys`` is all that the policy can ask for where it is not given.  Nothing is evicted.  Where misses
        fall back, only graphs that are stored, or that no other stands in for, are waited for; the others
        come between two steps.  After ``deadline_seconds`` no further graph is waited for.  ``progress`` is
        told each key that is waited for, its index, and how many there are.

        Raises:
            ClosedError: the cache was closed.
        """
        if self._closed:
            raise ClosedError("the cache was closed")
        wanted = list(self.policy.warm_keys() if keys is None else keys)
        self.supplier.prepare(wanted)
        waits_for = self._waited_for(wanted)
        keys = ordered(wanted, WarmOrder(order), self._key_value)
        missing = [key for key in keys if key in waits_for and key not in self.resident]
        for key in missing[: self._roster.room()]:  # Side by side, where there are several workers.
            self.supplier.request(key, Urgency.WARM)
        return warm(self, keys, self._clock, deadline_seconds, progress, waits_for)

    def _waited_for(self, keys: Collection[GraphKey]) -> set[GraphKey]:
        falls_back = {self.on_miss, self._frozen_on_miss or self.on_miss} == {OnMiss.FALLBACK}
        if not self.supplier.background or not falls_back:
            return set(keys)
        return undominated(keys) | {key for key in keys if self.supplier.stored(key)}

    def bring(self, key: GraphKey) -> Supplied | None:
        """Make one graph resident between two steps, evicting nothing; None where it is already.

        Raises:
            CompileError: the compiler failed.
            LoadError: what was compiled can't be loaded.
            BudgetError: it does not fit beside what is resident.
        """
        if key in self.resident:
            return None
        if self._roster.full():
            raise BudgetError(f"{key}: the budget of {self.view.budget.graphs} graphs is full")
        supplied = self.supplier.fetch(key)
        self._roster.admit(supplied, self.resident)
        return supplied

    def ask(self, key: GraphKey) -> None:
        """Have one graph made beside the steps, evicting nothing.

        Raises:
            BudgetError: there is no room for it beside what is resident and what was asked for.
        """
        if key not in self.resident:
            if self._roster.room() == 0:
                raise BudgetError(f"{key}: the budget of {self.view.budget.graphs} graphs is full")
            self._misses.request(key, Urgency.WARM)

    def freeze(self, on_miss: OnMiss | None = None) -> None:
        """End the warm-up: from now on a miss does what ``on_miss`` says, or ``frozen_on_miss``."""
        self._misses.on_miss = OnMiss(on_miss or self._frozen_on_miss or self.on_miss)

    def saved_state(self) -> Any:
        """Return the policy's state as plain JSON values, for the next process."""
        return self._roster.saved_state()

    def snapshot(self) -> dict[str, Any]:
        """Return the statistics, and what is resident, as plain JSON values."""
        with self._lock:
            return {**self.stats.snapshot(), **self._roster.snapshot()}

    def at_close(self, call: Callable[[], None]) -> None:
        """Have something done when the cache is closed, while its graphs are still there."""
        self._at_close.append(call)

    def close(self) -> None:
        """Let all graphs go and end all background work; closing twice is closing once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for call in self._at_close:
            call()
        self._roster.clear()
        self.supplier.close()


@lru_cache(maxsize=4096)
def _alone(key: GraphKey) -> tuple[Batch, Plan]:
    """Return the batch and plan of one graph asked for by its key."""
    batch = Batch((Sequence(key.seq_len),) * key.rows)
    return batch, Plan((Launch(key, tuple(range(key.rows))),))
