"""The ``eager`` backend: the module as it is, uncompiled; the reference for every other backend."""

from __future__ import annotations

from typing import Any

import torch

from graphcache.backends.program import Program
from graphcache.backends.protocol import Artifact, EvictUnit, Graph
from graphcache.errors import LoadError
from graphcache.key import GraphKey


class EagerBackend:
    """Runs the model's own module for each key."""

    name = "eager"
    persists = False
    evict_unit = EvictUnit.ENTRY

    def __init__(self, program: Program) -> None:
        self.program = program

    def fingerprint(self) -> list[tuple[str, str]]:
        """Return the facts of torch and of the program."""
        return [("backend", self.name), ("torch", torch.__version__), *self.program.facts()]

    def compile(self, key: GraphKey) -> Artifact:
        """Return the key's module."""
        return Artifact(live=self.program.module(key))

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        """Return the module as a graph that holds nothing of its own.

        Raises:
            LoadError: the artifact is not this process's.
        """
        module = artifact.live
        if module is None:
            raise LoadError(f"{key}: an eager graph does not outlive its process")

        def run(*inputs: Any) -> Any:
            with torch.no_grad():
                return module(*inputs)

        return Graph(run)
