"""Whether torch-xla's executables outlive their process: tried once for each version and device.

A file that was written says nothing: a PJRT plugin may write executables that it can't read back.  So one
process writes one, and another must read it.  Run it beforehand where only one process may open the device::

    python -m graphcache.backends.xla_probe CACHE_DIR
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

RECORD = "persistence.json"
PROBE_SECONDS = 600.0

_HIT, _FAILURE = "PersistentCacheHit", "PersistentCacheDeserializeFailure"
_CHILD = f"""
import json, sys, torch, torch_xla, torch_xla.runtime
from torch_xla.debug import metrics
torch_xla.runtime.initialize_cache(sys.argv[1])
(torch.ones(8).to(torch_xla.device()) * 3).cpu()
print(json.dumps({{name: metrics.counter_value(name) or 0 for name in ({_HIT!r}, {_FAILURE!r})}}))
"""


class Persistence(NamedTuple):
    """Whether executables outlive their process, and what was seen that says so."""

    persists: bool
    reason: str


def recorded(cache_dir: Path) -> dict[str, Persistence]:
    """Return what was found, by torch-xla's version and device; a record that is damaged is none."""
    try:
        found = json.loads((cache_dir / RECORD).read_text())
        return {
            where: Persistence(bool(said["persists"]), str(said["reason"])) for where, said in found.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def persistence(cache_dir: Path) -> Persistence:
    """Return whether executables below ``cache_dir`` can be read back, as recorded, or as tried now.

    Trying starts two processes that open the device.  Where they can't, nothing is recorded.
    """
    import torch_xla
    import torch_xla.runtime as xr

    where = f"torch_xla {torch_xla.__version__} on {xr.device_type()}"
    known = recorded(cache_dir)
    if where in known:
        return known[where]
    found = probe(cache_dir)
    if found is None:
        return Persistence(False, "no process could open the device to try it")
    _record(cache_dir, {**known, where: found})
    return found


def probe(cache_dir: Path) -> Persistence | None:
    """Have one process write an executable and another read it; None where one of them failed."""
    directory = Path(tempfile.mkdtemp(prefix="probe-", dir=cache_dir))
    try:
        wrote = _child(directory)
        files = sum(path.is_file() for path in directory.rglob("*"))
        read = _child(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if wrote is None or read is None:
        return None
    if not files:
        return Persistence(False, "the device's plugin writes no executables")
    if read[_FAILURE] or not read[_HIT]:
        return Persistence(False, "the device's plugin writes executables that it can't read back")
    return Persistence(True, "an executable was written by one process and read by another")


def _child(directory: Path) -> Mapping[str, int] | None:
    command = [sys.executable, "-c", _CHILD, str(directory)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PROBE_SECONDS)
        counters: dict[str, int] = json.loads(ran.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return counters


def _record(cache_dir: Path, found: Mapping[str, Persistence]) -> None:
    text = json.dumps({where: said._asdict() for where, said in found.items()}, indent=2)
    with tempfile.NamedTemporaryFile("w", dir=cache_dir, prefix=".persistence-", delete=False) as file:
        file.write(text)
    os.replace(file.name, cache_dir / RECORD)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    print(*persistence(place))
