"""What a backend is: it compiles, saves and loads graphs, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from graphcache.key import GraphKey


class EvictUnit(StrEnum):
    """What is freed together."""

    ENTRY = "entry"
    """Each graph by itself."""
    GENERATION = "generation"
    """All graphs of one generation: dropping one can free memory that others still use."""
    NEVER = "never"
    """Nothing: a graph that is let go stays in memory, and is counted as retained."""


@dataclass(slots=True)
class Graph:
    """A loaded graph: callable, with what it holds.

    ``nbytes`` is what it holds while it is loaded, in bytes; ``generation`` tells graphs apart that are
    freed together.  ``close`` lets it go; it is called once, on the thread that runs graphs.
    """

    run: Callable[..., Any]
    nbytes: int = 0
    generation: int = 0
    close: Callable[[], None] = lambda: None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the graph."""
        return self.run(*inputs, **named)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a compile made: bytes that outlive the process, or an object that does not.

    ``payload`` is None where the backend's artifacts do not persist; then ``live`` holds the graph's own
    object.  ``meta`` is plain JSON kept in the entry's record.  ``reused`` says that nothing was compiled:
    the process still had it.
    """

    payload: bytes | None = None
    live: Any = None
    meta: dict[str, Any] = field(default_factory=dict)
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A compile that any process can do.

    ``task`` names a function, as ``module:function``; it is called with ``data`` and the named
    ``arguments``, plain JSON, and returns the artifact's payload.
    """

    task: str
    data: bytes
    arguments: dict[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """Compiles and loads the graphs of one model in one process."""

    name: str
    persists: bool
    """Whether artifacts outlive the process: else the store keeps only their records."""
    evict_unit: EvictUnit

    def fingerprint(self) -> list[tuple[str, str]]:
        """Return the ordered, labelled facts that change this backend's code, beside the key."""
        ...

    def compile(self, key: GraphKey) -> Artifact:
        """Compile one graph; may take minutes and is called on any thread, one key at a time.

        Raises:
            Exception: whatever the compiler says; the cache wraps it into `CompileError` with the key.
        """
        ...

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        """Make an artifact runnable, on the thread that runs graphs.

        Raises:
            LoadError: it does not fit this process: other weights, other shapes, another machine's code.
        """
        ...


class Detachable(Backend, Protocol):
    """A backend whose compiles can be done in other processes."""

    def job(self, key: GraphKey) -> Job:
        """Do what only this process can, such as tracing the live model, and return the rest as a job.

        Raises:
            Exception: whatever the tracer says; the cache wraps it into `CompileError` with the key.
        """
        ...
