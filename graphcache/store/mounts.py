"""What kind of file system a path is on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from graphcache.errors import StoreError

_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|fuse\.\S+|fuse")
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of the mount table."""

    point: str
    kind: str
    options: tuple[str, ...]

    @property
    def network(self) -> bool:
        """Whether other hosts may see the same files, so that locks and mappings can't be relied on."""
        return _NETWORK.fullmatch(self.kind) is not None


def mount_of(path: Path, table: str | None = None) -> Mount:
    """Return the mount that a path is on; where there is no mount table, one of unknown kind."""
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return Mount("/", "unknown", ())
    resolved = path.resolve()
    found = Mount("/", "unknown", ())
    for mount in map(_parse, table.splitlines()):
        # The last of two mounts on one point hides the first.
        if mount and resolved.is_relative_to(mount.point) and len(mount.point) >= len(found.point):
            found = mount
    return found


def _parse(line: str) -> Mount | None:
    left, separator, right = line.partition(" - ")
    fields, kind = left.split(" "), right.split(" ")
    if not separator or len(fields) < 6:
        return None
    point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(point, kind[0], tuple(fields[5].split(",")))


def check_executable(path: Path) -> None:
    """Refuse a directory from which no library can be loaded.

    Raises:
        StoreError: it is on a file system mounted ``noexec``.
    """
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        raise StoreError(
            f"compiled graphs can't be loaded from {str(path)!r}: it is on a file system mounted `noexec`; "
            "use a path on another one, or mount it `exec`"
        )
