"""What a cache is built of where several ranks must decide alike."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from graphcache.agree import AgreedLearner, Group, Talk
from graphcache.costs import CostLearner, Costs, CostTable, Measured
from graphcache.key import GraphKey


def agreed_manifest(manifest: dict[str, Any] | None, group: Group) -> dict[str, Any] | None:
    """Return rank 0's manifest, so that all ranks warm in one order and start from one state.

    Raises:
        GraphCacheError: a rank is gone.
    """
    return cast("dict[str, Any] | None", Talk(group).tell("manifest", manifest)[0])


def agreed_learner(learner: CostLearner, group: Group, prior: Costs) -> AgreedLearner:
    """Return a learner that gives all ranks what rank 0 has learned, on top of the same ``prior``."""
    latest = learner.snapshot()

    def pack(costs: Costs) -> Any:
        assert isinstance(costs, CostTable)
        return [costs.version, {str(key): asdict(measured) for key, measured in costs.measured.items()}]

    def unpack(told: Any) -> CostTable:
        nonlocal latest
        version, keys = told
        if version != latest.version:
            measured = {GraphKey.parse(text): Measured(**values) for text, values in keys.items()}
            latest = CostTable(measured, nominal=prior, shaped=True, name="learned", version=version)
        return latest

    return AgreedLearner(learner, group, pack, unpack)


def agreed_namespaces(namespace: str, group: Group) -> tuple[str, ...]:
    """Return the namespaces of all ranks: where code depends on the rank, each has one of its own."""
    return tuple(sorted(set(Talk(group).tell("namespace", namespace))))
