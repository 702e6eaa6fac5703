"""Entries that tests of stores write and read."""

from __future__ import annotations

from typing import Any

from graphcache.fingerprint import digest
from graphcache.store.protocol import Record


def entry(
    number: int = 0, payload: bytes = b"payload", namespace: str = "ns", **said: Any
) -> tuple[str, Record, bytes]:
    """Return digest, record and payload of a made-up entry."""
    key = f"prefill/causal/1x{number}"
    return digest(namespace, key), Record.of(namespace, key, payload, **said), payload
