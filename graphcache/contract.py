"""The rules that every backend keeps, tried on one: what a plugin's author runs on his own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from graphcache.backends.protocol import Artifact, Backend, EvictUnit, Graph
from graphcache.backends.watch import Watching
from graphcache.errors import ConfigError, FrozenError, LoadError
from graphcache.fingerprint import facts
from graphcache.key import GraphKey, MaskMode
from graphcache.names import BACKENDS
from graphcache.stats import Stats

KEYS = (GraphKey(1, 32), GraphKey(1, 32, mode=MaskMode.CUSTOM))
"""What is compiled unless other keys are given."""

TOLERANCE = 1e-3
"""How far a compiled graph's numbers may be from the module's, relative and absolute."""

NOISE = b"\x00noise" * 64


class Verdict(StrEnum):
    """What became of a rule."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    """It does not apply to this backend, or needs a program to take inputs from."""


class Result(NamedTuple):
    """One rule's verdict, and what was seen where it is not a pass."""

    rule: str
    verdict: Verdict
    detail: str = ""


class Inapplicable(Exception):
    """A rule that says nothing of this backend."""


class Subject:
    """A backend under test: made by ``make``, more than once, and compiled for ``keys``.

    ``program``, where the backend has one, gives the inputs and the numbers that graphs must return.
    """

    def __init__(self, make: Callable[[], Backend], keys: Sequence[GraphKey]) -> None:
        self.make = make
        self.keys = list(keys)
        self.artifacts: dict[GraphKey, Artifact] = {}

    @cached_property
    def backend(self) -> Backend:
        """The backend that most rules look at."""
        return self.make()

    def artifact(self, key: GraphKey) -> Artifact:
        """Return a key's artifact, compiled once."""
        if key not in self.artifacts:
            self.artifacts[key] = self.backend.compile(key)
        return self.artifacts[key]

    def graph(self, key: GraphKey) -> Graph:
        """Return a key's graph, loaded anew."""
        return self.backend.load(key, self.artifact(key))

    def inputs(self, key: GraphKey) -> tuple[Any, ...]:
        """Return inputs for a key's graph: the backend's own, else its program's.

        Raises:
            Inapplicable: neither gives any.
        """
        givers: tuple[Any, ...] = (self.backend, getattr(self.backend, "program", None))
        for giver in givers:
            if hasattr(giver, "inputs"):
                return tuple(giver.inputs(key))
        raise Inapplicable("the backend has no program to take inputs from")


Rule = Callable[[Subject], None]
RULES: dict[str, Rule] = {}
"""Every rule, by what it says."""


def rule(text: str) -> Callable[[Rule], Rule]:
    """Add a function to the rules; it raises where its rule is broken."""

    def add(check: Rule) -> Rule:
        RULES[text] = check
        return check

    return add


def subject(target: str | Callable[[], Backend], keys: Sequence[GraphKey] = KEYS) -> Subject:
    """Return the subject that a name stands for: ``module:Attribute``, called without arguments.

    Raises:
        ConfigError: there is no such name, or it can't be called that way.
    """
    make = BACKENDS.find(target) if isinstance(target, str) else target
    if not callable(make):
        raise ConfigError.of("backend", target, "a class or function that returns a backend")
    return Subject(make, keys)


def check(tested: Subject, rules: Sequence[str] | None = None) -> Iterator[Result]:
    """Try every rule, or those named, in their order; a rule that fails does not stop the others."""
    for text in RULES if rules is None else rules:
        try:
            RULES[text](tested)
        except Inapplicable as reason:
            yield Result(text, Verdict.SKIP, str(reason))
        except Exception as error:  # whatever a backend raises is what the rule found
            yield Result(text, Verdict.FAIL, f"{type(error).__name__}: {error}")
        else:
            yield Result(text, Verdict.PASS)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


# -- what it declares ---------------------------------------------------------------------------------


@rule("it can be made without arguments, and has a name, persists and evict_unit")
def _declares(tested: Subject) -> None:
    backend = tested.backend
    _demand(isinstance(backend.name, str) and bool(backend.name), f"name is {backend.name!r}")
    _demand(isinstance(backend.persists, bool), f"persists is {backend.persists!r}, not a bool")
    _demand(isinstance(backend.evict_unit, EvictUnit), f"evict_unit is {backend.evict_unit!r}, no EvictUnit")


@rule("its facts are texts, each label once, and the same when asked again")
def _facts(tested: Subject) -> None:
    found = tested.backend.fingerprint()
    texts = all(isinstance(text, str) for fact in found for text in fact)
    _demand(bool(found) and texts, "a fact is not a pair of texts, or there is none")
    facts(found)
    _demand(tested.backend.fingerprint() == found, "they differ when asked again")


@rule("another instance has the same facts")
def _facts_of_another(tested: Subject) -> None:
    ours, theirs = tested.backend.fingerprint(), tested.make().fingerprint()
    differing = [label for (label, one), (_, other) in zip(ours, theirs, strict=True) if one != other]
    _demand(not differing, f"what differs from process to process can't be a fact: {', '.join(differing)}")


# -- what it makes ------------------------------------------------------------------------------------


@rule("an artifact is bytes exactly where it persists, and its meta is plain JSON")
def _artifacts(tested: Subject) -> None:
    for key in tested.keys:
        artifact = tested.artifact(key)
        is_bytes = isinstance(artifact.payload, bytes)
        _demand(
            is_bytes is tested.backend.persists, f"{key}: the payload is {type(artifact.payload).__name__}"
        )
        _demand(json.loads(json.dumps(artifact.meta)) == artifact.meta, f"{key}: meta changes on its way")


@rule("a loaded graph can be called, and says what it holds in bytes")
def _graphs(tested: Subject) -> None:
    for key in tested.keys:
        graph = tested.graph(key)
        _demand(callable(graph.run), f"{key}: run is {graph.run!r}")
        holds = isinstance(graph.nbytes, int) and graph.nbytes >= 0
        _demand(holds, f"{key}: nbytes is {graph.nbytes!r}")


@rule("a graph returns what the program's module returns")
def _numbers(tested: Subject) -> None:
    program = getattr(tested.backend, "program", None)
    if program is None:
        raise Inapplicable("the backend has no program to compare with")
    for key in tested.keys:
        outputs = tested.graph(key)(*tested.inputs(key))
        _compare(key, outputs, _without_grad(program.module(key), tested.inputs(key)))


@rule("equal inputs give equal outputs, also after another graph was loaded and run")
def _steady(tested: Subject) -> None:
    graphs = {key: tested.graph(key) for key in tested.keys}
    first = {key: graph(*tested.inputs(key)) for key, graph in graphs.items()}
    for key, graph in graphs.items():
        _compare(key, graph(*tested.inputs(key)), first[key])


@rule("a graph that was let go can be had again")
def _again(tested: Subject) -> None:
    key = tested.keys[0]
    tested.graph(key).close()
    del tested.artifacts[key]
    graph = tested.graph(key)
    with suppress(Inapplicable):
        graph(*tested.inputs(key))


# -- what it refuses ----------------------------------------------------------------------------------


@rule("an artifact with nothing in it is refused with LoadError")
def _refuses_nothing(tested: Subject) -> None:
    _refuses(tested.backend, tested.keys[0], Artifact())


@rule("bytes that are damaged are refused with LoadError")
def _refuses_damage(tested: Subject) -> None:
    whole = _payload(tested)
    for damaged in (b"", NOISE, whole[: len(whole) // 2], whole[:-1]):
        _refuses(tested.backend, tested.keys[0], Artifact(payload=damaged))


@rule("another instance loads what this one compiled")
def _outlives(tested: Subject) -> None:
    payload = _payload(tested)
    tested.make().load(tested.keys[0], Artifact(payload=payload))


# -- what compiles itself -----------------------------------------------------------------------------


@rule("a graph that compiles itself does not do so for inputs that it was compiled for")
def _compiles_once(tested: Subject) -> None:
    cache = _watched(tested)
    for key in tested.keys:
        graph = tested.graph(key)
        for _ in range(2):
            graph(*tested.inputs(key))
    counted = cache.stats.total().compiles
    reasons = "; ".join(f"{event.key}: {event.reason}" for event in cache.stats.events)
    _demand(not counted, f"{counted} compiles: {reasons}")


@rule("a graph that compiles itself is stopped once the cache is frozen, and named")
def _obeys(tested: Subject) -> None:
    small, large = tested.keys[0], GraphKey(tested.keys[0].rows, 2 * tested.keys[0].seq_len)
    cache, graph, inputs = _watched(tested), tested.graph(small), tested.inputs(large)
    cache.on_miss = "raise"
    try:
        graph(*inputs)
    except FrozenError as error:
        _demand(str(small) in str(error), f"the error does not name {small}: {error}")
    else:
        raise AssertionError(f"{small} took inputs of {large}, and nothing was said")


class _Reported:
    """A cache, as far as a backend reports to it."""

    def __init__(self) -> None:
        self.on_miss = "compile"
        self.stats = Stats()
        self.view = self
        self.budget = self
        self.graphs = None


def _watched(tested: Subject) -> _Reported:
    if not isinstance(tested.backend, Watching):
        raise Inapplicable("its graphs do not compile themselves")
    cache = _Reported()
    tested.backend.watch(cache)
    return cache


def _payload(tested: Subject) -> bytes:
    payload = tested.artifact(tested.keys[0]).payload
    if payload is None:
        raise Inapplicable("its artifacts do not persist")
    return payload


def _refuses(backend: Backend, key: GraphKey, artifact: Artifact) -> None:
    try:
        backend.load(key, artifact)
    except LoadError:
        return
    raise AssertionError(f"{key}: it was loaded")


def _without_grad(module: Any, inputs: tuple[Any, ...]) -> Any:
    import torch

    with torch.no_grad():
        return module(*inputs)


def _compare(key: GraphKey, ours: Any, theirs: Any) -> None:
    import torch
    import torch.utils._pytree as pytree

    left, right = pytree.tree_leaves(ours), pytree.tree_leaves(theirs)
    _demand(len(left) == len(right), f"{key}: {len(left)} outputs, not {len(right)}")
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        one, other = (torch.as_tensor(value).cpu().double() for value in (one, other))
        same = one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
        _demand(same, f"{key}: output {index} differs")
