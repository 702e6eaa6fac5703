"""What a server and its compile workers say to each other: plain JSON and bytes, with their lengths.

::

    length of the header (8 bytes, big endian) | length of the data (8) | header: JSON | data
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO, NamedTuple

MAX_HEADER_BYTES = 1 << 20
MAX_DATA_BYTES = 1 << 32


class Message(NamedTuple):
    """A header of plain JSON, and bytes."""

    header: dict[str, Any]
    data: bytes = b""


def write(stream: BinaryIO, message: Message) -> None:
    """Write one message, and flush it."""
    header = json.dumps(message.header).encode()
    stream.write(len(header).to_bytes(8, "big") + len(message.data).to_bytes(8, "big") + header)
    stream.write(message.data)
    stream.flush()


def read(stream: BinaryIO) -> Message | None:
    """Read one message; None where the stream ends instead.

    Raises:
        EOFError: the stream ends within a message.
        ValueError: it is no message, or one of an absurd length.
    """
    lengths = stream.read(16)
    if not lengths:
        return None
    sizes = int.from_bytes(lengths[:8], "big"), int.from_bytes(lengths[8:], "big")
    if sizes[0] > MAX_HEADER_BYTES or sizes[1] > MAX_DATA_BYTES:
        raise ValueError(f"a message of {sizes} bytes is no message")
    header, data = stream.read(sizes[0]), stream.read(sizes[1])
    if (len(lengths), len(header), len(data)) != (16, *sizes):
        raise EOFError("the stream ended within a message")
    fields = json.loads(header)
    if not isinstance(fields, dict):
        raise ValueError(f"a message's header is a {type(fields).__name__}")
    return Message(fields, data)
