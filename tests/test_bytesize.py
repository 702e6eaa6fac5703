"""Sizes are read as people write them, and written so that they can be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.bytesize import format_bytes, parse_bytes
from graphcache.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("512B", 512),
        ("2GiB", 2 * 2**30),
        ("2 gib", 2 * 2**30),
        (" 1.5 MiB ", 3 * 2**19),
        ("20GB", 20 * 10**9),
        ("3kB", 3000),
        ("1TiB", 2**40),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "size", ["", "0", 0, -1, "-1", "2 G", "2XiB", "GiB", "0.0001", "1e9", True, None, 1.5, [], "9" * 5000]
)
def test_what_is_no_size_is_refused(size):
    with pytest.raises(ConfigError, match=r"is not allowed; allowed: a whole number of bytes .* 2GiB"):
        parse_bytes(size)


def test_an_error_names_the_field():
    with pytest.raises(ConfigError, match=r"^budget\.bytes: '2 parsecs' is not allowed"):
        parse_bytes("2 parsecs", "budget.bytes")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_887_437, "1.8 MiB"),
        (2**29, "512 MiB"),
        (2**31, "2.0 GiB"),
        (2**53, "8192 TiB"),
    ],
)
def test_formats(nbytes, text):
    assert format_bytes(nbytes) == text


@given(st.integers(1, 2**60))
def test_a_written_size_reads_back_to_three_digits(nbytes):
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.06)
