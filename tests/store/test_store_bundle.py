import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_entries import entry

from graphcache.errors import ConfigError, CorruptError, StoreError, StoreFullError
from graphcache.store.bundle import export_bundle, import_bundle, new_bundle_file, open_bundle_file, selection
from graphcache.store.disk import DiskStore
from graphcache.store.format import NewerFormatError
from graphcache.store.memory import MemoryStore
from graphcache.store.protocol import Record, Store, Stored
from graphcache.store.sealed import SealedStore, SealKeys

OURS, THEIRS = SealKeys([b"o" * 32]), SealKeys([b"t" * 32])


def filled(count: int = 3) -> MemoryStore:
    store = MemoryStore()
    for number in range(count):
        store.put(*entry(number, b"payload %d" % number, namespace="ab" if number % 2 else "cd"))
    return store


def bundle_of(store: Store, keys: SealKeys | None = None) -> bytes:
    file = io.BytesIO()
    export_bundle(store, file, keys=keys)
    return file.getvalue()


def all_of(store: Store) -> dict[str, Stored | None]:
    return {digest: store.get(digest) for digest, _ in store.scan()}


@pytest.mark.parametrize("keys", [None, OURS])
def test_a_bundle_carries_everything(keys: SealKeys | None) -> None:
    store, other = filled(), MemoryStore()
    carried = import_bundle(io.BytesIO(bundle_of(store, keys)), other, keys=keys)
    assert (carried.entries, carried.nbytes, carried.left_out) == (3, 27, 0)
    assert all_of(other) == all_of(store)


def test_an_empty_bundle_is_one() -> None:
    assert import_bundle(io.BytesIO(bundle_of(MemoryStore())), MemoryStore()).entries == 0


def test_only_what_is_asked_for_is_carried() -> None:
    for select, expected in (
        (selection(["prefill/causal/1x1"]), ["prefill/causal/1x1"]),
        (selection([], "cd"), ["prefill/causal/1x0", "prefill/causal/1x2"]),
        (selection(["prefill/causal/1x1"], "cd"), []),
    ):
        file, other = io.BytesIO(), MemoryStore()
        export_bundle(filled(), file, select=select)
        file.seek(0)
        import_bundle(file, other)
        assert sorted(record.key for _, record in other.scan()) == expected


def test_a_bad_entry_is_left_out(tmp_path: Path) -> None:
    with DiskStore(tmp_path / "store") as disk:
        disk.put(*entry(1))
        disk.put(*entry(2))
        path = tmp_path / "store" / "entries" / entry(1)[0]
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        carried = export_bundle(disk, io.BytesIO())
    assert (carried.entries, carried.left_out) == (1, 1)


def test_the_seal_of_a_sealed_store_is_its_own() -> None:
    inner = MemoryStore()
    store = SealedStore(inner, THEIRS)
    import_bundle(io.BytesIO(bundle_of(filled(), OURS)), store, keys=OURS)
    assert all(store.get(digest) for digest, _ in inner.scan())


@pytest.mark.parametrize("made_with", [None, THEIRS])
def test_a_bundle_without_our_seal_is_refused(made_with: SealKeys | None) -> None:
    other = MemoryStore()
    with pytest.raises(CorruptError, match="no seal"):
        import_bundle(io.BytesIO(bundle_of(filled(), made_with)), other, keys=OURS)
    assert not list(other.scan())


def test_sealed_entries_in_another_bundle_are_refused_as_a_whole() -> None:
    """Entries taken out of sealed bundles and put together anew: each bears a seal, the whole does not."""
    sealed = MemoryStore()
    for digest, record in filled().scan():
        sealed._entries[digest] = Stored(OURS.seal(record), filled()._entries[digest].payload)
    with pytest.raises(CorruptError, match="left out"):
        import_bundle(io.BytesIO(bundle_of(sealed)), MemoryStore(), keys=OURS)


@given(st.data(), st.sampled_from([None, OURS]))
@settings(deadline=None)
def test_a_bundle_cut_or_changed_anywhere_is_refused(data: st.DataObject, keys: SealKeys | None) -> None:
    store = filled()
    whole = bundle_of(store, keys)
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    # The eight bytes of padding and, without a key, the seal's place say nothing.
    silent = not cut and (12 <= at < 16 or (keys is None and at >= len(whole) - 32))
    changed = whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
    other = MemoryStore()
    if not silent:
        with pytest.raises(StoreError):
            import_bundle(io.BytesIO(changed), other, keys=keys)
    expected = all_of(store)
    assert all(got == expected[digest] for digest, got in all_of(other).items())


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused_without_another_error(data: bytes, headed: bool) -> None:
    head = bundle_of(MemoryStore())[:16] if headed else b""
    with pytest.raises(StoreError):
        import_bundle(io.BytesIO(head + data), MemoryStore())


def test_a_newer_bundle_is_told_apart() -> None:
    data = bytearray(bundle_of(filled()))
    data[8] = 2
    with pytest.raises(NewerFormatError):
        import_bundle(io.BytesIO(bytes(data)), MemoryStore())


def test_more_than_the_bound_is_refused_before_it_is_read() -> None:
    store = MemoryStore()
    with pytest.raises(StoreFullError, match="more than 20 bytes"):
        import_bundle(io.BytesIO(bundle_of(filled())), store, max_bytes=20)
    assert len(list(store.scan())) == 2


def test_a_header_that_claims_too_much_takes_no_memory() -> None:
    record = Record("ns", "key", 1 << 35, hashlib.sha256().hexdigest())
    from graphcache.store.format import encode_header

    data = bundle_of(MemoryStore())[:16] + b"E" + encode_header(record)
    with pytest.raises(CorruptError, match="missing"):
        import_bundle(io.BytesIO(data), MemoryStore())


def test_a_bundle_can_not_name_a_path() -> None:
    """Whatever namespace and key say, an entry lands under their digest."""
    store = MemoryStore()
    record = Record.of("../../etc", "/passwd", b"x")
    data = io.BytesIO()
    source = MemoryStore()
    from graphcache.fingerprint import digest

    source.put(digest("../../etc", "/passwd"), record, b"x")
    export_bundle(source, data)
    data.seek(0)
    import_bundle(data, store)
    assert [name for name, _ in store.scan()] == [digest("../../etc", "/passwd")]


def test_a_bundle_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    with pytest.raises(ConfigError), new_bundle_file(path) as file:
        export_bundle(filled(), file, keys=SealKeys([]))
    assert os.listdir(tmp_path) == []
    with new_bundle_file(path) as file:
        export_bundle(filled(), file)
    assert os.listdir(tmp_path) == ["bundle"]
    assert path.stat().st_mode & 0o777 == 0o600
    with open_bundle_file(path) as file:
        assert import_bundle(file, MemoryStore()).entries == 3
    with pytest.raises(StoreError, match="No such file"), open_bundle_file(tmp_path / "missing"):
        pass


def test_what_can_not_be_written_is_told() -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreFullError, match="writing the bundle"):
        export_bundle(filled(), Full())
