"""Graphs that compile themselves when they are called: what for, and what they compile later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from graphcache.errors import FrozenError
from graphcache.key import GraphKey
from graphcache.stats import Stats

logger = logging.getLogger("graphcache")

SAME_INPUTS = "the inputs are the same, not what else the code depends on (TORCH_LOGS=recompiles tells)"

Describe = Callable[[Any], str]
"""Says what of an input a graph is compiled for."""


class Cache(Protocol):
    """What a recompile is reported to: a `GraphCache`."""

    @property
    def on_miss(self) -> str:
        """What a miss does; ``raise`` where nothing may compile any more."""
        ...

    @property
    def stats(self) -> Stats:
        """Where it is counted."""
        ...


@runtime_checkable
class Watching(Protocol):
    """A backend whose graphs compile themselves, and that reports it."""

    def watch(self, cache: Any) -> None:
        """Report to this cache what is compiled without a miss, and obey its freeze."""
        ...


def describe(value: Any) -> str:
    """Return an input's dtype and shape, or the value itself where it is no tensor."""
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{str(value.dtype).removeprefix('torch.')}{list(shape)}"


def difference(expected: Sequence[str], given: Sequence[str]) -> str:
    """Say how the inputs of a call differ from those that a graph was compiled for, by their descriptions."""
    longest = max(len(expected), len(given))
    pairs = zip(*([*side, *["nothing"] * (longest - len(side))] for side in (expected, given)), strict=True)
    changed = [f"input {index}: {old} -> {new}" for index, (old, new) in enumerate(pairs) if old != new]
    return "; ".join(changed) or SAME_INPUTS


class Watch:
    """Reports what graphs compile behind the cache's back, and forbids it once the cache is frozen.

    Until ``cache`` is set there is nobody to report to but the log.
    """

    def __init__(self) -> None:
        self.cache: Cache | None = None

    @property
    def frozen(self) -> bool:
        """Say whether nothing may compile any more."""
        return self.cache is not None and self.cache.on_miss == "raise"

    def forbidden(self, key: GraphKey, why: str) -> FrozenError:
        """Return the error of a graph that would compile although the cache is frozen."""
        return FrozenError(f"{key} would be compiled again, and on_miss is raise: {why}")

    def report(self, key: GraphKey, why: str, seconds: float, compiles: int = 1) -> None:
        """Count compiles that no miss asked for, and name them."""
        logger.warning("%s was compiled again (%.2f s): %s", key, seconds, why)
        if self.cache is not None:
            counters = self.cache.stats.of(key)
            counters.compiles += compiles
            counters.compile_seconds += seconds
            counters.stalls += 1
            counters.stall_seconds += seconds
            self.cache.stats.event("recompile", key, why, seconds)


class Watched:
    """One key's callable, which compiles when it is called with what it does not know.

    ``inputs`` are those that it was compiled for, ``meter`` tells how much has been compiled by now, and
    ``free`` gives up what the callable holds.

    Raises on a call:
        FrozenError: the inputs differ, and the cache is frozen.
        Exception: the callable's own.
    """

    __slots__ = ("_call", "_describe", "_key", "_meter", "_watch", "expected", "free")

    def __init__(
        self,
        key: GraphKey,
        call: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        meter: Callable[[], int],
        watch: Watch,
        free: Callable[[], None] = lambda: None,
        describe: Describe = describe,
    ) -> None:
        self.free = free
        self.expected = [describe(value) for value in inputs]
        self._key = key
        self._call = call
        self._meter = meter
        self._watch = watch
        self._describe = describe

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph; count, name or forbid what it compiles."""
        if self._watch.frozen:
            self._check(inputs)
        compiled, began = self._meter(), time.perf_counter()
        outputs = self._call(*inputs)
        compiles = self._meter() - compiled
        if compiles:
            why = self.difference(inputs)
            self._watch.report(self._key, why, time.perf_counter() - began, compiles)
            if self._watch.frozen:
                raise self._watch.forbidden(self._key, why)
        return outputs

    def difference(self, inputs: Sequence[Any]) -> str:
        """Say how these inputs differ from those that the graph was compiled for."""
        return difference(self.expected, [self._describe(value) for value in inputs])

    def _check(self, inputs: Sequence[Any]) -> None:
        if [self._describe(value) for value in inputs] != self.expected:
            raise self._watch.forbidden(self._key, self.difference(inputs))
