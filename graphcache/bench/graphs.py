"""The sample model's graphs, compiled once and kept in a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from graphcache.backends.inductor import InductorBackend
from graphcache.backends.protocol import Artifact, Graph
from graphcache.bench.sample import SampleProgram, Sizes, form_of
from graphcache.compile.inline import InlineSupplier
from graphcache.compile.protocol import Supplied
from graphcache.config import Environment
from graphcache.costs import Measured
from graphcache.key import GraphKey
from graphcache.stats import Stats
from graphcache.store.open import Opened, open_store


class FlexBackend(InductorBackend):
    """Compiles graphs with FlexAttention, whose exported program can't leave its process."""

    def __init__(self, program: SampleProgram, **options: Any) -> None:
        super().__init__(program, strict=True, **options)

    def compile(self, key: GraphKey) -> Artifact:
        """Export and compile one graph in this process.

        Raises:
            Exception: the exporter's or the compiler's own, with its own message.
        """
        from graphcache.backends.exported import compile_live

        return Artifact(payload=compile_live(self.program, key, self.target, self.options))


class SampleGraphs:
    """Graphs of one sample model; ``supplied`` tells where each came from, and what that took.

    ``stats`` counts faults of the store.
    """

    def __init__(self, program: SampleProgram, opened: Opened | None = None) -> None:
        self.program = program
        self.supplied: dict[GraphKey, Supplied] = {}
        self.stats = Stats()
        store, turn = (opened.store, opened.locks.turn) if opened else (None, None)
        backend = InductorBackend(program)
        self._plain = InlineSupplier(backend, store, stats=self.stats, exclusive=turn)
        self._flex = InlineSupplier(FlexBackend(program), store, stats=self.stats, exclusive=turn)
        self.described = (
            f"torch {torch.__version__}, {torch.get_num_threads()} threads on both sides of every ratio,"
            f" {backend.target.march}, {backend.target.isa}"
        )

    def __getitem__(self, key: GraphKey) -> Graph:
        """Load a graph from the store, or compile it and keep it there.

        Raises:
            CompileError: the compiler failed.
        """
        self.supplied[key] = (self._flex if form_of(key) == "flex" else self._plain).fetch(key)
        return self.supplied[key].graph

    def costs(self, key: GraphKey) -> Measured:
        """Return what is known of a graph that was asked for, but its run seconds."""
        supplied = self.supplied[key]
        return Measured(
            load_seconds=supplied.seconds if supplied.source == "load" else None,
            compile_seconds=supplied.saved_seconds + supplied.seconds,
            nbytes=supplied.graph.nbytes,
        )


@contextmanager
def sample_graphs(store: Path | None = None, sizes: Sizes | None = None) -> Iterator[SampleGraphs]:
    """Open the store at a path, by default the user's own, and the sample model's graphs in it.

    Raises:
        StoreError: the store can't be used.
    """
    with closing(open_store(store or Environment.read().store)) as opened, torch.no_grad():
        yield SampleGraphs(SampleProgram(sizes), opened)
