import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from store_entries import entry

from graphcache.errors import ConfigError, CorruptError, StoreError, StoreFullError
from graphcache.store.disk import DiskStore
from graphcache.store.files import QUARANTINE_KEEPS, STEPS
from graphcache.store.format import NewerFormatError, read_entry
from graphcache.store.protocol import Stored
from graphcache.store.readonly import ReadOnlyStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def disk(root: Path) -> Iterator[DiskStore]:
    with DiskStore(root, fsync=False) as store:
        yield store


def names(root: Path, directory: str) -> list[str]:
    return sorted(os.listdir(root / directory))


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="is a file, not a directory"):
            DiskStore(path)
    with pytest.raises(StoreError, match="is a file, not a directory"):
        ReadOnlyStore(tmp_path / "file")


def test_a_path_that_can_not_be_written_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskStore(root, fsync=False) as disk:
        disk.put(*entry(1))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match="`read_only: true`"):
        DiskStore(root)
    assert ReadOnlyStore(root).get(entry(1)[0])


def test_a_bound_that_is_not_positive_is_refused(root: Path) -> None:
    for bound in (0, -1):
        with pytest.raises(ConfigError, match="max_bytes"):
            DiskStore(root, max_bytes=bound)


def test_a_store_of_a_newer_version_is_refused(root: Path) -> None:
    DiskStore(root).close()
    (root / "FORMAT").write_text("2\n")
    for open_it in (DiskStore, ReadOnlyStore):
        with pytest.raises(NewerFormatError, match="format 2, this version reads up to 1"):
            open_it(root)


def test_an_entry_of_a_newer_version_is_left_alone_until_replaced(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    path = root / "entries" / entry(1)[0]
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(NewerFormatError):
        disk.get(entry(1)[0])
    assert path.exists()
    assert list(disk.scan()) == []
    disk.put(*entry(1))
    assert disk.get(entry(1)[0])


def test_everything_is_for_its_owner_alone(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    list(disk.scan())
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_others_entries_are_not_served(root: Path, disk: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.put(*entry(1))
    _give_away(root / "entries" / entry(1)[0], monkeypatch)
    with pytest.raises(CorruptError, match="belongs to user"):
        disk.get(entry(1)[0])


def test_a_store_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskStore(root).close()
    _give_away(root, monkeypatch)
    for open_it in (DiskStore, ReadOnlyStore):
        with pytest.raises(StoreError, match=r"belongs to user .* seal the store"):
            open_it(root)
        open_it(root, shared=True)


def _give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        stranger = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: stranger)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_store_that_others_can_write_is_refused(root: Path, mode: int) -> None:
    DiskStore(root).close()
    root.chmod(mode)
    with pytest.raises(StoreError, match="lets group or others write"):
        DiskStore(root)
    DiskStore(root, shared=True).close()


def test_the_least_recently_used_leave_first(root: Path) -> None:
    payload = b"x" * 1000
    with DiskStore(root, max_bytes=6000, fsync=False) as disk:
        for number in range(4):
            disk.put(*entry(number, payload))
        disk.get(entry(0)[0])
        disk.put(*entry(4, payload))
        disk.put(*entry(5, payload))
        left = [number for number in range(6) if disk.get(entry(number)[0])]
    assert left == [0, 3, 4, 5]


def test_the_bound_holds_with_the_index_lost_between_puts(root: Path) -> None:
    payload = b"x" * 1000
    for number in range(12):
        with DiskStore(root, max_bytes=6000, fsync=False) as disk:
            disk.put(*entry(number, payload))
        assert sum(path.stat().st_size for path in (root / "entries").iterdir()) <= 6000
        shutil.rmtree(root / "index")
    assert (root / "entries" / entry(11)[0]).exists()


def test_replacing_and_deleting_give_their_bytes_back(root: Path) -> None:
    payload = b"x" * 1000
    with DiskStore(root, max_bytes=4000, fsync=False) as disk:
        disk.put(*entry(0, payload))
        for _ in range(10):
            disk.put(*entry(1, payload))
        disk.put(*entry(2, payload))
        disk.delete(entry(2)[0])
        disk.put(*entry(3, payload))
        assert [bool(disk.get(entry(number)[0])) for number in range(4)] == [True, True, False, True]


def test_an_entry_larger_than_the_bound_is_refused_and_nothing_leaves(root: Path) -> None:
    with DiskStore(root, max_bytes=2000, fsync=False) as disk:
        disk.put(*entry(0, b"x" * 1000))
        with pytest.raises(StoreFullError, match="2000 bytes"):
            disk.put(*entry(1, b"x" * 2000))
        assert disk.get(entry(0)[0])


def test_a_group_leaves_together(root: Path) -> None:
    payload = b"x" * 1000
    group = [entry(0)[0], entry(1)[0]]
    with DiskStore(root, max_bytes=6000, fsync=False) as disk:
        disk.put(*entry(0, payload, group=group))
        disk.put(*entry(1, payload, group=group))
        for number in range(2, 5):
            disk.put(*entry(number, payload))
    assert not {*group} & {*names(root, "entries")}


def test_a_damaged_entry_is_put_aside_and_replaced(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    path = root / "entries" / entry(1)[0]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptError, match=entry(1)[0][:12]):
        disk.get(entry(1)[0])
    assert disk.get(entry(1)[0]) is None
    assert disk.files.quarantined() == 1
    disk.put(*entry(1))
    assert disk.get(entry(1)[0])


def test_a_good_entry_that_took_the_bad_ones_place_stays(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    path = root / "entries" / entry(1)[0]
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    def replace_while_it_is_read(file: BinaryIO, digest: str) -> Stored:
        disk.put(*entry(1))
        return read_entry(file, digest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphcache.store.format.read_entry", replace_while_it_is_read)
        with pytest.raises(CorruptError):
            disk.get(entry(1)[0])
    assert disk.get(entry(1)[0])
    assert disk.files.quarantined() == 0


def test_the_quarantine_keeps_the_last_few(root: Path, disk: DiskStore) -> None:
    for number in range(QUARANTINE_KEEPS + 3):
        (root / "quarantine" / str(number)).touch()
    (root / "quarantine" / "directory").mkdir()
    assert disk.files.sweep() >= 3
    assert disk.files.quarantined() <= QUARANTINE_KEEPS + 1


@pytest.mark.parametrize("first_use", [True, False], ids=["a new store", "a write"])
def test_a_file_swept_before_it_is_locked_costs_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, first_use: bool
) -> None:
    real, swept = fcntl.flock, []

    def sweep_first(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not swept:
            swept.extend(path.unlink() for path in (root / "temporary").iterdir())
        real(descriptor, operation)

    if not first_use:
        DiskStore(root, fsync=False).close()
    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with DiskStore(root, fsync=False) as disk:
        monkeypatch.setattr(disk.files, "prepare", lambda: pytest.fail("the file was lost"))
        disk.put(*entry(1))
        assert disk.get(entry(1)[0])
    assert swept == [None]
    assert names(root, "temporary") == []


@pytest.mark.parametrize("kind", ["symlink", "dangling", "directory", "fifo", "socket"])
def test_what_is_no_file_is_not_followed(tmp_path: Path, root: Path, disk: DiskStore, kind: str) -> None:
    disk.put(*entry(1))
    path = root / "entries" / entry(1)[0]
    path.rename(tmp_path / "elsewhere")
    if kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        _socket_at(path)
    with pytest.raises(StoreError):
        disk.get(entry(1)[0])
    if kind != "socket":  # a socket can't be opened to be looked at; a put replaces it
        assert disk.get(entry(1)[0]) is None
    disk.put(*entry(1))
    assert disk.get(entry(1)[0])


def _socket_at(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(before)


def test_foreign_files_among_the_entries_are_passed_over(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    (root / "entries" / "README").write_text("hello")
    (root / "entries" / ("f" * 64)).mkdir()
    assert [name for name, _ in disk.scan()] == [entry(1)[0]]


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n", "\0"])
def test_a_name_that_is_no_digest_is_refused(disk: DiskStore, name: str) -> None:
    for ask in (disk.get, disk.delete):
        with pytest.raises(ConfigError, match="digest"):
            ask(name)


def test_a_directory_cleaned_away_is_made_again(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    shutil.rmtree(root)
    assert disk.get(entry(1)[0]) is None
    assert list(disk.scan()) == []
    disk.put(*entry(1))
    assert disk.get(entry(1)[0])
    assert disk.ledger.runs() == {}
    disk.ledger.record_run("run", {"hits": 1})
    assert disk.ledger.runs() == {"run": {"hits": 1}}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("step", [step for step in STEPS if step not in ("renamed", "listed")])
def test_a_failing_write_leaves_the_old_entry_and_no_file(root: Path, step: str, code: int) -> None:
    broken = False

    def fail(at: str) -> None:
        if broken and at == step:
            raise OSError(code, os.strerror(code))

    disk = DiskStore(root, fsync=False, on_step=fail, max_bytes=10_000)
    disk.put(*entry(1, b"old"))
    broken = True
    expected = StoreFullError if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreError
    with pytest.raises(expected, match="writing an entry"):
        disk.put(*entry(1, b"new"))
    got = disk.get(entry(1)[0])
    assert got
    assert got.payload == b"old"
    assert names(root, "temporary") == []
    broken = False
    disk.put(*entry(1, b"new"))
    disk.close()


def test_a_file_that_is_removed_while_it_is_read_reads_whole(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1, b"payload"))
    with disk.files._open(entry(1)[0]) as file:
        assert file
        disk.delete(entry(1)[0])
        assert file.read().endswith(b"payload")


def test_the_index_makes_up_for_nothing_it_says_wrongly(root: Path, disk: DiskStore) -> None:
    """A row of the index about another file than the one that is there is not believed."""
    disk.put(*entry(1, b"old"))
    list(disk.scan())
    disk.put(*entry(1, b"newer"))
    ((_, record),) = disk.scan()
    assert record.payload_bytes == 5


def test_uses_are_counted_across_processes_that_share_the_store(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    disk.put(*entry(2))
    with DiskStore(root, fsync=False) as other:
        other.get(entry(1)[0])
    disk.get(entry(1)[0])
    uses = disk.uses()
    assert uses[entry(1)[0]].uses == 2
    assert uses[entry(2)[0]].uses == 0
    assert uses[entry(1)[0]].turn > uses[entry(2)[0]].turn
