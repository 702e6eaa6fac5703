"""The facts that decide whether a compiled artifact may be used, and their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TypeAlias

from graphcache._version import CODEGEN_VERSION
from graphcache.key import GraphKey

Facts: TypeAlias = tuple[tuple[str, str], ...]
"""Ordered, labelled facts: everything constant in a process that changes compiled code."""


def facts(*groups: Iterable[tuple[str, str]]) -> Facts:
    """Join groups of facts in order, this package's own first.

    Raises:
        ValueError: two facts have one label, so that one would hide the other.
    """
    joined = (("codegen", str(CODEGEN_VERSION)), *(fact for group in groups for fact in group))
    labels = [label for label, _ in joined]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two namespace facts are called {label!r}")
    return joined


def digest(*parts: str) -> str:
    """Return the SHA-256 of the parts, in hex; parts can't run into one another."""
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def namespace_digest(facts: Facts) -> str:
    """Return the digest of a namespace's facts, in their order."""
    return digest(*(part for fact in facts for part in fact))


def entry_digest(namespace: str, key: GraphKey) -> str:
    """Return the digest under which a store keeps one key's artifact in one namespace."""
    return digest(namespace, str(key))
