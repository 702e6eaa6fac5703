"""Agreement among the ranks of one group: they run the same graphs in the same order, or none goes on.

What ranks could see differently (which background compile is done, what a store has, a failed load, measured
costs, a graph's bytes) enters a decision only through here, after all have told it to one another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graphcache.compile.protocol import Failed, Supplied, Supplier, Urgency
from graphcache.costs import Costs
from graphcache.errors import CompileError, GraphCacheError
from graphcache.key import GraphKey
from graphcache.step import Learner

EVERY_STEPS = 16


class Group(Protocol):
    """The ranks that must decide alike."""

    rank: int
    size: int

    def exchange(self, told: bytes) -> Sequence[bytes]:
        """Give what this rank tells, get what each rank told, in the order of ranks.

        Raises:
            GraphCacheError: a rank is gone, or did not answer in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Talk:
    """Plain JSON over a group, with the topic told along: ranks that are out of step find out."""

    group: Group

    def tell(self, topic: str, value: Any) -> list[Any]:
        """Return what each rank said on the topic, in the order of ranks.

        Raises:
            GraphCacheError: a rank is gone, did not answer in time, or talks of something else.
        """
        told = self.group.exchange(json.dumps([topic, value]).encode())
        heard = [json.loads(answer) for answer in told]
        topics = sorted({answer[0] for answer in heard})
        if topics != [topic]:
            raise GraphCacheError(f"the ranks are out of step: they talk of {', '.join(topics)}")
        return [answer[1] for answer in heard]


class AgreedSupplier:
    """Makes another supplier's answers the same on all ranks of a group.

    A graph that became ready in the background is handed over at the first multiple of ``every_steps`` calls
    of ``ready`` at which all ranks have it; one that failed on any rank fails on all.  ``fetch`` and
    ``stored`` wait for all ranks, which ask in the same order since they decide alike.
    """

    def __init__(self, supplier: Supplier, group: Group, *, every_steps: int = EVERY_STEPS) -> None:
        self.background = self.due = supplier.background
        self._supplier = supplier
        self._talk = Talk(group)
        self._every_steps = every_steps
        self._calls = 0
        self._here: dict[GraphKey, Supplied] = {}
        self._failed: dict[GraphKey, Failed] = {}

    def prepare(self, keys: Iterable[GraphKey]) -> int:
        """Do on this rank what can be done before serving."""
        return self._supplier.prepare(keys)

    def fetch(self, key: GraphKey) -> Supplied:
        """Load or compile one graph on every rank.

        Raises:
            CompileError: it failed here, or on another rank, whose rank and message are told.
            GraphCacheError: a rank is gone.
        """
        supplied, trouble = self._try(key)
        answers = self._talk.tell(f"fetch {key}", [trouble, supplied.graph.nbytes if supplied else 0])
        for rank, (message, _) in enumerate(answers):
            if message:
                self._drop(supplied)
                raise CompileError(key, f"rank {rank}: {message}")
        assert supplied is not None
        supplied.graph.nbytes = max(nbytes for _, nbytes in answers)
        return supplied

    def stored(self, key: GraphKey) -> bool:
        """Say whether every rank has an artifact."""
        return all(self._talk.tell(f"stored {key}", self._supplier.stored(key)))

    def request(self, key: GraphKey, urgency: Urgency = Urgency.UPGRADE) -> None:
        """Ask for one graph on this rank; the others do the same."""
        self._supplier.request(key, urgency)

    def ready(self) -> Sequence[Supplied | Failed]:
        """Hand over what all ranks have, every so many calls; else nothing."""
        self._calls += 1
        for item in self._supplier.ready():
            if isinstance(item, Failed):
                self._failed[item.key] = item
            else:
                self._here[item.key] = item
        if self._calls % self._every_steps:
            return ()
        return self._agree()

    def close(self) -> None:
        """Close the supplier, and what it had ready."""
        for supplied in self._here.values():
            self._drop(supplied)
        self._here.clear()
        self._supplier.close()

    def _agree(self) -> list[Supplied | Failed]:
        ready = {str(key): supplied.graph.nbytes for key, supplied in self._here.items()}
        failed = {str(key): str(item.error) for key, item in self._failed.items()}
        answers = self._talk.tell(f"ready {self._calls}", [ready, failed])
        broken_somewhere = sorted({key for _, broken in answers for key in broken})
        agreed: list[Supplied | Failed] = [self._fail(text, answers) for text in broken_somewhere]
        everywhere = set(answers[0][0]).intersection(*(there for there, _ in answers[1:]))
        for text in sorted(everywhere.difference(broken_somewhere)):
            supplied = self._here.pop(GraphKey.parse(text))
            supplied.graph.nbytes = max(there[text] for there, _ in answers)
            agreed.append(supplied)
        return agreed

    def _fail(self, text: str, answers: list[Any]) -> Failed:
        key = GraphKey.parse(text)
        self._drop(self._here.pop(key, None))
        own = self._failed.pop(key, None)
        rank, message = next((r, broken[text]) for r, (_, broken) in enumerate(answers) if text in broken)
        return own or Failed(key, "other-rank", CompileError(key, f"rank {rank}: {message}"))

    def _try(self, key: GraphKey) -> tuple[Supplied | None, str]:
        try:
            return self._supplier.fetch(key), ""
        except GraphCacheError as error:
            return None, str(error) or type(error).__name__

    def _drop(self, supplied: Supplied | None) -> None:
        if supplied is not None:
            supplied.graph.close()


class AgreedLearner:
    """Gives all ranks the costs that rank 0 has measured, so that they decide by the same table.

    ``pack`` and ``unpack`` turn a table into plain JSON values and back.
    """

    def __init__(
        self,
        learner: Learner,
        group: Group,
        pack: Callable[[Costs], Any],
        unpack: Callable[[Any], Costs],
    ) -> None:
        self._learner = learner
        self._talk = Talk(group)
        self._rank = group.rank
        self._pack = pack
        self._unpack = unpack

    def observe(self, key: GraphKey, seconds: float) -> None:
        """Take note of one run on this rank."""
        self._learner.observe(key, seconds)

    def supplied(self, key: GraphKey, source: str, seconds: float, nbytes: int) -> None:
        """Take note of a load or compile on this rank."""
        self._learner.supplied(key, source, seconds, nbytes)

    def snapshot(self) -> Costs:
        """Return rank 0's table."""
        mine = self._pack(self._learner.snapshot()) if self._rank == 0 else None
        return self._unpack(self._talk.tell("costs", mine)[0])
