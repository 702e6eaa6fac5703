"""How a process of vLLM tells the one that started it what it does: a JSON object a line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any, TypeAlias

Emit: TypeAlias = Callable[[dict[str, Any]], None]


def take_stdout() -> Emit:
    """Keep standard output for events alone: whatever else is printed goes where errors go."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lambda event: print(json.dumps(event), file=events, flush=True)


def tell_warm_up(emit: Emit) -> None:
    """Tell of each graph as its warm-up begins."""

    class Forward(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            key, index, count = record.args  # type: ignore[misc]
            emit({"event": "warm", "key": str(key), "index": index, "of": count})

    logger = logging.getLogger("graphcache.warm")
    logger.setLevel(logging.INFO)
    logger.addHandler(Forward())
