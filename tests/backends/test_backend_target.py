from __future__ import annotations

import platform

import pytest

from graphcache.backends import target as module
from graphcache.backends.target import ISAS, Target, check_host, compiler_version, host_isa, host_level
from graphcache.errors import ConfigError, LoadError

BASE = Target(march="x86-64-v3", isa="avx2", cxx="g++", compiler="g++ 12.2.0")


def test_everything_is_resolved_and_nothing_follows_from_the_process() -> None:
    resolved = Target().resolved()
    assert None not in (resolved.march, resolved.isa, resolved.compiler)
    assert resolved.cxx
    assert resolved.resolved() == resolved
    assert dict(resolved.facts())["threads"] == "any"


@pytest.mark.parametrize(
    "other",
    [
        {"threads": 1},
        {"threads": 2},
        {"march": "x86-64-v4"},
        {"march": "native"},
        {"isa": "avx512"},
        {"isa": "host"},
        {"compiler": "g++ 13.1.0"},
    ],
)
def test_each_option_that_changes_code_is_a_fact(other: dict[str, object]) -> None:
    from dataclasses import replace

    assert replace(BASE, **other).facts() != BASE.facts()  # type: ignore[arg-type]


def test_where_the_compiler_lies_is_no_fact() -> None:
    from dataclasses import replace

    assert replace(BASE, cxx="/opt/bin/g++").facts() == BASE.facts()


@pytest.mark.parametrize("threads", [0, -1, True])
def test_a_number_of_threads_that_is_none_is_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match="threads"):
        Target(threads=threads)


def test_unknown_instructions_are_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ConfigError, match=r"isa.*mmx.*avx2"):
        Target(isa="mmx")


@pytest.mark.parametrize(
    ("level", "isa"),
    [("x86-64-v2", "none"), ("x86-64-v3", "avx2"), ("x86-64-v4", "avx512")],
)
def test_a_host_is_known_by_its_flags(monkeypatch: pytest.MonkeyPatch, level: str, isa: str) -> None:
    flags: list[str] = []
    for name, needed in module._LEVELS:
        flags += needed.split()
        if name == level:
            break
    monkeypatch.setattr(module, "host_flags", lambda: frozenset(flags))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert (host_level(), host_isa()) == (level, isa)


def test_a_host_that_is_not_x86_leaves_the_choice_to_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "host_flags", lambda: frozenset(["asimd", "sve"]))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert (host_level(), host_isa()) == ("native", "host")
    assert dict(Target().resolved().facts())["march"].startswith("native:")


def test_code_of_this_host_is_accepted_here() -> None:
    check_host(dict(Target().resolved().facts()))
    check_host(dict(Target(march="native", isa="host").resolved().facts()))


@pytest.mark.parametrize("isa", [name for name in ISAS if name != "none"])
def test_code_for_instructions_that_the_host_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    facts = dict(Target(isa=isa).resolved().facts())
    monkeypatch.setattr(module, "host_flags", lambda: frozenset())
    with pytest.raises(LoadError, match=isa):
        check_host(facts)


def test_code_of_another_machine_or_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = dict(Target(march="native", isa="none").resolved().facts())
    with pytest.raises(LoadError, match="s390x"):
        check_host({**facts, "machine": "s390x"})
    monkeypatch.setattr(module, "host_flags", lambda: frozenset(["other"]))
    with pytest.raises(LoadError, match="processor"):
        check_host(facts)


def test_a_compiler_tells_its_version_or_is_none() -> None:
    assert compiler_version("g++").startswith("g++ ")
    assert compiler_version("no-such-compiler") == "none"
