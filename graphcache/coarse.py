"""A step in fewer graphs, where the budget has room for fewer than its plan asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from graphcache.batch import Plan
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.protocol import Budget


class Family(NamedTuple):
    """Graphs of which one that is large enough serves whatever the others do."""

    kind: str
    mode: MaskMode
    flags: tuple[str, ...]

    @classmethod
    def of(cls, key: GraphKey) -> Family:
        """Return a key's family: full rows of several lengths are padded rows to the graph for them all."""
        mode = MaskMode.PADDED if key.mode is MaskMode.BIDIRECTIONAL else key.mode
        return cls(key.kind, mode, key.flags)

    def __str__(self) -> str:
        flags = f"[{','.join(self.flags)}]" if self.flags else ""
        return f"{self.kind}/{self.mode}{flags}"


def joined(keys: Iterable[GraphKey]) -> dict[Family, GraphKey]:
    """Return, per family, the smallest graph that serves all of its keys.

    Its sizes are among theirs, and so on the ladders that theirs are on.
    """
    joins: dict[Family, GraphKey] = {}
    for key in keys:
        family = Family.of(key)
        other = joins.setdefault(family, key)
        joins[family] = replace(
            other,
            mode=family.mode,
            rows=max(key.rows, other.rows),
            seq_len=max(key.seq_len, other.seq_len),
            kv_len=max(key.kv_len, other.kv_len),
        )
    return joins


def within(plan: Plan, budget: Budget, sizes: Mapping[GraphKey, int]) -> Plan:
    """Return the plan itself if the budget has room for all that it asks for, else one graph a family.

    All graphs of a step are held at once, so that a plan for more than the budget has room for could never
    run.  ``sizes`` are the bytes of the graphs that are known.
    """
    keys = {launch.key for launch in plan.launches}
    graphs, nbytes = budget
    if graphs is not None and len(keys) > graphs:
        return fewest(plan)
    if nbytes is not None and sum(sizes.get(key, 0) for key in keys) > nbytes:
        return fewest(plan)
    return plan


def fewest(plan: Plan) -> Plan:
    """Return the plan with one graph a family for all of its launches: this costs padding."""
    joins = joined(launch.key for launch in plan.launches)
    return Plan(tuple(replace(launch, key=joins[Family.of(launch.key)]) for launch in plan.launches))
