"""Print, as JSON, what each class of the plugin overrides in the installed vLLM, and whether it fits."""

from __future__ import annotations

import inspect
import json
from typing import Any

FREE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def classes() -> list[type]:
    from graphcache.vllm import attention, collectives, norm, platform, runner, worker

    return [
        platform.GraphCachePlatform,
        worker.GraphCacheWorker,
        runner.GraphCacheModelRunner,
        attention.RowAttentionBackend,
        attention.RowAttention,
        attention.BatchMetadataBuilder,
        norm.ExportableRMSNorm,
        collectives.GraphCommunicator,
    ]


def inherited(cls: type, name: str) -> Any:
    """Return what ``name`` is in the bases, or None."""
    for base in cls.__mro__[1:]:
        if name in vars(base):
            return getattr(base, name)
    return None


def misfit(ours: Any, theirs: Any) -> str:
    """Say how a call that vLLM makes could fail on ours; nothing if it can't."""
    if isinstance(theirs, property) or not callable(theirs):
        return ""
    mine, asked = (list(inspect.signature(function).parameters.values()) for function in (ours, theirs))
    named = [[p.name for p in parameters if p.kind not in FREE] for parameters in (mine, asked)]
    if any(parameter.kind in FREE for parameter in asked):
        return ""
    if any(parameter.kind in FREE for parameter in mine):
        named[1] = named[1][: len(named[0])]
    return "" if named[0] == named[1] else f"vLLM has {named[1]}, the plugin {named[0]}"


def report(cls: type) -> dict[str, Any]:
    """Sort a class's own attributes into overriding ones, new ones, and those that do not fit."""
    names = [
        name for name in vars(cls) if callable(getattr(cls, name)) or isinstance(vars(cls)[name], property)
    ]
    names = [name for name in names if not name.startswith("__") or name == "__init__"]
    overriding = [name for name in names if inherited(cls, name) is not None]
    misfits = {name: misfit(getattr(cls, name), inherited(cls, name)) for name in overriding}
    return {
        "overrides": sorted(overriding),
        "new": sorted(set(names) - set(overriding)),
        "misfits": {name: why for name, why in misfits.items() if why},
    }


if __name__ == "__main__":
    print("RESULTS " + json.dumps({cls.__name__: report(cls) for cls in classes()}))
