from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.compile.wire import MAX_DATA_BYTES, Message, read, write

headers = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)


def written(*messages: Message) -> bytes:
    stream = io.BytesIO()
    for message in messages:
        write(stream, message)
    return stream.getvalue()


@given(st.lists(st.builds(Message, headers, st.binary(max_size=50)), max_size=3))
def test_what_is_written_is_read(messages: list[Message]) -> None:
    stream = io.BytesIO(written(*messages))
    assert [read(stream) for _ in messages] == messages
    assert read(stream) is None


@given(st.integers(1, 200))
def test_a_stream_that_ends_within_a_message_is_an_error(length: int) -> None:
    whole = written(Message({"task": "m:f"}, b"x" * 200))
    with pytest.raises(EOFError):
        read(io.BytesIO(whole[:length]))


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff" * 16,
        (0).to_bytes(8, "big") + (MAX_DATA_BYTES + 1).to_bytes(8, "big"),
        (2).to_bytes(8, "big") + bytes(8) + b"[]",
        (2).to_bytes(8, "big") + bytes(8) + b"{]",
    ],
)
def test_noise_is_an_error_and_allocates_nothing(noise: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|property name"):
        read(io.BytesIO(noise))
