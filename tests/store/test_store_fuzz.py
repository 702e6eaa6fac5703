"""Every reader, fed what is in ``corpus`` and what random changes make of it: it answers, or says no."""

from __future__ import annotations

import hashlib
import io
import os
import random
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from store_entries import entry

from graphcache.errors import StoreError
from graphcache.store.bundle import import_bundle
from graphcache.store.format import MAGIC, PREFIX, check_entry, read_entry
from graphcache.store.memory import MemoryStore
from graphcache.store.protocol import Stored
from graphcache.store.sealed import SealKeys

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
KEYS = SealKeys([b"k" * 32])


def as_entry(data: bytes) -> Stored | None:
    """Read bytes as the file of an entry; None where they are refused."""
    with suppress(StoreError):
        return read_entry(io.BytesIO(data), entry(1)[0])
    return None


def as_bundle(data: bytes, keys: SealKeys | None) -> MemoryStore:
    """Read bytes as a bundle; return what was taken."""
    store = MemoryStore()
    with suppress(StoreError):
        import_bundle(io.BytesIO(data), store, keys=keys, max_bytes=1 << 20)
    return store


def read(data: bytes) -> None:
    """Read bytes in every way, and check that what is taken is whole."""
    stored = as_entry(data)
    if stored:
        check_entry(entry(1)[0], stored.record, stored.payload)
    for keys in (None, KEYS):
        store = as_bundle(data, keys)
        for digest, _ in store.scan():
            taken = store._entries[digest]
            check_entry(digest, taken.record, taken.payload)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_is_in_the_corpus_is_answered(path: Path) -> None:
    data = path.read_bytes()
    read(data)
    assert (as_entry(data) is not None) == (path.name == "entry-whole")
    taken = len(list(as_bundle(data, None).scan()))
    assert (taken == 2) >= path.name.startswith(("bundle-whole", "bundle-sealed"))
    assert (len(list(as_bundle(data, KEYS).scan())) == 2) == (path.name == "bundle-sealed")


def changed(data: bytes, chance: random.Random) -> bytes:
    """Change bytes at random: flip, cut, double, or put in what is special."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        special = chance.choice([b"\0", b"\xff" * 4, b"[" * 9, b"{", b'"', b"-1", b"1e999", b"E", b"T"])
        data = chance.choice(
            [
                data[:at],
                data[:at] + special + data[at:],
                data[:at] + special + data[at + len(special) :],
                data[:at] + data[: chance.randint(0, 200)] + data[at:],
                data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            ]
        )
    return data


def vouched(data: bytes) -> bytes:
    """Give an entry the checksum of the header that it has, as an attacker would."""
    if len(data) < PREFIX.size or not data.startswith(MAGIC):
        return data
    _, version, length, _ = PREFIX.unpack(data[: PREFIX.size])
    header = data[PREFIX.size : PREFIX.size + length]
    return PREFIX.pack(MAGIC, version, length, hashlib.sha256(header).digest()) + data[PREFIX.size :]


@pytest.mark.parametrize("rounds", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_what_random_changes_make_of_it_is_answered(rounds: int) -> None:
    chance = random.Random(rounds)
    for path in CORPUS:
        data = path.read_bytes()
        for _ in range(rounds if len(data) < 4000 else rounds // 20):
            read(changed(data, chance))
            read(vouched(changed(data, chance)))


def fuzz(made: Path, runs: int, *broken: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"}
    line = [sys.executable, here / "fuzz_readers.py", made, str(runs), *broken]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


needs_atheris = pytest.mark.skipif(
    not find_spec("atheris"), reason="atheris is not installed: pip install atheris"
)


@needs_atheris
@pytest.mark.parametrize("runs", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_what_reaches_new_code_is_answered(tmp_path: Path, runs: int) -> None:
    done = fuzz(tmp_path, runs)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {runs} runs" in done.stderr
    assert list(tmp_path.iterdir()) != []


@needs_atheris
def test_a_reader_that_verifies_nothing_is_found_out(tmp_path: Path) -> None:
    assert fuzz(tmp_path, 200_000, "unverified").returncode != 0
    assert list(tmp_path.glob("crash-*")) != []
