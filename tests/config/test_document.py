"""YAML files are read as plain trees that know their lines; what could hurt is refused."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.config.document import MAX_FILE_BYTES, Document, read_document
from graphcache.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    path = tmp_path / "x.yaml"

    def write(text):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_fields_know_their_lines(write):
    path = write("a: 1\n\nb:\n  c: [1,\n      2]\n  d: {e: 3}\n")
    document = read_document(path)
    assert document.fields == {"a": 1, "b": {"c": [1, 2], "d": {"e": 3}}}
    lines = {("a",): 1, ("b",): 3, ("b", "c"): 4, ("b", "c", 1): 5, ("b", "d", "e"): 6}
    for location, line in lines.items():
        assert document.place(location) == f"{path}:{line}"


def test_what_is_not_there_is_placed_at_what_is_around_it(write):
    path = write("\nb:\n  c: [1]\n")
    document = read_document(path)
    assert document.place(()) == f"{path}:2"
    assert document.place(("b", "missing")) == f"{path}:2"
    assert document.place(("b", "c", 7)) == f"{path}:3"
    assert document.place(("b", "some-tag", "c")) == f"{path}:3"


def test_fields_from_python_have_no_lines():
    assert Document("configuration", {"a": 1}).place(("a",)) == "configuration"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "x.yaml:2: a: given twice"),
        ("b:\n  c: 1\n  d: 2\n  c: 3\n", "x.yaml:4: c: given twice"),
        ("a: &x 1\nb: *x\n", "x.yaml:2: the alias \\*x is not allowed"),
        ("a: !!python/object/apply:os.getcwd []\n", "x.yaml:1: the tag tag:yaml.org,2002:python"),
        ("a: !!int ''\n", "x.yaml:1: the tag tag:yaml.org,2002:int is not allowed"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: not YAML: but found another document"),
        ("a: [1, 2\nb: 3\n", "x.yaml:2: not YAML: "),
        ("a: 'open\n", "x.yaml:2: not YAML: "),
        ("a:\n\tb: 1\n", "x.yaml:2: not YAML: "),
        ("? [1]\n: 2\n", "x.yaml:1: not YAML: found unhashable key"),
        ("a: 2026-99-99\n", "x.yaml: not YAML: month must be in 1..12"),
        ("a: \x07\n", "x.yaml: not YAML: unacceptable character"),
        (b"a: \xff\n", "x.yaml: not UTF-8 text: invalid start byte at byte 3"),
        ("", "x.yaml:1: None is not allowed; allowed: fields"),
        ("- a\n", "x.yaml:1: \\['a'\\] is not allowed; allowed: fields"),
        ("just text", "x.yaml:1: 'just text' is not allowed"),
        ("a: " + "[" * 5000, "x.yaml:1: nested deeper than"),
        ("a: " + "{b: " * 30, "x.yaml:1: nested deeper than"),
        ("#" * (MAX_FILE_BYTES + 1), f"x.yaml: too long; allowed: at most {MAX_FILE_BYTES} bytes"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_line(write, text, message):
    with pytest.raises(ConfigError, match=message):
        read_document(write(text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.yaml: can't be read: No such file"):
        read_document(tmp_path / "no.yaml")


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="not a file; allowed: a YAML file"):
        read_document(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="not a file"):
        read_document(tmp_path / "pipe.yaml")


@given(content=st.binary(max_size=200) | st.text("abc:{}[]&*!|>-?, \n'\"#%@0.1", max_size=60).map(str.encode))
def test_any_bytes_are_fields_or_an_error_of_ours(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    try:
        outcome = read_document(path).fields
    except ConfigError as error:
        outcome = str(error)
    assert isinstance(outcome, dict) or outcome.startswith(str(path))
