"""Entries whose right bytes are known without the store, so that nothing is taken at its word."""

from __future__ import annotations

import hashlib

from graphcache.errors import CorruptError
from graphcache.fingerprint import digest
from graphcache.store.protocol import Record, Store, Stored
from graphcache.torture.outcome import Broke, expect

NAMESPACE = "torture"


def name(number: int) -> str:
    """Return the digest of an entry."""
    return digest(NAMESPACE, _key(number))


def right_payload(number: int, version: int, nbytes: int) -> bytes:
    """Return the bytes that one version of an entry has."""
    return hashlib.shake_256(f"{number}/{version}".encode()).digest(nbytes)


def put(
    store: Store, number: int, version: int = 0, nbytes: int = 20_000, group: tuple[str, ...] = ()
) -> None:
    """Put one version of an entry."""
    payload = right_payload(number, version, nbytes)
    record = Record.of(NAMESPACE, _key(number), payload, meta={"version": version}, seconds=1.0, group=group)
    store.put(name(number), record, payload)


def check(store: Store, number: int) -> int | None:
    """Return the version of an entry that the store serves, None for a miss.

    Raises:
        Broke: what it serves is not what was written.
        CorruptError: it says itself that the entry was bad.
    """
    stored = store.get(name(number))
    if stored is None:
        return None
    expect(is_right(stored, number), f"wrong bytes were served for entry {number}")
    return int(stored.record.meta["version"])


def is_right(stored: Stored, number: int) -> bool:
    """Say whether an entry is whole, by making its bytes again."""
    version = stored.record.meta.get("version")
    right = right_payload(number, version, len(stored.payload)) if isinstance(version, int) else b""
    return stored.record.key == _key(number) and stored.payload == right


def check_replaced(store: Store, number: int) -> None:
    """See that a damaged entry is a miss, and that the next put takes its place.

    Raises:
        Broke: it was served, stayed damaged, or could not be replaced.
    """
    try:
        expect(check(store, number) is None, f"entry {number} was damaged, and is served all the same")
    except CorruptError:
        expect(_second_look(store, number) is None, f"entry {number} is bad, and stays in the way")
    put(store, number, version=9)
    expect(check(store, number) == 9, f"entry {number} was bad, and can't be replaced")


def _second_look(store: Store, number: int) -> int | None:
    try:
        return check(store, number)
    except CorruptError as error:
        raise Broke(f"entry {number} was bad, and was not put aside: {error}") from error


def _key(number: int) -> str:
    return f"prefill/causal/1x{number + 1}"
