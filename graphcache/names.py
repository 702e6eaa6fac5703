"""The tables in which policies, evictions, ladders and backends are found by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from graphcache.errors import ConfigError, UnknownNameError


class NameTable:
    """An explicit table of names, each of one ``module:Attribute``, which is imported when it is asked for.

    Entry points of ``group`` extend the table, and can't replace what is in it; a name with a colon in it
    is a ``module:Attribute`` itself, such as ``my_package.policies:MyPolicy``.
    """

    __slots__ = ("group", "targets", "what")

    def __init__(self, what: str, group: str, targets: Mapping[str, str]) -> None:
        self.what = what
        self.group = group
        self.targets = dict(targets)

    def __iter__(self) -> Iterator[str]:
        """Yield every known name: the table's own in its order, then those of installed packages."""
        yield from self.targets
        yield from sorted(self._entry_points().keys() - self.targets.keys())

    def check(self, name: str) -> None:
        """Make sure that the name is known, importing nothing; ``module:Attribute`` is taken on trust.

        Raises:
            UnknownNameError: no table holds the name; the known ones are in the message.
        """
        if name not in self.targets and ":" not in name and name not in self._entry_points():
            raise UnknownNameError.among(self.what, name, self)

    def find(self, name: str) -> Any:
        """Import what the name stands for.

        Raises:
            UnknownNameError: no table holds the name, or its module has no such attribute.
            ConfigError: its module can't be imported; the cause is in the message.
        """
        self.check(name)
        target = self.targets.get(name) or (name if ":" in name else self._entry_points()[name].value)
        module, _, attribute = target.partition(":")
        try:
            found: Any = import_module(module)
        except Exception as error:  # whatever a user's module raises is about this name
            raise ConfigError(f"{self.what}: {name!r} can't be imported: {error}") from error
        try:
            for part in attribute.split("."):
                found = getattr(found, part)
        except AttributeError:
            raise UnknownNameError(f"{self.what}: {module!r} has no attribute {attribute!r}") from None
        return found

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


POLICIES = NameTable(
    "policy",
    "graphcache.policies",
    {
        "static-mask": "graphcache.policy.static_mask:StaticMask",
        "static-causal": "graphcache.policy.static_causal:StaticCausal",
        "dynamic-dual": "graphcache.policy.dynamic_dual:DynamicDual",
        "rows-causal": "graphcache.policy.rows_causal:RowsCausal",
        "adaptive": "graphcache.policy.adaptive:Adaptive",
    },
)

EVICTIONS = NameTable(
    "eviction",
    "graphcache.evictions",
    {
        "lru": "graphcache.eviction.lru:Lru",
        "lfu": "graphcache.eviction.lfu:Lfu",
        "saved-seconds": "graphcache.eviction.saved_seconds:SavedSeconds",
    },
)

LADDERS = NameTable(
    "ladder",
    "graphcache.ladders",
    {
        "pow2": "graphcache.ladder:Ladder.pow2",
        "linear": "graphcache.ladder:Ladder.linear",
        "explicit": "graphcache.ladder:Ladder",
        "learned": "graphcache.learned_ladder:learn_ladder",
    },
)

BACKENDS = NameTable(
    "backend",
    "graphcache.backends",
    {
        "inductor": "graphcache.backends.inductor:InductorBackend",
        "eager": "graphcache.backends.eager:EagerBackend",
        "callable": "graphcache.backends.lazy:CallableBackend",
        "dynamo": "graphcache.backends.dynamo:DynamoBackend",
        "xla": "graphcache.backends.xla:XlaBackend",
    },
)
