"""A compiled graph as bytes: a header, then the files that loading it needs.

::

    magic (8 bytes) | SHA-256 of all that follows (32) | header length (4, big endian) | header: JSON | files

The header lists each file with its size, and describes what the graph is bound to.  Whatever it says, nothing
is read beyond the payload, and nothing is written outside the directory that it is unpacked into.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphcache.errors import LoadError

MAGIC = b"GCGRAPH\x01"
MAX_HEADER_BYTES = 16 << 20
MAX_FILES = 16

LIBRARY = "graph.so"
OPERATORS = "graph.json"
OWN = "own"
"""A graph's files: the code; the custom operators that it calls, if any; the values of its own constants."""

_DIGEST_END = len(MAGIC) + 32
_HEADER_AT = _DIGEST_END + 4
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Payload:
    """What was packed: files by name, and plain JSON that describes them."""

    files: Mapping[str, bytes | memoryview]
    about: dict[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return the payload's bytes."""
        sizes = [[name, len(content)] for name, content in self.files.items()]
        header = json.dumps({"files": sizes, "about": self.about}, sort_keys=True).encode()
        body = b"".join((len(header).to_bytes(4, "big"), header, *self.files.values()))
        return MAGIC + hashlib.sha256(body).digest() + body

    @classmethod
    def unpack(cls, data: bytes) -> Payload:
        """Check the digest, every size and every name; return what was packed, its files views of ``data``.

        Raises:
            LoadError: the bytes are no payload of this format, or not those that were packed.
        """
        header, at = _header(data)
        files: dict[str, bytes | memoryview] = {}
        view = memoryview(data)
        for name, size in _sizes(header):
            if size > len(data) - at or name in files:
                raise LoadError(f"a compiled graph's file {name!r} is cut short, or there twice")
            files[name] = view[at : at + size]
            at += size
        if at != len(data):
            raise LoadError(f"a compiled graph has {len(data) - at} bytes that its header does not name")
        return cls(files, header["about"])

    def write(self, directory: Path) -> None:
        """Write the files into a directory of the caller's own, readable by the owner alone."""
        for name, content in self.files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(directory / name, flags, 0o600), "wb") as file:
                file.write(content)


def payload_digest(data: bytes) -> bytes:
    """Return the digest that a payload states of itself: what `Payload.unpack` compares its bytes with."""
    return data[len(MAGIC) : _DIGEST_END]


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(data[_DIGEST_END:_HEADER_AT], "big")
    if not data.startswith(MAGIC) or size > min(MAX_HEADER_BYTES, len(data) - _HEADER_AT):
        raise LoadError("not a compiled graph of this version")
    if hashlib.sha256(memoryview(data)[_DIGEST_END:]).digest() != payload_digest(data):
        raise LoadError("a compiled graph's bytes are not those that were packed")
    try:
        header = json.loads(data[_HEADER_AT : _HEADER_AT + size])
    except (ValueError, RecursionError) as error:
        raise LoadError(f"a compiled graph's header is no JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("about"), dict):
        raise LoadError("a compiled graph's header lacks what describes it")
    return header, _HEADER_AT + size


def _sizes(header: Mapping[str, Any]) -> list[tuple[str, int]]:
    entries = header.get("files")
    if not isinstance(entries, list) or len(entries) > MAX_FILES:
        raise LoadError(f"a compiled graph's header lists no files, or more than {MAX_FILES}")
    for entry in entries:
        match entry:
            case [str(name), int(size)] if _NAME.fullmatch(name) and size >= 0:
                continue
        raise LoadError(f"a compiled graph's header names a file wrongly: {entry!r}")
    return [(name, size) for name, size in entries]
