"""The tree of errors is the one that is drawn, and messages name what they must."""

import inspect

import pytest

from graphcache import errors
from graphcache.errors import CompileError, ConfigError, GraphCacheError, UnknownNameError

CLASSES = {
    name: item
    for name, item in vars(errors).items()
    if inspect.isclass(item) and item.__module__ == errors.__name__
}


def drawn_tree():
    """Read the drawing in the module's docstring: each class, and the one it hangs from."""
    parents, last_at_depth = {}, {}
    for line in inspect.getdoc(errors).splitlines():
        name = next((word for word in line.split() if word in CLASSES), None)
        if name and line.lstrip("│├└─ ").startswith(name):
            depth = line.index(name)
            last_at_depth = {d: n for d, n in last_at_depth.items() if d < depth}
            parents[name] = last_at_depth[max(last_at_depth)] if last_at_depth else None
            last_at_depth[depth] = name
    return parents


def test_the_drawing_is_the_tree():
    real = {
        name: next((base.__name__ for base in item.__bases__ if issubclass(base, GraphCacheError)), None)
        for name, item in CLASSES.items()
    }
    assert drawn_tree() == real


def test_a_wrong_value_is_a_value_error_too():
    assert issubclass(ConfigError, ValueError)


def test_a_config_error_names_field_value_and_what_is_allowed():
    assert str(ConfigError.of("rows", 0, "1 or more")) == "rows: 0 is not allowed; allowed: 1 or more"


def test_an_unknown_name_lists_the_known_ones_in_order():
    error = UnknownNameError.among("policy", "dyn", iter(["b", "a"]))
    assert isinstance(error, UnknownNameError)
    assert str(error) == "policy: 'dyn' is not known; known: a, b"


def test_a_compile_error_carries_key_and_cause():
    cause = RuntimeError("no space for tiles")
    error = CompileError("prefill/causal/1x128", cause)
    assert (error.key, error.cause) == ("prefill/causal/1x128", cause)
    assert str(error) == "compiling prefill/causal/1x128 failed: no space for tiles"


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"CompileError"}))
def test_every_class_takes_a_plain_message(name):
    assert str(CLASSES[name]("what went wrong")) == "what went wrong"
