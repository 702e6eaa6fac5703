"""Graphs fetched in the background: read from the store by a thread, compiled by processes of their own."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from pathlib import Path

from graphcache.backends.protocol import Artifact, Detachable, Job
from graphcache.compile.flights import Flight, Flights, Made, Stage
from graphcache.compile.inline import Exclusive, Failures, InlineSupplier
from graphcache.compile.process import Limits, WorkerProcess
from graphcache.compile.protocol import Failed, Supplied, Urgency
from graphcache.errors import ClosedError, ConfigError, HostError, LoadError, WorkerError
from graphcache.key import GraphKey
from graphcache.stats import Stats
from graphcache.store.protocol import Store
from graphcache.together import ALONE, Together

JOIN_SECONDS = 5.0
WAIT_SECONDS = 0.05


class BackgroundSupplier(InlineSupplier):
    """Compiles in ``workers`` processes, and hands graphs over between steps.

    The live model is traced on the runner's thread alone: by `prepare`, before the server says that it is
    ready, else in `ready`, one graph a call.  A worker that dies, hangs or grows over its ``limits`` is
    ended, counted by reason, and its compile tried again, ``retries`` times, after ``backoff_seconds`` of
    ``clock``, doubled each time; a step that waits does not wait for that.  What the compiler itself refuses
    is not tried again before ``forget_seconds``.  ``value`` says which upgrade is compiled first.

    Raises:
        ConfigError: a backend whose compiles can't leave the process, or fewer than one worker.
    """

    background = True
    backend: Detachable

    def __init__(
        self,
        backend: Detachable,
        store: Store | None = None,
        *,
        stats: Stats | None = None,
        exclusive: Exclusive | None = None,
        workers: int = 1,
        limits: Limits | None = None,
        value: Callable[[GraphKey], float] = lambda key: 0.0,
        clock: Callable[[], float] = time.monotonic,
        forget_seconds: float = 300.0,
        failures: Failures | None = None,
        together: Together = ALONE,
        retries: int = 2,
        backoff_seconds: float = 5.0,
    ) -> None:
        if not hasattr(backend, "job"):
            raise ConfigError.of("backend", backend.name, "one that compiles in other processes, as inductor")
        if workers < 1:
            raise ConfigError.of("workers", workers, "an integer of at least 1")
        super().__init__(
            backend,
            store,
            stats=stats,
            exclusive=exclusive,
            clock=clock,
            forget_seconds=forget_seconds,
            failures=failures,
            together=together,
        )
        self._retries = retries
        self._backoff_seconds = backoff_seconds
        self._flights = Flights(value, clock)
        self._prepared: dict[GraphKey, Job] = {}
        scratch = Path(tempfile.mkdtemp(prefix="graphcache-workers-"))
        self.workers = [WorkerProcess(scratch, limits or Limits()) for _ in range(workers)]
        self._threads = [threading.Thread(target=self._read_store, daemon=True)]
        self._threads += [
            threading.Thread(target=self._compile_with, args=(w,), daemon=True) for w in self.workers
        ]
        self._end = weakref.finalize(self, _end, self._flights, self.workers, scratch)
        for thread in self._threads:
            thread.start()

    def prepare(self, keys: Iterable[GraphKey]) -> int:
        """Trace what is not stored, now, so that nothing is traced while serving; return how many it were.

        A graph that can't be traced is remembered as one that can't be compiled, and counted.
        """
        missing = [key for key in keys if key not in self._prepared and not self.stored(key)]
        for key in missing:
            try:
                self._prepared[key] = self.backend.job(key)
            except Exception as cause:
                self.stats.fault("trace", self._remember(key, cause))
        return len(missing)

    def fetch(self, key: GraphKey) -> Supplied:
        """Load one graph, or have it compiled before all others, and wait for it.

        Raises:
            CompileError: the compiler failed, now or less than ``forget_seconds`` ago.
            LoadError: what was compiled just now can't be loaded; or, as `HostError`, nothing can.
            ClosedError: the supplier was closed meanwhile.
        """
        return self._flight.do(key, lambda: self._at_hand(key) or self._demanded(key))

    def request(self, key: GraphKey, urgency: Urgency = Urgency.UPGRADE) -> None:
        """Ask for one graph without waiting; asking twice is asking once, as urgently as ever it was."""
        if not self._flights.closed:
            self._flights.ask(key, urgency)
            self.due = True

    def ready(self) -> Sequence[Supplied | Failed]:
        """Hand over what has become ready, loaded here; and trace the next graph that must be traced."""
        untraced = self._flights.take(Stage.TRACE)
        if untraced:
            self._trace(untraced)
        outcomes = []
        while (flight := self._flights.take(Stage.LANDED)) is not None:
            self._flights.remove(flight)
            outcome = self._outcome(flight)
            if outcome:
                outcomes.append(outcome)
        self.due = len(self._flights) > 0
        return outcomes

    def close(self) -> None:
        """End every worker and thread at once, and leave no file behind; a fetch that waits raises."""
        self._end()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _at_hand(self, key: GraphKey) -> Supplied | None:
        return None if key in self._flights else self._loaded(key)

    def _demanded(self, key: GraphKey) -> Supplied:
        if self._flights.closed:
            raise ClosedError("the supplier was closed")
        self._raise_remembered(key)
        flight = self._flights.ask(key, Urgency.DEMAND)
        while not _landed(flight):
            if self._flights.claim(flight, Stage.TRACE):
                self._trace(flight)
        self._flights.remove(flight)
        return self._supplied(key, flight.landed.result())

    def _supplied(self, key: GraphKey, made: Made) -> Supplied:
        began = self._clock()
        graph = self.backend.load(key, made.artifact)
        seconds = made.seconds + self._clock() - began
        return Supplied(key, graph, made.source, seconds, max(0.0, made.compile_seconds - seconds))

    def _outcome(self, flight: Flight) -> Supplied | Failed | None:
        error = flight.landed.exception()
        if isinstance(error, Exception):
            reason = getattr(getattr(error, "cause", None), "reason", "compile")
            return Failed(flight.key, reason, error)
        made = flight.landed.result()
        try:
            return self._supplied(flight.key, made)
        except HostError as error:
            return Failed(flight.key, "host", error)
        except LoadError as error:
            self.stats.fault("load", error)
            self.shelf.drop(flight.key)
            if made.source == "compile":
                return Failed(flight.key, "load", error)
        self._flights.ask(flight.key, flight.urgency)
        return None

    def _trace(self, flight: Flight) -> None:
        began = self._clock()
        try:
            flight.job = self.backend.job(flight.key)
        except Exception as cause:
            self._land(flight, self._remember(flight.key, cause))
            return
        self.stats.event("trace", flight.key, seconds=self._clock() - began)
        self._flights.move(flight, Stage.WORKER)

    def _read_store(self) -> None:
        while (flight := self._flights.wait(Stage.STORE)) is not None:
            try:
                self._raise_remembered(flight.key)
                made = self._stored(flight.key)
            except Exception as error:
                self._land(flight, error)
                continue
            if made:
                self._land(flight, made)
            else:
                flight.job = self._prepared.get(flight.key)
                self._flights.move(flight, Stage.WORKER if flight.job else Stage.TRACE)

    def _compile_with(self, worker: WorkerProcess) -> None:
        while (flight := self._flights.wait(Stage.WORKER)) is not None:
            try:
                self._land(flight, self._compiled_by(worker, flight))
            except WorkerError as error:
                self._missed(flight, error)
            except Exception as error:
                self._land(flight, error)

    def _compiled_by(self, worker: WorkerProcess, flight: Flight) -> Made:
        if flight.job is None:
            raise ClosedError(f"{flight.key} was never traced")
        with self._exclusive(self.shelf.digest(flight.key)) as turn:
            self.note_turn(turn)
            made_meanwhile = self._stored(flight.key)
            if made_meanwhile:
                return made_meanwhile
            began = self._clock()
            artifact = Artifact(payload=worker.run(flight.job))
            seconds = self._clock() - began
            self.shelf.put(flight.key, artifact, seconds)
        self._prepared.pop(flight.key, None)
        return Made(artifact, "compile", seconds, seconds)

    def _stored(self, key: GraphKey) -> Made | None:
        began = self._clock()
        stored = self.shelf.get(key)
        if stored is None:
            return None
        artifact = Artifact(payload=stored.payload, meta=stored.record.meta)
        return Made(artifact, "load", self._clock() - began, stored.record.seconds)

    def _missed(self, flight: Flight, error: WorkerError) -> None:
        """Have another go, later, at what came to nothing through no fault of the graph's."""
        flight.attempts += 1
        final = error.reason == "compile" or flight.attempts > self._retries
        if error.reason != "compile" and not self._flights.closed:
            try:
                self.stats.fault(f"worker-{error.reason}", error)
            except WorkerError:  # The statistics are strict: no fault is survived.
                final = True
        if self._flights.closed:
            self._land(flight, ClosedError("the supplier was closed"))
        elif final:
            self._land(flight, self._remember(flight.key, error))
        else:
            pause = self._backoff_seconds * 2 ** (flight.attempts - 1)
            flight.not_before = 0.0 if flight.urgency is Urgency.DEMAND else self._clock() + pause
            self._flights.move(flight, Stage.WORKER)

    def _land(self, flight: Flight, result: Made | Exception) -> None:
        if flight.landed.done():
            return
        if isinstance(result, Exception):
            flight.landed.set_exception(result)
        else:
            flight.landed.set_result(result)
        self._flights.move(flight, Stage.LANDED)


def _landed(flight: Flight) -> bool:
    wait([flight.landed], WAIT_SECONDS)
    return flight.landed.done()


def _end(flights: Flights, workers: Sequence[WorkerProcess], scratch: Path) -> None:
    """Let all threads go, end all workers and remove what they wrote; also run when the process exits."""
    left = flights.close()
    for worker in workers:
        worker.end()
    for flight in left:
        if not flight.landed.done():
            flight.landed.set_exception(ClosedError("the supplier was closed"))
    shutil.rmtree(scratch, ignore_errors=True)
