"""The ``callable`` backend: functions that a model runner makes, such as those of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graphcache.backends.protocol import Artifact, EvictUnit, Graph
from graphcache.errors import ConfigError, LoadError
from graphcache.key import GraphKey


class CallableBackend:
    """Takes each graph from ``make``: a callable that has been run once on dummies of the key's shapes.

    That is how backends that compile on the first call hand over something compiled.  ``facts`` are whatever
    changes the code; ``nbytes`` says what one graph holds; ``drop`` lets one go, and without it nothing is
    freed (`EvictUnit.NEVER`).  Nothing persists but the record of what was compiled.

    Raises:
        ConfigError: ``make`` can't be called, or an ``evict_unit`` that frees, and no ``drop`` that would.
    """

    name = "callable"
    persists = False

    def __init__(
        self,
        make: Callable[[GraphKey], Callable[..., Any]],
        *,
        facts: Iterable[tuple[str, str]] = (),
        nbytes: Callable[[GraphKey], int] = lambda key: 0,
        drop: Callable[[GraphKey], None] | None = None,
        evict_unit: EvictUnit | str | None = None,
    ) -> None:
        if not callable(make):
            raise ConfigError.of("make", make, "a function from a key to a callable")
        self._make = make
        self._facts = list(facts)
        self._nbytes = nbytes
        self._drop = drop
        self.evict_unit = EvictUnit(evict_unit or (EvictUnit.ENTRY if drop else EvictUnit.NEVER))
        if drop is None and self.evict_unit is not EvictUnit.NEVER:
            raise ConfigError.of("evict_unit", str(self.evict_unit), "never, where nothing is given as drop")

    def fingerprint(self) -> list[tuple[str, str]]:
        """Return the facts that were given."""
        return [("backend", self.name), *self._facts]

    def compile(self, key: GraphKey) -> Artifact:
        """Have the key's callable made.

        Raises:
            Exception: whatever the maker says.
        """
        return Artifact(live=self._make(key))

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        """Return the callable as a graph.

        Raises:
            LoadError: the artifact is not this process's.
        """
        run, drop = artifact.live, self._drop
        if run is None:
            raise LoadError(f"{key}: a callable does not outlive its process")
        return Graph(run, nbytes=self._nbytes(key), close=(lambda: drop(key)) if drop else (lambda: None))
