import io
import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphcache.errors import ConfigError, CorruptError, StoreError
from graphcache.fingerprint import digest
from graphcache.store import format as entry_format
from graphcache.store.format import NewerFormatError, encode_header, from_json, read_entry, to_json
from graphcache.store.protocol import Record, Stored

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
payloads = st.binary(max_size=300)


@st.composite
def records(draw: st.DrawFn, payload: bytes = b"payload") -> Record:
    return Record.of(
        draw(texts),
        draw(texts),
        payload,
        seconds=draw(st.floats(0, 1e6)),
        created=draw(st.floats(0, 1e10)),
        facts=draw(st.lists(st.tuples(texts, texts), max_size=4)),
        meta=draw(st.dictionaries(texts, plain, max_size=4)),
        group=[digest(member) for member in draw(st.lists(texts, max_size=3))],
    )


def bytes_of(record: Record, payload: bytes) -> bytes:
    return encode_header(record) + payload


def name_of(record: Record) -> str:
    return digest(record.namespace, record.key)


@given(st.data(), payloads)
def test_an_entry_reads_back_as_it_was_written(data: st.DataObject, payload: bytes) -> None:
    record = data.draw(records(payload))
    read = read_entry(io.BytesIO(bytes_of(record, payload)), name_of(record))
    assert read == Stored(record, payload)


@given(st.data(), payloads)
def test_an_entry_cut_at_any_byte_is_corrupt(data: st.DataObject, payload: bytes) -> None:
    record = data.draw(records(payload))
    whole = bytes_of(record, payload)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptError):
        read_entry(io.BytesIO(whole[:cut]), name_of(record))


@given(st.data(), payloads)
def test_an_entry_with_any_bit_flipped_is_refused(data: st.DataObject, payload: bytes) -> None:
    record = data.draw(records(payload))
    changed = bytearray(bytes_of(record, payload))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(StoreError):  # a changed version can look newer, which is no corruption
        read_entry(io.BytesIO(bytes(changed)), name_of(record))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_without_another_error(data: bytes) -> None:
    with pytest.raises(StoreError):
        read_entry(io.BytesIO(data), digest("ns", "key"))


@given(st.binary(max_size=200) | plain.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"namespace":"a","key":"b","payload_bytes":1e999,"payload_digest":""}')
@example(b'{"namespace":"\\ud800","key":"b","payload_bytes":1,"payload_digest":"' + b"0" * 64 + b'"}')
def test_a_header_that_is_no_record_is_corrupt(header: bytes) -> None:
    with pytest.raises(CorruptError):
        from_json(header)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payload_bytes", -1),
        ("payload_bytes", 1 << 60),
        ("payload_bytes", True),
        ("payload_bytes", "7"),
        ("payload_digest", "../../etc/passwd"),
        ("seconds", -1.0),
        ("seconds", "nan"),
        ("facts", [["a"]]),
        ("facts", [[1, 2]]),
        ("meta", [1]),
        ("group", ["x"]),
        ("seal", 7),
        ("key", None),
    ],
)
def test_a_record_with_an_absurd_field_is_corrupt(field: str, value: object) -> None:
    values = json.loads(to_json(Record.of("ns", "key", b"payload")))
    with pytest.raises(CorruptError):
        from_json(json.dumps(values | {field: value}))


def test_an_absurd_header_length_is_refused_before_it_is_read() -> None:
    prefix = entry_format.PREFIX.pack(entry_format.MAGIC, 1, 0xFFFFFFFF, b"\0" * 32)

    class Unread(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            assert 0 <= size <= 1 << 20
            return super().read(size)

    with pytest.raises(CorruptError, match="4294967295"):
        entry_format.read_header(Unread(prefix))


def test_an_absurd_payload_size_allocates_nothing() -> None:
    record = replace(Record.of("ns", "key", b""), payload_bytes=entry_format.MAX_PAYLOAD_BYTES)
    with pytest.raises(CorruptError, match="missing"):
        read_entry(io.BytesIO(encode_header(record)), name_of(record))


def test_bytes_after_the_payload_are_refused() -> None:
    record = Record.of("ns", "key", b"payload")
    with pytest.raises(CorruptError, match="follow"):
        read_entry(io.BytesIO(bytes_of(record, b"payload!")), name_of(record))


def test_another_keys_entry_is_refused() -> None:
    record = Record.of("ns", "key", b"payload")
    with pytest.raises(CorruptError, match="another one's"):
        read_entry(io.BytesIO(bytes_of(record, b"payload")), digest("ns", "other key"))


def test_a_newer_entry_is_told_apart_from_a_damaged_one() -> None:
    whole = bytearray(bytes_of(Record.of("ns", "key", b"payload"), b"payload"))
    whole[8] = 2
    with pytest.raises(NewerFormatError, match="format 2, this version reads up to 1"):
        read_entry(io.BytesIO(bytes(whole)), digest("ns", "key"))


def test_what_cannot_be_json_is_refused_on_writing() -> None:
    with pytest.raises(ConfigError, match="meta"):
        encode_header(Record.of("ns", "key", b"", meta={"a": object()}))
    with pytest.raises(ConfigError, match="meta"):
        encode_header(Record.of("ns", "key", b"", meta={"a": float("nan")}))
    with pytest.raises(ConfigError, match="record"):
        encode_header(Record.of("ns", "key", b"", meta={"a": "x" * (1 << 20)}))


def test_an_entry_whose_parts_disagree_is_refused_on_writing() -> None:
    record = Record.of("ns", "key", b"payload")
    for wrong in (
        ("0" * 64, record, b"payload"),
        (name_of(record), record, b"payloaD"),
        (name_of(record), record, b""),
    ):
        with pytest.raises(ConfigError):
            entry_format.check_entry(*wrong)


def test_stored_bytes_of_this_format_stay_readable() -> None:
    """The bytes of format 1, as a released version wrote them: they must never need another reader."""
    record = Record.of("ns", "key", b"payload", seconds=1.5, created=2.0, facts=[("a", "b")], meta={"c": [1]})
    assert encode_header(record)[:16] == b"gcentry\n\x01\x00\x00\x00" + len(to_json(record)).to_bytes(
        4, "little"
    )
    assert to_json(record) == (
        '{"created":2.0,"facts":[["a","b"]],"group":[],"key":"key","meta":{"c":[1]},"namespace":"ns",'
        '"payload_bytes":7,"payload_digest":"239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5",'
        '"seal":"","seconds":1.5}'
    )
