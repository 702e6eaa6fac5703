"""A compiled graph as bytes: a header, then the files that loading it needs.

::

    magic (8 bytes) | header length (4 bytes, big endian) | header: JSON | file | file | …

The header lists each file with its size and SHA-256, and describes what the graph is bound to.  Whatever it
says, nothing is read beyond the payload, and nothing is written outside the directory it is unpacked into.
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

_PREFIX = len(MAGIC) + 4
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Payload:
    """What was packed: files by name, and plain JSON that describes them."""

    files: Mapping[str, bytes | memoryview]
    about: dict[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return the payload's bytes."""
        entries = [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in self.files.items()]
        header = json.dumps({"files": entries, "about": self.about}, sort_keys=True).encode()
        return b"".join((MAGIC, len(header).to_bytes(4, "big"), header, *self.files.values()))

    @classmethod
    def unpack(cls, data: bytes) -> Payload:
        """Check every size, name and digest, and return what was packed; files are views of ``data``.

        Raises:
            LoadError: the bytes are no payload of this format, or not what their header says.
        """
        header, at = _header(data)
        files: dict[str, bytes | memoryview] = {}
        view = memoryview(data)
        for name, size, digest in _entries(header):
            content = view[at : at + size]
            if len(content) != size or name in files:
                raise LoadError(f"a compiled graph's file {name!r} is cut short, or there twice")
            if hashlib.sha256(content).hexdigest() != digest:
                raise LoadError(f"a compiled graph's file {name!r} is not what its header says")
            files[name] = content
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


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(data[len(MAGIC) : _PREFIX], "big")
    if not data.startswith(MAGIC) or size > min(MAX_HEADER_BYTES, len(data) - _PREFIX):
        raise LoadError("not a compiled graph of this version")
    try:
        header = json.loads(data[_PREFIX : _PREFIX + size])
    except (ValueError, RecursionError) as error:
        raise LoadError(f"a compiled graph's header is no JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("about"), dict):
        raise LoadError("a compiled graph's header lacks what describes it")
    return header, _PREFIX + size


def _entries(header: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    entries = header.get("files")
    if not isinstance(entries, list) or len(entries) > MAX_FILES:
        raise LoadError(f"a compiled graph's header lists no files, or more than {MAX_FILES}")
    for entry in entries:
        match entry:
            case [str(name), int(size), str(_)] if _NAME.fullmatch(name) and size >= 0:
                continue
        raise LoadError(f"a compiled graph's header names a file wrongly: {entry!r}")
    return [(name, size, digest) for name, size, digest in entries]
