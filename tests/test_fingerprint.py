"""The laws of namespaces: every fact counts, in its place, and nothing runs into its neighbour."""

import hashlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphcache import fingerprint
from graphcache.fingerprint import digest, entry_digest, facts, namespace_digest
from graphcache.key import GraphKey

texts = st.text(max_size=8)
some_facts = st.dictionaries(texts.filter(lambda label: label != "codegen"), texts, min_size=1).map(
    lambda labelled: tuple(labelled.items())
)


@given(st.lists(texts), st.lists(texts))
def test_digests_are_equal_only_for_equal_parts(one, other):
    assert (digest(*one) == digest(*other)) == (one == other)


@given(some_facts, st.data())
def test_changing_one_fact_changes_the_namespace(some, data):
    index = data.draw(st.integers(0, len(some) - 1))
    label, value = some[index]
    changed = (*some[:index], (label, value + "'"), *some[index + 1 :])
    renamed = (*some[:index], (label + "'", value), *some[index + 1 :])
    assume(label + "'" not in dict(some))
    assert len({namespace_digest(facts(group)) for group in (some, changed, renamed)}) == 3


@given(some_facts)
def test_leaving_out_or_moving_a_fact_changes_the_namespace(some):
    whole = namespace_digest(facts(some))
    assert namespace_digest(facts(some[1:])) != whole
    assert len(some) < 2 or namespace_digest(facts(some[::-1])) != whole


@given(some_facts)
def test_how_facts_are_grouped_changes_nothing(some):
    assert facts(some[:1], some[1:]) == facts(some)


def test_the_version_of_generated_code_is_the_first_fact(monkeypatch):
    before = facts([("torch", "2.13.0")])
    monkeypatch.setattr(fingerprint, "CODEGEN_VERSION", 10**6)
    after = facts([("torch", "2.13.0")])
    assert [label for label, _ in after] == ["codegen", "torch"]
    assert namespace_digest(before) != namespace_digest(after)


@pytest.mark.parametrize("label", ["torch", "codegen"])
def test_one_label_for_two_facts_is_refused(label):
    with pytest.raises(ValueError, match=f"two namespace facts are called '{label}'"):
        facts([("torch", "1")], [(label, "2")])


def test_an_entry_is_told_by_namespace_and_key():
    key = GraphKey(1, 128)
    digests = {entry_digest("a", key), entry_digest("b", key), entry_digest("a", GraphKey(1, 256))}
    assert len(digests) == 3
    assert all(len(text) == 64 for text in digests)


def test_a_digest_stays_what_it_was():
    """Stores of earlier versions are found under these digests."""
    assert digest("a", "ü") == hashlib.sha256(b'["a","\\u00fc"]').hexdigest()
    assert entry_digest("n", GraphKey(1, 128)) == digest("n", "prefill/causal/1x128")
