"""Whatever workers do: no request is lost, no graph is wrong, and no key compiles twice at once."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any
from unittest.mock import patch

from compile_processes import until
from fakes import FakeBackend
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from graphcache.backends.protocol import Job
from graphcache.compile import background
from graphcache.compile.background import BackgroundSupplier
from graphcache.compile.flights import Stage
from graphcache.compile.protocol import Failed, Supplied, Urgency
from graphcache.errors import WorkerError
from graphcache.key import GraphKey
from graphcache.stats import Stats
from graphcache.store.memory import MemoryStore

keys = st.sampled_from([GraphKey(1, 128 << n) for n in range(4)])
outcomes = st.sampled_from(["done", "done", "crashed", "hung", "memory", "start", "compile"])


class Script:
    """What all scripted workers are at; each waits at its job until it is told the outcome."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.running: dict[str, str | None] = {}
        self.twice: list[str] = []
        self.ended = False

    def run(self, name: str) -> str:
        with self.changed:
            if name in self.running:
                self.twice.append(name)
            self.running[name] = None
            self.changed.wait_for(lambda: self.running[name] or self.ended)
            return self.running.pop(name) or "crashed"

    def tell(self, name: str, outcome: str) -> None:
        with self.changed:
            self.running[name] = outcome
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Tracing(FakeBackend):
    def job(self, key: GraphKey) -> Job:
        return Job("", str(key).encode())


class SupplierMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.script = script = Script()
        self.asked: Counter[GraphKey] = Counter()
        self.crashes = 0

        class Scripted:
            def __init__(self, *arguments: Any) -> None:
                pass

            def run(self, job: Job) -> bytes:
                outcome = script.run(job.data.decode())
                if outcome != "done":
                    raise WorkerError(outcome, outcome)
                return job.data

            def end(self) -> None:
                script.end()

        with patch.object(background, "WorkerProcess", Scripted):
            self.supplier = BackgroundSupplier(
                Tracing(),
                MemoryStore(),
                stats=Stats(),
                workers=2,
                clock=lambda: self.now,
                retries=1,
                backoff_seconds=10.0,
                forget_seconds=100.0,
            )

    @rule(key=keys, urgency=st.sampled_from(Urgency))
    def request(self, key: GraphKey, urgency: Urgency) -> None:
        self.supplier.request(key, urgency)
        self.asked[key] = 1
        self.settle()

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    @precondition(lambda self: self.script.running)
    @rule(data=st.data(), outcome=outcomes)
    def a_worker_ends_its_job(self, data: st.DataObject, outcome: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.script.running)))
        self.script.tell(name, outcome)
        self.crashes += outcome not in ("done", "compile")
        until(lambda: self.script.running.get(name) is None)
        self.settle()

    @invariant()
    def no_key_is_compiled_twice_at_once(self) -> None:
        assert self.script.twice == []
        assert len(self.script.running) <= 2

    @invariant()
    def crashes_are_counted(self) -> None:
        counted = sum(n for reason, n in self.supplier.stats.errors.items() if reason.startswith("worker-"))
        assert counted == self.crashes

    @invariant()
    def every_request_is_under_way_or_answered(self) -> None:
        assert {key for key, count in self.asked.items() if count} == set(self.supplier._flights._flights)

    def settle(self) -> None:
        """Step until nothing changes any more but by the workers' doing, or by time."""
        until(lambda: self.step() and self.quiet())

    def step(self) -> bool:
        for result in self.supplier.ready():
            assert self.asked[result.key] == 1
            self.asked[result.key] = 0
            if isinstance(result, Supplied):
                assert result.graph()[0] == str(result.key)
            else:
                assert isinstance(result, Failed)
                assert result.reason in ("compile", "crashed", "hung", "memory", "start")
        return True

    def quiet(self) -> bool:
        flights = list(self.supplier._flights._flights.values())
        at_work = {flight.key for flight in flights if str(flight.key) in self.script.running}
        free = len(at_work) < 2
        waiting = [flight for flight in flights if flight.key not in at_work]
        return all(
            flight.stage is Stage.WORKER and (not free or flight.not_before > self.now) for flight in waiting
        )

    def teardown(self) -> None:
        self.supplier.close()
        assert not any(thread.is_alive() for thread in self.supplier._threads)


SupplierMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestSupplier = SupplierMachine.TestCase
