"""What a cache decides over one stream of batches, with any backend behind it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

from graphcache.backends.lazy import CallableBackend
from graphcache.backends.protocol import Artifact, Backend, Graph
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.config.build import build_policy
from graphcache.config.model import Config
from graphcache.key import GraphKey
from graphcache.names import EVICTIONS, POLICIES
from graphcache.policy.protocol import Budget
from graphcache.stats import Stats

COMBINATIONS = list(product(POLICIES, EVICTIONS))
"""Every policy with every eviction."""

LADDER = {"kind": "explicit", "sizes": [16, 32, 64]}
STEPS = 25


class Remembering:
    """A backend that compiles each key once, so that a graph let go costs a test nothing to have again."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name, self.persists, self.evict_unit = backend.name, False, backend.evict_unit
        self.fingerprint = backend.fingerprint
        self.graphs: dict[GraphKey, Graph] = {}

    def compile(self, key: GraphKey) -> Artifact:
        if key not in self.graphs:
            self.graphs[key] = self.backend.load(key, self.backend.compile(key))
        return Artifact(live=self.graphs[key])

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        return Graph(artifact.live)


def decisions(
    policy: str, eviction: str, backend: Backend, inputs: Callable[[GraphKey], tuple[Any, ...]]
) -> list[Any]:
    """Return, for each step of the stream, what was asked for, what ran, and what was resident then."""
    config = Config.model_validate({"policy": policy, "eviction": eviction, "ladder": LADDER, "store": None})
    stats = Stats(strict=True)
    supplier = InlineSupplier(backend, stats=stats)
    cache = GraphCache(
        build_policy(config, config.ladders()),
        supplier,
        budget=Budget(graphs=3),
        evict_unit=backend.evict_unit,
        stats=stats,
    )
    draw, trace = random.Random(0), []
    for _ in range(STEPS):
        count = draw.choice((1, 1, 2, 3))
        with cache.step(Batch.of(draw.randint(1, 64 // count) for _ in range(count))) as step:
            for launch in step:
                launch.graph(*inputs(launch.key))
                trace.append((launch.wanted, launch.key, launch.sequences, launch.layout))
        trace.append(tuple(cache.resident))
    cache.close()
    return trace


def expected(policy: str, eviction: str) -> list[Any]:
    """Return what is decided where nothing is compiled at all."""
    return decisions(
        policy, eviction, CallableBackend(lambda key: len, drop=lambda key: None), lambda key: ((),)
    )
