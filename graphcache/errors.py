"""Every error this package raises on purpose.

::

    GraphCacheError
    ├── ConfigError        a configuration, argument or key that is wrong: names field, value, what is allowed
    │   ├── LadderError    a length above the ladder's top, or a ladder that does not increase
    │   ├── PolicyError    a policy that can't serve the batch it was given
    │   └── UnknownNameError  a policy, eviction, ladder or backend that no table holds
    ├── BudgetError        a graph that can't fit beside what is in use
    │   └── TooLargeError  one that can't fit, whatever is evicted
    ├── CompileError       the compiler failed: carries the key and the compiler's own message
    ├── WorkerError        a compile worker died, hung, grew too large, or says what its compiler said
    ├── LoadError          an artifact that can't be bound to this process
    │   └── HostError      nothing can be loaded here, through no fault of the artifact: `noexec`, no space
    ├── FrozenError        a graph was missing after `freeze` with `on_miss: raise`
    ├── ClosedError        the cache was used after `close`
    └── StoreError         the store can't be used: wrong owner, newer version, no such directory
        ├── StoreFullError     no space, or over the quota
        └── CorruptError       an entry that is not what it says it is
"""

from __future__ import annotations

from collections.abc import Iterable


class GraphCacheError(Exception):
    """The root of every error of this package."""


class ConfigError(GraphCacheError, ValueError):
    """A wrong configuration, argument or key."""

    @classmethod
    def of(cls, field: str, value: object, allowed: str) -> ConfigError:
        """Build the error from what every such message must name."""
        return cls(f"{field}: {value!r} is not allowed; allowed: {allowed}")


class LadderError(ConfigError):
    """A length above the ladder's top, or sizes that do not make a ladder."""


class PolicyError(ConfigError):
    """A policy that can't serve the batch it was given, as configured."""


class UnknownNameError(ConfigError):
    """A name that no table holds."""

    @classmethod
    def among(cls, what: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Name the known ones, so that a typo is seen at once."""
        return cls(f"{what}: {name!r} is not known; known: {', '.join(sorted(known))}")


class BudgetError(GraphCacheError):
    """A graph that can't fit into the budget beside what is in use."""


class TooLargeError(BudgetError):
    """A graph that can't fit into the budget, whatever is evicted."""


class CompileError(GraphCacheError):
    """The compiler failed on one key."""

    def __init__(self, key: object, cause: object) -> None:
        super().__init__(f"compiling {key} failed: {cause}")
        self.key = key
        self.cause = cause


class WorkerError(GraphCacheError):
    """A compile worker came to nothing: ``crashed``, ``hung``, ``memory``, ``start``, or ``compile``."""

    def __init__(self, message: str, reason: str = "crashed") -> None:
        super().__init__(message)
        self.reason = reason


class LoadError(GraphCacheError):
    """An artifact that can't be loaded, or bound to this process's weights."""


class HostError(LoadError):
    """Nothing can be loaded on this host, through no fault of the artifact's."""


class FrozenError(GraphCacheError):
    """A graph was missing after the cache was frozen with ``on_miss: raise``."""


class ClosedError(GraphCacheError):
    """The cache was used after it was closed."""


class StoreError(GraphCacheError):
    """The store can't be used."""


class StoreFullError(StoreError):
    """No space is left for an entry: the disk's, or the store's ``max_bytes``."""


class CorruptError(StoreError):
    """An entry is not what it says it is: cut, changed, or another key's."""
