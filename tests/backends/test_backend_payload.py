from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.backends.payload import MAGIC, MAX_FILES, Payload
from graphcache.errors import LoadError

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
files = st.dictionaries(names, st.binary(max_size=64), max_size=MAX_FILES)
PACKED = Payload({"graph.so": b"code" * 8, "own": b""}, {"torch": "2"}).pack()


def with_header(header: object, rest: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    body = len(text).to_bytes(4, "big") + text + rest
    return MAGIC + hashlib.sha256(body).digest() + body


@given(files, st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=4))
def test_what_is_packed_is_unpacked(files: dict[str, bytes], about: dict[str, object]) -> None:
    payload = Payload.unpack(Payload(files, about).pack())
    assert {name: bytes(content) for name, content in payload.files.items()} == files
    assert payload.about == about


@given(st.integers(0, len(PACKED) - 1))
def test_a_cut_payload_is_refused(length: int) -> None:
    with pytest.raises(LoadError):
        Payload.unpack(PACKED[:length])


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_changed_payload_is_refused(at: int, flip: int) -> None:
    changed = bytearray(PACKED)
    changed[at] ^= flip
    with pytest.raises(LoadError):
        Payload.unpack(bytes(changed))


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    for data in (noise, MAGIC + noise):
        with pytest.raises(LoadError):
            Payload.unpack(data)


@pytest.mark.parametrize("name", ["../graph.so", "/etc/passwd", "a/b", "", ".hidden", "a\x00b", "x" * 200])
def test_a_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(LoadError):
        Payload.unpack(Payload({name: b""}).pack())


@pytest.mark.parametrize(
    "files",
    [
        "graph.so",
        [["graph.so", -1]],
        [["graph.so", 1 << 60]],
        [["graph.so"]],
        [["graph.so", 0.5]],
        [["own", 0]] * 2,
        [[f"own{n}", 0] for n in range(MAX_FILES + 1)],
    ],
)
def test_a_header_that_lies_is_refused(files: object) -> None:
    with pytest.raises(LoadError):
        Payload.unpack(with_header({"files": files, "about": {}}))


@pytest.mark.parametrize("header", [[], {}, {"files": []}, {"files": [], "about": []}, "text", None])
def test_a_header_of_another_form_is_refused(header: object) -> None:
    with pytest.raises(LoadError):
        Payload.unpack(with_header(header))


def test_bytes_that_no_file_names_are_refused() -> None:
    with pytest.raises(LoadError, match="1 bytes"):
        Payload.unpack(with_header({"files": [], "about": {}}, b"x"))


def test_files_are_written_for_the_owner_alone(tmp_path: Path) -> None:
    Payload({"graph.so": b"code"}).write(tmp_path)
    assert (tmp_path / "graph.so").read_bytes() == b"code"
    assert stat.S_IMODE(os.stat(tmp_path / "graph.so").st_mode) == 0o600


def test_a_file_that_is_there_already_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tmp_path / "graph.so").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        Payload({"graph.so": b"code"}).write(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
