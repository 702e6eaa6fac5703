import pytest

from graphcache.errors import ConfigError
from graphcache.explain import (
    MATTERS,
    OTHER_SIZE,
    SERVES,
    Difference,
    Entry,
    differing_facts,
    explain,
    explain_all,
)
from graphcache.fingerprint import digest, namespace_digest
from graphcache.store.protocol import Record

TORCH_13 = (("backend", "inductor"), ("torch", "2.13"), ("dtype", "bf16"))
TORCH_14 = (("backend", "inductor"), ("torch", "2.14"), ("dtype", "bf16"))


def entry(key: str, facts: tuple[tuple[str, str], ...] = TORCH_13, created: float = 0.0) -> Entry:
    record = Record.of(namespace_digest(facts), key, b"", facts=facts, created=created)
    return Entry(digest(record.namespace, key), record)


def test_the_fact_that_differs_is_named() -> None:
    wanted = entry("prefill/causal/1x512", TORCH_14).record
    said = explain(wanted, [entry("prefill/causal/1x512")])
    assert said.differences == (Difference("torch", "2.14", "2.13", MATTERS),)


def test_the_nearest_entry_differs_least() -> None:
    wanted = entry("prefill/causal/1x512", TORCH_14).record
    far = entry("decode/causal/1x1", (("backend", "eager"),))
    same_namespace = entry("prefill/causal/1x256", TORCH_14)
    serves = entry("prefill/causal/1x1024", TORCH_14)
    assert explain(wanted, [far, same_namespace]).nearest == same_namespace.digest
    said = explain(wanted, [far, same_namespace, serves])
    assert said.nearest == serves.digest
    assert said.differences == (Difference("key", "prefill/causal/1x512", "prefill/causal/1x1024", SERVES),)
    assert explain(wanted, [same_namespace]).differences[0].verdict == OTHER_SIZE


def test_a_match_differs_in_nothing() -> None:
    same = entry("prefill/causal/1x512")
    said = explain(same.record, [same, entry("prefill/causal/1x1024")])
    assert (said.nearest, said.differences) == (same.digest, ())


def test_an_empty_store_explains_itself() -> None:
    assert explain(entry("prefill/causal/1x512").record, []).nearest is None


def test_facts_that_only_one_side_has_are_told() -> None:
    assert differing_facts([("a", "1"), ("b", "2")], [("b", "2"), ("c", "3")]) == [
        Difference("a", "1", None, MATTERS),
        Difference("c", None, "3", MATTERS),
    ]


def test_the_last_misses_are_explained_by_what_was_there_before() -> None:
    stored = [
        entry("prefill/causal/1x512", TORCH_13, created=1.0),
        entry("prefill/causal/1x512", TORCH_14, created=2.0),
        entry("prefill/causal/1x256", TORCH_14, created=3.0),
    ]
    last, before = explain_all(stored, [], misses=2)
    assert (last.key, last.nearest) == ("prefill/causal/1x256", stored[1].digest)
    assert before.differences == (Difference("torch", "2.14", "2.13", MATTERS),)
    assert len(explain_all(stored, [], misses=99)) == 3


def test_a_key_is_wanted_in_the_namespace_used_last() -> None:
    stored = [
        entry("prefill/causal/1x512", TORCH_13, created=1.0),
        entry("prefill/causal/1x128", TORCH_14, created=2.0),
    ]
    (said,) = explain_all(stored, ["prefill/causal/1x512"])
    assert said.differences == (Difference("torch", "2.14", "2.13", MATTERS),)
    (said,) = explain_all(stored, ["prefill/causal/1x512"], namespace=stored[0].record.namespace[:10])
    assert said.differences == ()


def test_two_entries_are_compared() -> None:
    one, other = entry("prefill/causal/1x512", TORCH_13), entry("prefill/causal/1x512", TORCH_14)
    (said,) = explain_all([one, other], [one.digest[:12], other.digest[:12]])
    assert said.differences == (Difference("torch", "2.13", "2.14", MATTERS),)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ([], "a number of last misses"),
        (["a", "b", "c"], "two digests"),
        (["nonsense"], "prefill/causal/1x512"),
        (["zz", "zz"], "first letters of one"),
        (["", ""], "first letters of one"),
    ],
)
def test_what_makes_no_sense_is_refused(what: list[str], message: str) -> None:
    stored = [entry("prefill/causal/1x512"), entry("prefill/causal/1x256")]
    with pytest.raises(ConfigError, match=message):
        explain_all(stored, what)


def test_a_namespace_that_is_not_stored_is_refused() -> None:
    with pytest.raises(ConfigError, match="namespace"):
        explain_all([entry("prefill/causal/1x512")], ["prefill/causal/1x512"], namespace="zz")
    with pytest.raises(ConfigError, match="the store has no entry yet"):
        explain_all([], ["prefill/causal/1x512"])
