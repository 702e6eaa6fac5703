"""Bundles: entries of a store in one file, to be carried to another.

::

    16 bytes   magic, format version (4, little-endian), zeros
    entries    each one byte ``E``, then an entry as `graphcache.store.format` has it
    trailer    one byte ``T``, the count of entries (8, little-endian), the SHA-256 of all before the
               trailer (32), and the seal of both (32; zeros where the bundle bears none)

A bundle is written and read in one pass.  It holds no path and nothing compressed, so there is nothing in
it that could leave the store or grow.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from graphcache.errors import CorruptError, StoreFullError
from graphcache.fingerprint import digest as digest_of
from graphcache.store.format import NewerFormatError, encode_header, read_header, read_payload, sealed_with
from graphcache.store.private import store_errors
from graphcache.store.protocol import Record, Store
from graphcache.store.sealed import SealKeys

BUNDLE_MAGIC = b"gcbundle"
BUNDLE_VERSION = 1
MAX_ENTRIES = 1 << 20

_HEAD = struct.Struct("<8sI4x")
_TRAILER = struct.Struct("<Q32s32s")


@dataclass(slots=True)
class Carried:
    """What was exported or imported, in entries and bytes of payload; ``left_out`` could not be read."""

    entries: int = 0
    nbytes: int = 0
    left_out: int = 0


class _Hashing:
    """Passes bytes through, both ways, and keeps their running digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.running = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.running.update(data)
        self._file.write(data)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.running.update(data)
        return data


def export_bundle(
    store: Store,
    file: BinaryIO,
    *,
    select: Callable[[str, Record], bool] = lambda digest, record: True,
    keys: SealKeys | None = None,
) -> Carried:
    """Write the entries that ``select`` picks, by digest and record, and seal them with ``keys``.

    Raises:
        StoreError: the store can't be read, or the file not written.
    """
    carried = Carried()
    with store_errors("writing the bundle"):
        out = _Hashing(file)
        out.write(_HEAD.pack(BUNDLE_MAGIC, BUNDLE_VERSION))
        for digest, record in store.scan():
            if select(digest, record):
                _export_entry(store, digest, out, keys, carried)
        checksum = out.running.digest()
        file.write(b"T" + _TRAILER.pack(carried.entries, checksum, _seal(keys, carried.entries, checksum)))
    return carried


def _export_entry(store: Store, digest: str, out: _Hashing, keys: SealKeys | None, carried: Carried) -> None:
    try:
        stored = store.get(digest)
    except CorruptError:
        stored = None
    if stored is None:
        carried.left_out += 1
        return
    record = keys.seal(stored.record) if keys else stored.record
    out.write(b"E" + encode_header(record))
    out.write(stored.payload)
    carried.entries += 1
    carried.nbytes += len(stored.payload)


def import_bundle(
    file: BinaryIO, store: Store, *, keys: SealKeys | None = None, max_bytes: int = 1 << 36
) -> Carried:
    """Put a bundle's entries into a store, each after it was verified, in one pass.

    With ``keys`` every entry, and the bundle, must bear a seal of one of them.  Without, whoever made the
    bundle can run code wherever the store is used.  ``max_bytes`` bounds all payloads together.

    Raises:
        CorruptError: it is no bundle, is cut or changed, or bears no seal; entries before the fault stay,
            as each of them was verified by itself.
        StoreFullError: it holds more than ``max_bytes``.
        StoreError: the store can't be written.
    """
    carried = Carried()
    source = _Hashing(file)
    with store_errors("reading the bundle"):
        _read_head(source)
        for record, payload in _read_entries(source, keys, carried, max_bytes):
            store.put(digest_of(record.namespace, record.key), sealed_with(record, ""), payload)
    return carried


def _read_head(source: _Hashing) -> None:
    head = source.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(BUNDLE_MAGIC):
        raise CorruptError("the file is not a bundle")
    _, version = _HEAD.unpack(head)
    if version != BUNDLE_VERSION:
        raise NewerFormatError.of("the bundle", version)


def _read_entries(
    source: _Hashing, keys: SealKeys | None, carried: Carried, max_bytes: int
) -> Iterator[tuple[Record, bytes]]:
    checksum = source.running.digest()
    while (tag := source.read(1)) == b"E":
        record = read_header(source)
        if keys and not keys.holds(record):
            raise CorruptError(f"the bundle's entry {record.key!r} bears no seal of a key given here")
        if record.payload_bytes > max_bytes - carried.nbytes or carried.entries >= MAX_ENTRIES:
            raise StoreFullError(f"the bundle holds more than {max_bytes} bytes or {MAX_ENTRIES} entries")
        payload = read_payload(source, record)
        checksum = source.running.digest()
        yield record, payload
        carried.entries += 1
        carried.nbytes += len(payload)
    _check_trailer(tag, source, keys, carried.entries, checksum)


def _check_trailer(
    tag: bytes, source: _Hashing, keys: SealKeys | None, entries: int, checksum: bytes
) -> None:
    trailer = source.read(_TRAILER.size)
    if tag != b"T" or len(trailer) < _TRAILER.size or source.read(1):
        raise CorruptError(f"the bundle is cut or changed after {entries} entries, which were taken")
    count, expected, seal = _TRAILER.unpack(trailer)
    if (count, expected) != (entries, checksum):
        raise CorruptError(
            f"the bundle says it holds {count} entries, and {entries} were read; they were taken"
        )
    if keys and not keys.signed(_signed_text(entries, checksum), seal.hex()):
        raise CorruptError("the bundle bears no seal of a key given here: entries may have been left out")


def _seal(keys: SealKeys | None, entries: int, checksum: bytes) -> bytes:
    return bytes.fromhex(keys.sign(_signed_text(entries, checksum))) if keys else bytes(32)


def _signed_text(entries: int, checksum: bytes) -> bytes:
    return b"bundle\n%d\n" % entries + checksum


def selection(keys: Collection[str], namespace: str | None = None) -> Callable[[str, Record], bool]:
    """Return what picks entries by key text (any, where there is none) and a namespace's first letters."""
    wanted = frozenset(keys)
    return lambda digest, record: (
        (not wanted or record.key in wanted) and record.namespace.startswith(namespace or "")
    )


@contextmanager
def open_bundle_file(path: Path) -> Iterator[BinaryIO]:
    """Open a bundle to read.

    Raises:
        StoreError: it can't be read.
    """
    with store_errors(f"reading {str(path)!r}"):
        file = open(path, "rb")  # noqa: SIM115 - opened apart, so that only the opening's errors are these
    with file:
        yield file


@contextmanager
def new_bundle_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears at ``path`` when it is whole, for its owner alone.

    Raises:
        StoreError: it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with store_errors(f"writing {str(path)!r}"):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
