"""The machine that code is compiled for: threads, architecture, vector instructions, compiler.

All of it is explicit, and a fact of the namespace, so that code does not follow from the process, or the
machine, that happened to compile it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from graphcache.errors import ConfigError, LoadError

NATIVE = "native"
NO_COMPILER = "none"
PLANNED_THREADS = 8
"""What loops are cut for where the number of threads is left open: a constant, lest code follow the host."""

_LEVELS: tuple[tuple[str, str], ...] = (
    ("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe"),
    ("x86-64-v4", "avx512bw avx512cd avx512dq avx512f avx512vl"),
)
"""The x86-64 psABI's levels, lowest first, and what each asks of ``/proc/cpuinfo`` beside those before it."""

_AVX512 = "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma"
ISAS: Mapping[str, tuple[str, str, str]] = {
    "none": ("InvalidVecISA", "", ""),
    "avx2": ("VecAVX2", "avx2 fma f16c", "-mavx2 -mfma -mf16c"),
    "avx512": ("VecAVX512", "avx512f avx512dq avx512vl avx512bw fma", _AVX512),
    "avx512_bf16": (
        "VecAVX512",
        "avx512f avx512dq avx512vl avx512bw fma avx512_bf16",
        f"{_AVX512} -mavx512bf16",
    ),
}
"""Vector instructions, least first: Inductor's class for them, what they ask of the host, compiler flags."""


@dataclass(frozen=True, slots=True)
class Target:
    """What code is compiled for; the defaults are this host's, in a form that other hosts share.

    ``threads`` is None where the code takes as many threads as OpenMP gives it when it runs, else a number
    that is compiled in.  ``march`` is the compiler's ``-march``: by default the host's x86-64 level, such
    as ``x86-64-v4``; ``native`` is tuned to this very processor, and fits no other.  ``isa`` is one of
    `ISAS`, or ``host`` where Inductor chooses (the default beside x86-64).  ``compiler`` names what
    compiles, as ``g++ 12.2.0``: given explicitly, it lets a host without a compiler load what such a one
    has made.

    Raises:
        ConfigError: a number of threads below 1, or an instruction set that is not in `ISAS`.
    """

    threads: int | None = None
    march: str | None = None
    isa: str | None = None
    cxx: str = ""
    compiler: str | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and (isinstance(self.threads, bool) or self.threads < 1):
            raise ConfigError.of("threads", self.threads, "an integer of at least 1, or none for any number")
        if self.isa not in (None, "host", *ISAS):
            raise ConfigError.of("isa", self.isa, ", ".join(("host", *ISAS)))

    def resolved(self) -> Target:
        """Return the target with nothing left to a default, so that another process compiles the same."""
        cxx = self.cxx or os.environ.get("CXX", "g++")
        return replace(
            self,
            march=self.march or host_level(),
            isa=self.isa or host_isa(),
            cxx=cxx,
            compiler=self.compiler or compiler_version(cxx),
        )

    def facts(self) -> list[tuple[str, str]]:
        """Return the labelled facts of a resolved target."""
        march = f"{NATIVE}:{_flags_digest()}" if self.march == NATIVE else str(self.march)
        return [
            ("machine", platform.machine()),
            ("threads", "any" if self.threads is None else str(self.threads)),
            ("march", march),
            ("isa", f"host:{_flags_digest()}" if self.isa == "host" else str(self.isa)),
            ("compiler", str(self.compiler)),
        ]


def host_level() -> str:
    """Return the highest x86-64 level that this host has, or ``native`` beside x86-64."""
    level = NATIVE
    for name, needed in _LEVELS:
        if not host_flags().issuperset(needed.split()):
            break
        level = name
    return level


def host_isa() -> str:
    """Return the best of `ISAS` that this host has, or ``host`` beside x86-64."""
    if platform.machine() != "x86_64":
        return "host"
    return [name for name, (_, needed, _) in ISAS.items() if host_flags().issuperset(needed.split())][-1]


@cache
def host_flags() -> frozenset[str]:
    """Return what this host's processor can do, in the kernel's words; empty where nothing tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features")))
    return frozenset(next(flags, "").split())


@cache
def compiler_version(cxx: str) -> str:
    """Return a C++ compiler's name and version, such as ``g++ 12.2.0``, or ``none`` where there is none."""
    if not shutil.which(cxx):
        return NO_COMPILER
    command = [cxx, "-dumpfullversion", "-dumpversion"]
    version = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    return f"{Path(cxx).name} {version.strip() or 'unknown'}"


def _flags_digest() -> str:
    return hashlib.sha256(" ".join(sorted(host_flags())).encode()).hexdigest()[:16]


def check_host(target: Mapping[str, str]) -> None:
    """Make sure that this processor can run code of a target, given by its facts.

    Raises:
        LoadError: it is for another machine, or for instructions that this one lacks: running it would
            kill the process.
    """
    isa, march = target["isa"], target["march"]
    needed = ISAS[isa][1].split() if isa in ISAS else []
    for level, flags in _LEVELS if march in dict(_LEVELS) else ():
        needed += flags.split()
        if level == march:
            break
    lacking = sorted(set(needed) - host_flags())
    if target["machine"] != platform.machine():
        lacking = [target["machine"]]
    elif NATIVE in march and march != f"{NATIVE}:{_flags_digest()}":
        lacking = ["the very processor it was compiled on"]
    if lacking:
        raise LoadError(
            f"code for {march}, {isa} needs {', '.join(lacking)}, which this host is not or has not"
        )
