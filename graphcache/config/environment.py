"""The environment variables that configure this package; nothing else reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLES = {
    "GRAPHCACHE_POLICY": "a shipped policy's name, or the path of a YAML file",
    "GRAPHCACHE_PLATFORM": "`cpu` makes vLLM run through this package on a CPU host",
    "GRAPHCACHE_DISABLE": "`1` makes the model run as it would without this package",
    "GRAPHCACHE_STORE": "directory of the artifact store, wherever a configuration names none",
}
"""Every variable, and what it says; one that is empty is one that is not set."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says: a field for each of `VARIABLES`."""

    policy: str | None = None
    platform: str | None = None
    disabled: bool = False
    store: Path | None = None
    snapshots: Path | None = None
    shared_metrics: bool = False

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Read the process's variables, or those given; an empty one is one that is not set."""
        variables = os.environ if variables is None else variables
        store, snapshots = variables.get("GRAPHCACHE_STORE"), variables.get("GRAPHCACHE_SNAPSHOTS")
        return cls(
            policy=variables.get("GRAPHCACHE_POLICY") or None,
            platform=variables.get("GRAPHCACHE_PLATFORM") or None,
            disabled=variables.get("GRAPHCACHE_DISABLE", "").lower() not in ("", "0", "false", "no"),
            store=Path(store) if store else None,
            snapshots=Path(snapshots) if snapshots else None,
            shared_metrics=bool(variables.get("PROMETHEUS_MULTIPROC_DIR")),
        )


def hand_down_snapshots(directory: Path) -> None:
    """Tell the processes that this one starts where snapshots are written."""
    os.environ["GRAPHCACHE_SNAPSHOTS"] = str(directory)
