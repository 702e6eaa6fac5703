"""The environment variables that configure this package; nothing else reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says.

    ``policy`` (`GRAPHCACHE_POLICY`) is a shipped policy's name or the path of a YAML file, ``platform``
    (`GRAPHCACHE_PLATFORM`) the vLLM platform asked for, ``disabled`` (`GRAPHCACHE_DISABLE`) whether the
    model runs as it would without this package, ``store`` (`GRAPHCACHE_STORE`) the directory of the
    artifact store wherever a configuration gives none.
    """

    policy: str | None = None
    platform: str | None = None
    disabled: bool = False
    store: Path | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Read the process's variables, or those given; an empty one is one that is not set."""
        variables = os.environ if variables is None else variables
        store = variables.get("GRAPHCACHE_STORE")
        return cls(
            policy=variables.get("GRAPHCACHE_POLICY") or None,
            platform=variables.get("GRAPHCACHE_PLATFORM") or None,
            disabled=variables.get("GRAPHCACHE_DISABLE", "").lower() not in ("", "0", "false", "no"),
            store=Path(store) if store else None,
        )
