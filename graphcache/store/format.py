"""The bytes of one entry: prefix, header, payload.

::

    8 bytes    magic
    4 bytes    format version, little-endian
    4 bytes    length of the header in bytes, little-endian
    32 bytes   SHA-256 of the header
    header     the record as JSON, UTF-8
    payload    exactly ``payload_bytes`` bytes, and nothing after them

A bundle is a row of such entries, so that every reader of entries is the same one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from dataclasses import fields, replace
from typing import Any, Protocol

from graphcache.errors import ConfigError, CorruptError, StoreError
from graphcache.fingerprint import digest as digest_of
from graphcache.store.protocol import Record, Stored

MAGIC = b"gcentry\n"
FORMAT_VERSION = 1
MAX_HEADER_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 1 << 36
"""64 GiB: no graph is larger, and a header that claims more is damaged or hostile."""

PREFIX = struct.Struct("<8sII32s")
_CHUNK_BYTES = 1 << 22
_HEX = re.compile(r"[0-9a-f]{64}")


class Readable(Protocol):
    """What can be read from: a file that is open, or a stream."""

    def read(self, size: int, /) -> bytes:
        """Return as many bytes as asked for, fewer only at the end."""
        ...


class NewerFormatError(StoreError):
    """An entry or a store was written by a newer version of this package."""

    @classmethod
    def of(cls, what: object, version: object) -> NewerFormatError:
        """Name what was found, and what can be read."""
        return cls(
            f"{what} has format {version}, this version reads up to {FORMAT_VERSION}: upgrade, or use "
            "another store path"
        )


def is_digest(text: str) -> bool:
    """Say whether a text is a SHA-256 in lower-case hex, the only name an entry can have."""
    return _HEX.fullmatch(text) is not None


def check_entry(digest: str, record: Record, payload: bytes) -> None:
    """Refuse an entry whose parts are not one another's.

    Raises:
        ConfigError: naming the part.
    """
    if digest != digest_of(record.namespace, record.key):
        raise ConfigError.of("digest", digest, "the digest of the record's namespace and key")
    if len(payload) != record.payload_bytes or len(payload) > MAX_PAYLOAD_BYTES:
        raise ConfigError.of("payload_bytes", record.payload_bytes, f"the payload's length, {len(payload)}")
    if hashlib.sha256(payload).hexdigest() != record.payload_digest:
        raise ConfigError.of("payload_digest", record.payload_digest, "the payload's SHA-256")


def to_json(record: Record) -> str:
    """Return a record as JSON, the same text for equal records.

    Raises:
        ConfigError: ``meta`` is not plain JSON.
    """
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    try:
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError.of("meta", record.meta, f"plain JSON ({error})") from None


def from_json(text: str | bytes) -> Record:
    """Read a record back, believing nothing.

    Raises:
        CorruptError: it is no record.
    """
    try:
        values = json.loads(text)
        record = _typed(values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptError(f"the header is not a record: {type(error).__name__}: {error}"[:300]) from None
    _check_record(record)
    return record


def _typed(values: dict[str, Any]) -> Record:
    return Record(
        namespace=_text(values["namespace"]),
        key=_text(values["key"]),
        payload_bytes=_integer(values["payload_bytes"]),
        payload_digest=_text(values["payload_digest"]),
        seconds=float(values.get("seconds", 0.0)),
        created=float(values.get("created", 0.0)),
        facts=tuple((_text(label), _text(value)) for label, value in values.get("facts", ())),
        meta=dict(values.get("meta", {}).items()),
        group=tuple(_text(member) for member in values.get("group", ())),
        seal=_text(values.get("seal", "")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    value.encode()  # a lone surrogate can't be written again
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _check_record(record: Record) -> None:
    if not 0 <= record.payload_bytes <= MAX_PAYLOAD_BYTES:
        raise CorruptError(f"the header claims a payload of {record.payload_bytes} bytes")
    if not (math.isfinite(record.seconds) and record.seconds >= 0 and math.isfinite(record.created)):
        raise CorruptError(f"the header claims {record.seconds} seconds, created {record.created}")
    for text in (record.payload_digest, *record.group):
        if not is_digest(text):
            raise CorruptError(f"the header holds {text[:80]!r} where a digest should be")


def encode_header(record: Record) -> bytes:
    """Return prefix and header of an entry.

    Raises:
        ConfigError: the record is no JSON, or too long for a header.
    """
    header = to_json(record).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise ConfigError.of("record", f"{len(header)} bytes", f"at most {MAX_HEADER_BYTES} bytes as JSON")
    return PREFIX.pack(MAGIC, FORMAT_VERSION, len(header), hashlib.sha256(header).digest()) + header


def read_header(file: Readable) -> Record:
    """Read prefix and header; the file then stands at the payload.

    Raises:
        CorruptError: they are cut, changed, or another file's.
        NewerFormatError: a newer version wrote them.
    """
    prefix = file.read(PREFIX.size)
    if len(prefix) < PREFIX.size or not prefix.startswith(MAGIC):
        raise CorruptError("the file does not start as an entry does")
    _, version, length, checksum = PREFIX.unpack(prefix)
    if version > FORMAT_VERSION:
        raise NewerFormatError.of("the entry", version)
    if version < 1 or length > MAX_HEADER_BYTES:
        raise CorruptError(f"the prefix claims format {version} and a header of {length} bytes")
    header = file.read(length)
    if hashlib.sha256(header).digest() != checksum:
        raise CorruptError("the header is cut or changed")
    return from_json(header)


def read_payload(file: Readable, record: Record) -> bytes:
    """Read a payload and compare it, whole, with its record.

    Raises:
        CorruptError: it is cut or changed.
    """
    running = hashlib.sha256()
    chunks = []
    left = record.payload_bytes
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        running.update(chunk)
        chunks.append(chunk)
        left -= len(chunk)
    if left:
        raise CorruptError(f"the payload is cut: {left} of {record.payload_bytes} bytes are missing")
    if running.hexdigest() != record.payload_digest:
        raise CorruptError("the payload is not the one that was written")
    return b"".join(chunks)


def read_entry(file: Readable, digest: str) -> Stored:
    """Read one whole entry, and check that it is the one asked for.

    Raises:
        CorruptError: it is damaged, or another key's.
    """
    record = read_header(file)
    check_name(record, digest)
    payload = read_payload(file, record)
    if file.read(1):
        raise CorruptError("bytes follow the payload")
    return Stored(record, payload)


def check_name(record: Record, digest: str) -> None:
    """Check that a record is the one of this digest: its full namespace and key, hashed anew.

    Raises:
        CorruptError: it is another key's.
    """
    if digest_of(record.namespace, record.key) != digest:
        raise CorruptError(
            f"the entry is another one's: {record.key!r} of namespace {record.namespace[:12]!r}"
        )


def sealed_with(record: Record, seal: str) -> Record:
    """Return the record with its seal set."""
    return replace(record, seal=seal)
