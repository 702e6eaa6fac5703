"""Sizes in bytes as people write and read them: ``2GiB``, ``1.8 MiB``."""

from __future__ import annotations

import re
from fractions import Fraction

from graphcache.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_TEXT = re.compile(r"(?P<number>\d{1,18}(\.\d{1,18})?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)
ALLOWED_BYTES = "a whole number of bytes of at least 1, or a size such as 512MiB, 2GiB or 20GB"


def parse_bytes(size: str | int, field: str = "size") -> int:
    """Return a size in bytes; ``KiB`` and its like are powers of 1024, ``kB`` and its like of 1000.

    ``field`` is what an error calls the value.

    Raises:
        ConfigError: no size, or less than one byte.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return size
    match = _TEXT.fullmatch(size.strip()) if isinstance(size, str) else None
    unit = _UNITS.get(match["unit"].lower()) if match else None
    nbytes = int(Fraction(match["number"]) * unit) if match and unit else 0
    if nbytes < 1:
        raise ConfigError.of(field, size, ALLOWED_BYTES)
    return nbytes


def format_bytes(nbytes: int) -> str:
    """Return a size to three digits or so in powers of 1024: ``0 B``, ``1.8 MiB``, ``512 MiB``."""
    size, units = float(nbytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    digits = 1 if unit != "B" and size < 100 else 0
    return f"{size:.{digits}f} {unit}"
