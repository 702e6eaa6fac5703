"""What it costs to find a batch's graph: a step of this package beside other ways to look a graph up."""

from __future__ import annotations

import functools
import logging
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from graphcache.backends.lazy import CallableBackend
from graphcache.batch import Batch
from graphcache.bench.timing import Work, least
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.ladder import Ladder
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Ladders

LADDER = Ladder.pow2(128, 16384)
BURST = 64
"""Batches that one repeat looks up; few, so that some repeats are not interrupted."""
SECONDS = 1e-3
"""What a run is said to have taken: run seconds are counted."""

Lookup = Callable[[Batch], object]


def warm_cache() -> GraphCache:
    """Return a cache of two graphs for each length of the ladder, all resident."""
    backend = CallableBackend(lambda key: lambda: None)
    cache = GraphCache(DynamicDual(Ladders(LADDER)), InlineSupplier(backend), evict_unit=backend.evict_unit)
    cache.warm()
    return cache


def steps(cache: GraphCache, batches: Iterable[Batch]) -> None:
    """Take each batch's step as a runner does, but run no graph."""
    for batch in batches:
        with cache.step(batch) as step:
            for launch in step:
                step.ran(launch, SECONDS)


def measure(repeats: int = 400, seed: int = 0) -> dict[str, float | None]:
    """Return microseconds a batch, the least of many short repeats; None where something is not installed.

    ``ours_us`` is a whole step of one sequence, with all that is counted in it; ``ours_eight_us`` the same
    of eight sequences whose lengths never came before.  The others look a batch of one sequence up, and
    count nothing.  ``torch_compile_us`` is what a call takes longer through a function that was compiled
    for all these shapes.
    """
    chance = random.Random(seed)
    cache, lone = warm_cache(), _lone(chance)
    fresh = iter([[_eight(chance) for _ in range(BURST)] for _ in range(repeats)])
    works: dict[str, Work] = {
        "ours": lambda: steps(cache, lone),
        "ours_eight": lambda: steps(cache, next(fresh)),
        "lru_cache": _looking_up(_lru_cache(), lone),
    }
    if find_spec("cachetools"):
        works["cachetools"] = _looking_up(_cachetools(), lone)
    if find_spec("vllm"):
        works["vllm_dispatcher"] = _looking_up(_vllm_dispatcher(), lone)
    if find_spec("torch"):
        works["torch_compile"], works["plain"] = _torch_compile(lone)
    seconds = least(works, repeats)
    if "plain" in seconds:
        seconds["torch_compile"] -= seconds.pop("plain")
    names = ("ours", "ours_eight", "torch_compile", "vllm_dispatcher", "lru_cache", "cachetools")
    return {f"{name}_us": seconds[name] / BURST * 1e6 if name in seconds else None for name in names}


def _lone(chance: random.Random) -> list[Batch]:
    """Return batches of one sequence, as many of each bucket."""
    tops = [LADDER.sizes[index % len(LADDER)] for index in range(BURST)]
    return [Batch.of([chance.randint(top // 2 + 1, top)]) for top in tops]


def _eight(chance: random.Random) -> Batch:
    return Batch.of(chance.randint(1, LADDER.top // 8) for _ in range(8))


def _looking_up(lookup: Lookup, batches: Sequence[Batch]) -> Work:
    def work() -> None:
        for batch in batches:
            lookup(batch)

    return work


def _find(length: int, several: bool) -> tuple[int, bool]:
    """Stand for a graph's compilation."""
    return length, several


def _lru_cache() -> Lookup:
    sizes, find = LADDER.sizes, functools.lru_cache(maxsize=64)(_find)
    return lambda batch: find(sizes[bisect_left(sizes, batch.tokens)], len(batch.sequences) > 1)


def _cachetools() -> Lookup:
    from cachetools import LRUCache, cached

    sizes = LADDER.sizes
    graphs: LRUCache[Any, Any] = LRUCache(maxsize=64)
    find = cached(graphs)(_find)
    return lambda batch: find(sizes[bisect_left(sizes, batch.tokens)], len(batch.sequences) > 1)


def _vllm_dispatcher() -> Lookup:
    with _without_warnings():  # of what this machine lacks for serving
        from graphcache.vllm.measure import graph_dispatcher

        dispatch = graph_dispatcher(LADDER.sizes)
    return lambda batch: dispatch(batch.tokens)


@contextmanager
def _without_warnings() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _torch_compile(batches: Sequence[Batch]) -> tuple[Work, Work]:
    """Return the calls of a compiled function, and of the plain one, on tensors without elements."""
    import torch

    def plain(x: Any, mask: Any) -> Any:
        return x + 1 if mask is None else x + mask

    compiled = torch.compile(plain, backend="eager", dynamic=False)
    shapes = {length: torch.empty(length, 0) for length in LADDER.sizes}
    with torch._dynamo.config.patch(recompile_limit=4 * len(LADDER)), torch.no_grad():
        for x in shapes.values():
            compiled(x, None)
            compiled(x, x)
    inputs = [shapes[LADDER.bucket(batch.tokens)] for batch in batches]

    def calls(function: Callable[..., object]) -> Work:
        def work() -> None:
            with torch.no_grad():
                for x in inputs:
                    function(x, None)

        return work

    return calls(compiled), calls(plain)
