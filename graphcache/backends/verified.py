"""A backend around another that compares a share of the loaded graphs, by value, with the model itself."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from graphcache.backends.eager import EagerBackend
from graphcache.backends.program import Program
from graphcache.backends.protocol import Artifact, Backend, Graph
from graphcache.errors import ConfigError, LoadError
from graphcache.key import GraphKey

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Per dtype, the largest difference that is rounding, as a share of the largest value; else bit by bit."""

log = logging.getLogger("graphcache")


class VerifiedBackend:
    """Loads as ``inner`` does, and runs ``share`` of the graphs from a store beside the eager model.

    Both get copies of the program's inputs for the key, so that nothing live is changed; the copies take
    memory for as long as the comparison does.  ``chance`` returns numbers in [0, 1): where ranks run graphs
    together it must return the same on all of them.

    Raises:
        ConfigError: a share outside of [0, 1].
    """

    def __init__(
        self,
        inner: Backend,
        program: Program,
        share: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not 0 <= share <= 1:
            raise ConfigError.of("verify_sample", share, "a share from 0 to 1")
        self.inner = inner
        self.name = inner.name
        self.persists = inner.persists
        self.evict_unit = inner.evict_unit
        self._program = program
        self._reference = EagerBackend(program)
        self._share = share
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        """Let the backend inside do what only it can, such as handing a compile to another process."""
        return getattr(self.inner, name)

    def fingerprint(self) -> list[tuple[str, str]]:
        """Return the facts of the backend inside: comparing changes no code."""
        return self.inner.fingerprint()

    def compile(self, key: GraphKey) -> Artifact:
        """Compile one graph as the backend inside does."""
        return self.inner.compile(key)

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        """Load a graph, and now and then compare it.

        Raises:
            LoadError: it can't be loaded, or computes something else than the model.
        """
        graph = self.inner.load(key, artifact)
        if artifact.payload is not None and self._chance() < self._share:
            self._compare(key, graph)
        return graph

    def _compare(self, key: GraphKey, graph: Graph) -> None:
        expected = self._run(key, self._reference.load(key, self._reference.compile(key)))
        found = self._run(key, graph)
        wrong = [
            n for n, (ours, theirs) in enumerate(zip(found, expected, strict=False)) if not same(ours, theirs)
        ]
        if not wrong and len(found) == len(expected):
            return
        number = wrong[0] if wrong else min(len(found), len(expected))
        message = f"{key}: tensor {number} of the stored graph's results is not what the model computes"
        log.error("%s; the entry is removed and the graph compiled anew", message)
        raise LoadError(message)

    def _run(self, key: GraphKey, graph: Graph) -> list[Any]:
        """Return all tensors that a graph returns, then its inputs, some of which it may change."""
        inputs = tuple(tensor.clone() for tensor in self._program.inputs(key))
        return [*pytree.tree_leaves(graph(*inputs)), *inputs]


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Say whether two tensors are equal but for rounding (`TOLERANCES`); NaN equals NaN."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    tolerance = TOLERANCES.get(theirs.dtype)
    if tolerance is None or not theirs.numel():
        return torch.equal(ours, theirs)
    scale = theirs.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    return torch.allclose(ours, theirs, rtol=0.0, atol=tolerance * max(scale, 1e-30), equal_nan=True)
