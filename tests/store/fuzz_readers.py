"""Fuzz the readers of entries and bundles, led by what code the bytes reach: needs atheris.

    python fuzz_readers.py NEW_INPUTS RUNS [unverified]

Begins with ``corpus``; inputs that reach new code are written to the directory NEW_INPUTS, one that is not
answered ends the process and is written there too.  ``unverified`` takes the defence out that must be missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["graphcache"]):
    import test_store_fuzz as readers

    from graphcache.store import format as entry_format

CORPUS = Path(__file__).parent / "corpus"


def answer(data: bytes) -> None:
    readers.read(data)
    readers.read(readers.vouched(data))


def main() -> None:
    made, runs, *broken = sys.argv[1:]
    if broken:
        entry_format.read_payload = lambda file, record: file.read(record.payload_bytes)
    options = [f"-runs={runs}", "-seed=1", "-max_len=4096", f"-artifact_prefix={made}/"]
    atheris.Setup([sys.argv[0], *options, made, str(CORPUS)], answer)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
