import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphcache.errors import StoreError, StoreFullError
from graphcache.store.private import default_path, make_private, store_errors


def test_the_default_is_in_the_users_cache(tmp_path: Path) -> None:
    home, cache = str(tmp_path / "home"), str(tmp_path / "cache")
    assert default_path({"HOME": home}) == tmp_path / "home" / ".cache" / "graphcache"
    assert default_path({"HOME": home, "XDG_CACHE_HOME": cache}) == tmp_path / "cache" / "graphcache"
    assert (tmp_path / "cache" / "graphcache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("home", [None, "", "/", "relative", "/proc/nothing"])
def test_without_a_home_it_is_a_private_directory_that_lasts(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = {} if home is None else {"HOME": home}
    path = default_path(environ)
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o777 == 0o700
    assert default_path(environ) == path
    assert str(path) in caplog.text


@pytest.mark.parametrize("planted", ["writable", "readable", "link", "file", "foreign"])
def test_a_planted_temporary_directory_is_not_used(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expected = tmp_path / f"graphcache-{os.geteuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    if planted == "link":
        expected.symlink_to(elsewhere)
    elif planted == "file":
        expected.touch(0o600)
    else:
        expected.mkdir(0o700)
        expected.chmod({"writable": 0o777, "readable": 0o755}.get(planted, 0o700))
    if planted == "foreign":
        owned = [expected.lstat().st_uid + 1]
        monkeypatch.setattr(os, "geteuid", lambda: owned[0])
        expected.rename(tmp_path / f"graphcache-{owned[0]}")
        expected = tmp_path / f"graphcache-{owned[0]}"
    path = default_path({})
    assert path not in (expected, elsewhere)
    assert path.stat().st_mode & 0o777 == 0o700
    assert list(elsewhere.iterdir()) == []


def test_a_cache_directory_that_others_can_write_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planted = tmp_path / ".cache" / "graphcache"
    make_private(planted)
    planted.chmod(0o777)
    assert default_path({"HOME": str(tmp_path)}) != planted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that nobody knows")
def test_an_unknown_user_has_a_store(tmp_path: Path) -> None:
    script = (
        "import os; from graphcache.store.private import default_path; "
        "from graphcache.store.disk import DiskStore; "
        "import tempfile; tempfile.tempdir = os.curdir; os.environ.clear(); "
        "os.setgroups([]); os.setgid(54321); os.setuid(54321); "
        "path = default_path(); DiskStore(path).close(); "
        "assert path.stat().st_uid == 54321; assert path.stat().st_mode & 0o077 == 0; "
        "assert not path.is_absolute()"
    )
    tmp_path.chmod(0o1777)
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_errors_say_what_was_being_done() -> None:
    with pytest.raises(StoreFullError, match="writing: No space"), store_errors("writing"):
        raise OSError(28, "No space left on device")
    with pytest.raises(StoreError, match="reading: Permission"), store_errors("reading"):
        raise PermissionError(13, "Permission denied")
