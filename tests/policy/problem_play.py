"""A problem's batches played through a policy, as the cache would with compiles in line."""

from __future__ import annotations

from graphcache.batch import Batch
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.policy.protocol import Budget, Evict, Ladders, View
from graphcache.problem import BatchType, Problem, Schedule

SIZES = [128, 256, 512, 1024]
MODES = (MaskMode.CUSTOM, MaskMode.CAUSAL)
LADDERS = Ladders(Ladder(SIZES))
TYPES = [BatchType(size, single) for size in SIZES for single in (False, True)]
KEYS = [GraphKey(1, size, mode=mode) for size in SIZES for mode in MODES]


class TableCosts:
    """Masks cost half as much again; compiles all the same."""

    def __init__(self, compile_seconds: float = 60.0, nbytes: int = 0) -> None:
        self.seconds, self.bytes_per_token = compile_seconds, nbytes

    def run_seconds(self, key: GraphKey) -> float:
        return key.rows * key.seq_len / 256 * (1.5 if key.mode is MaskMode.CUSTOM else 1.0)

    def compile_seconds(self, key: GraphKey) -> float:
        return self.seconds

    def load_seconds(self, key: GraphKey) -> float:
        return 0.0

    def nbytes(self, key: GraphKey) -> int:
        return self.bytes_per_token * key.seq_len


def batch_of(kind: BatchType) -> Batch:
    return Batch.of([kind.seq_len] if kind.single else [1, kind.seq_len - 1])


def problem(batches, budget, costs=None) -> Problem:
    return Problem.of(KEYS, TYPES, costs or TableCosts(), budget, batches)


def play(policy, problem: Problem, saved=None, costs=None):
    """Return the schedule and the last state; a graph that is loaded early is there one batch later.

    With room for one graph only, it may leave for another at the same batch, which no schedule can say.
    """
    costs = costs or TableCosts()
    state, resident, due = policy.start(saved), {}, []
    served, compiled, dropped = [], {}, {}
    number = {key: index for index, key in enumerate(problem.keys)}

    def view():
        return View(dict(resident), problem.budget, costs)

    def admit(key, step, state):
        while not problem.admits([*(number[k] for k in resident), number[key]]):
            gone = policy.victim(state, key, list(resident), view())
            del resident[gone]
            dropped[step] = (*dropped.get(step, ()), number[gone])
        resident[key] = costs.nbytes(key)
        compiled[step] = (*compiled.get(step, ()), number[key])
        return policy.inserted(state, key, view())

    for step, kind in enumerate(problem.batches.tolist()):
        for action in due:
            assert not isinstance(action, Evict)
            if action.key not in resident:
                state = admit(action.key, step, state)
        batch, now = batch_of(problem.types[kind]), view()
        plan = policy.plan(batch, now, state)
        (launch,) = plan.launches
        if launch.key not in resident:
            state = admit(launch.key, step, state)
            now = view()
        state, due = policy.advance(state, batch, plan, now)
        served.append(number[launch.key])
    return Schedule(served, compiled, dropped), state


BUDGETS = [Budget(2), Budget(3), Budget(8), Budget()]
