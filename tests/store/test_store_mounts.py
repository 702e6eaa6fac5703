import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphcache.errors import StoreError
from graphcache.store.mounts import check_executable, mount_of

TABLE = r"""
22 27 0:21 / / rw,relatime shared:7 - ext4 /dev/vda rw
23 22 0:22 / /home rw,nosuid - nfs4 server:/home rw,vers=4.2
24 23 0:23 / /home/with\040space rw,noexec - tmpfs tmpfs rw
25 22 0:24 / /home/user/local rw - xfs /dev/vdb rw
26 22 0:25 / /mnt/a rw - ext4 /dev/vdc rw
27 26 0:26 / /mnt/a rw - fuse.sshfs host:/ rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/home/user/.cache", "nfs4", True),
        ("/home/user/local/x", "xfs", False),
        ("/homework", "ext4", False),
        ("/home/with space/x", "tmpfs", False),
        ("/mnt/a/b", "fuse.sshfs", True),
    ],
)
def test_a_path_is_on_the_nearest_mount(path: str, kind: str, network: bool) -> None:
    mount = mount_of(Path(path), TABLE)
    assert (mount.kind, mount.network) == (kind, network)


def test_without_a_table_the_kind_is_unknown() -> None:
    assert mount_of(Path("/home"), "").kind == "unknown"
    assert not mount_of(Path("/home"), "").network


def test_a_noexec_mount_is_refused_where_libraries_are_to_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_executable(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(StoreError, match="noexec"):
        check_executable(tmp_path)
