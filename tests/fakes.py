"""A backend and a store of a few lines, for tests of what stands between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from graphcache.backends.protocol import Artifact, EvictUnit, Graph
from graphcache.key import GraphKey


class FakeBackend:
    """Compiles a key to its own text; fails, or takes its time, as it is told."""

    name = "fake"
    persists = True

    def __init__(
        self,
        *,
        nbytes: Callable[[GraphKey], int] = lambda key: key.seq_len,
        evict_unit: EvictUnit = EvictUnit.ENTRY,
        on_compile: Callable[[GraphKey], None] = lambda key: None,
        on_load: Callable[[GraphKey], None] = lambda key: None,
        generation: Callable[[GraphKey], int] = lambda key: 0,
    ) -> None:
        self.evict_unit = evict_unit
        self.nbytes = nbytes
        self.on_compile = on_compile
        self.on_load = on_load
        self.generation = generation
        self.compiles: Counter[GraphKey] = Counter()
        self.loaded: Counter[GraphKey] = Counter()

    def fingerprint(self) -> list[tuple[str, str]]:
        return [("backend", self.name)]

    def compile(self, key: GraphKey) -> Artifact:
        self.compiles[key] += 1
        self.on_compile(key)
        return Artifact(payload=str(key).encode())

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        self.on_load(key)
        assert artifact.payload == str(key).encode()
        self.loaded[key] += 1

        def close() -> None:
            self.loaded[key] -= 1

        return Graph(
            run=lambda *inputs: (str(key), inputs),
            nbytes=self.nbytes(key),
            generation=self.generation(key),
            close=close,
        )
