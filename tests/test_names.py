"""Names are found in a table, by entry point, or as module:Attribute; others are refused."""

from importlib.metadata import EntryPoint

import pytest

from graphcache import names
from graphcache.errors import ConfigError, UnknownNameError
from graphcache.names import BACKENDS, EVICTIONS, LADDERS, POLICIES, NameTable

TABLE = NameTable(
    "policy", "graphcache.policies", {"dict": "collections:OrderedDict", "lost": "collections:Lost"}
)


@pytest.fixture
def installed(monkeypatch):
    """Stand in for two installed packages, one of which takes a name that the table has."""
    points = [
        EntryPoint("counter", "collections:Counter", "graphcache.policies"),
        EntryPoint("dict", "collections:Counter", "graphcache.policies"),
    ]
    monkeypatch.setattr(names, "entry_points", lambda group: [p for p in points if p.group == group])


@pytest.mark.parametrize("table", [POLICIES, EVICTIONS, LADDERS], ids=lambda table: table.what)
def test_every_name_of_the_tables_is_there(table):
    assert all(callable(table.find(name)) for name in table.targets)


def test_the_names_that_ship():
    assert set(POLICIES.targets) >= {"static-mask", "static-causal", "dynamic-dual"}
    assert set(EVICTIONS.targets) >= {"lru", "lfu"}
    assert set(LADDERS.targets) >= {"pow2", "linear", "explicit"}
    assert set(BACKENDS.targets) >= {"inductor", "eager"}


@pytest.mark.usefixtures("installed")
def test_entry_points_extend_the_table_and_replace_nothing():
    from collections import Counter, OrderedDict

    assert list(TABLE) == ["dict", "lost", "counter"]
    assert TABLE.find("counter") is Counter
    assert TABLE.find("dict") is OrderedDict


def test_a_dotted_name_needs_no_table():
    assert TABLE.find("email.message:Message.get_payload").__name__ == "get_payload"


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"^policy: 'dct' is not known; known: counter, dict, lost$"):
        TABLE.check("dct")
    with pytest.raises(UnknownNameError, match="known: counter, dict, lost"):
        TABLE.find("dct")


@pytest.mark.parametrize("name", ["collections:Nothing", "lost"])
def test_an_attribute_that_is_not_there_is_an_unknown_name(name):
    with pytest.raises(UnknownNameError, match=r"policy: 'collections' has no attribute '(Nothing|Lost)'"):
        TABLE.find(name)


@pytest.mark.parametrize("name", ["no_such_module_of_ours:X", ":X", "..:X"])
def test_a_module_that_is_not_there_says_why(name):
    with pytest.raises(ConfigError, match=f"policy: '{name}' can't be imported: "):
        TABLE.find(name)


def test_checking_a_name_imports_nothing():
    TABLE.check("no_such_module_of_ours:X")
