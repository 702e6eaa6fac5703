"""The rules find a backend that breaks them, each the one it breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes import FakeBackend

from graphcache.backends.protocol import Artifact, Backend, Graph
from graphcache.contract import KEYS, RULES, Result, Verdict, check, subject
from graphcache.errors import ConfigError, LoadError
from graphcache.key import GraphKey


class Good(FakeBackend):
    """Keeps every rule: its graphs return their inputs, its artifacts are read strictly."""

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        if artifact.payload != str(key).encode():
            raise LoadError(f"{key}: not its artifact")
        return Graph(lambda *inputs: list(inputs), nbytes=8)

    def inputs(self, key: GraphKey) -> tuple[float, ...]:
        return (1.0, float(key.seq_len))


class Unsteady(Good):
    calls = 0

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        super().load(key, artifact)

        def run(*inputs: float) -> float:
            self.calls += 1
            return float(self.calls)

        return Graph(run)


class Once(Good):
    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        graph = super().load(key, artifact)
        closed = self.__dict__.setdefault("closed", [])
        if closed:
            raise LoadError("gone")
        graph.close = lambda: closed.append(key)
        return graph


class Trusting(Good):
    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        return Graph(lambda *inputs: list(inputs))


class Private(Good):
    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        if not self.compiles:
            raise LoadError("compiled by somebody else")
        return super().load(key, artifact)


class Numbered(Good):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Numbered.made += 1
        self.number = Numbered.made

    def fingerprint(self) -> list[tuple[str, str]]:
        return [("backend", "good"), ("process", str(self.number))]


def with_(**attributes: object) -> type[Good]:
    return type("Broken", (Good,), attributes)


def results_of(make: Callable[[], Backend]) -> dict[str, Result]:
    return {result.rule: result for result in check(subject(make))}


def test_a_good_backend_breaks_no_rule() -> None:
    results = results_of(Good)
    assert list(results) == list(RULES)
    assert [result for result in results.values() if result.verdict is Verdict.FAIL] == []
    assert sum(result.verdict is Verdict.PASS for result in results.values()) >= 9


@pytest.mark.parametrize(
    ("make", "broken"),
    [
        (with_(persists="yes"), {"name, persists"}),
        (with_(name=""), {"name, persists"}),
        (with_(fingerprint=lambda self: [("a", "1"), ("a", "2")]), {"its facts"}),
        (with_(fingerprint=lambda self: [("a", 1)]), {"its facts"}),
        (Numbered, {"another instance has the same facts"}),
        (with_(persists=False), {"bytes exactly"}),
        (with_(compile=lambda self, key: Artifact(str(key).encode(), meta={"a": (1,)})), {"bytes exactly"}),
        (with_(load=lambda self, key, artifact: Good().load(key, artifact).run), {"can be called"}),
        (Unsteady, {"equal inputs"}),
        (Once, {"let go"}),
        (Trusting, {"nothing in it", "damaged"}),
        (Private, {"another instance loads"}),
    ],
)
def test_what_breaks_a_rule_fails_that_rule(make: Callable[[], Backend], broken: set[str]) -> None:
    failed = {rule for rule, result in results_of(make).items() if result.verdict is Verdict.FAIL}
    for text in broken:
        assert any(text in rule for rule in failed), failed


def test_what_a_rule_finds_is_told() -> None:
    results = results_of(with_(compile=lambda self, key: 1 / 0))
    result = next(result for result in results.values() if "bytes exactly" in result.rule)
    assert result.detail == "ZeroDivisionError: division by zero"


def test_rules_that_do_not_apply_are_skipped_with_the_reason() -> None:
    results = results_of(FakeBackend)
    skipped = {result.rule: result.detail for result in results.values() if result.verdict is Verdict.SKIP}
    assert skipped["a graph returns what the program's module returns"].endswith("no program to compare with")
    assert "compile themselves" in skipped[list(RULES)[-1]]


def test_only_the_rules_named_are_tried() -> None:
    first = next(iter(RULES))
    assert [result.rule for result in check(subject(Good), [first])] == [first]


def test_a_key_is_compiled_once_for_most_rules() -> None:
    tested = subject(Good)
    list(check(tested))
    assert tested.backend.compiles[KEYS[1]] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "target", ["graphcache.key:KEYLESS", "graphcache.no_such:X", "graphcache.key:COVERS"]
)
def test_what_is_no_backend_is_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        subject(target)
