"""The laws of keys: their text form, and the partial order of which graph serves which."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.errors import ConfigError
from graphcache.key import COVERS, GraphKey, MaskMode, dominates

SERVES = {
    "custom": {"custom", "causal", "bidirectional", "padded"},
    "causal": {"causal"},
    "prefix": {"prefix", "causal"},
    "padded": {"padded", "bidirectional"},
    "bidirectional": {"bidirectional"},
}

words = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,7}", fullmatch=True)
keys = st.builds(
    GraphKey,
    rows=st.integers(1, 10**6),
    seq_len=st.integers(1, 10**6),
    kv_len=st.integers(0, 10**6),
    mode=st.sampled_from(MaskMode),
    kind=words,
    flags=st.lists(words, max_size=3).map(tuple),
)
near_keys = st.builds(
    GraphKey,
    rows=st.integers(1, 2),
    seq_len=st.integers(1, 2),
    kv_len=st.integers(0, 1),
    mode=st.sampled_from(MaskMode),
    kind=st.sampled_from(["prefill", "decode"]),
    flags=st.sampled_from([(), ("greedy",)]),
)


@given(keys)
def test_text_form_reads_back(key):
    assert GraphKey.parse(str(key)) == key


@given(keys, keys)
def test_text_forms_are_equal_only_for_equal_keys(one, other):
    assert (str(one) == str(other)) == (one == other)


def test_text_form():
    key = GraphKey(8, 1, 2048, MaskMode.PREFIX, "decode", ("greedy", "bf16"))
    assert str(key) == "decode/prefix/8x1+2048[bf16,greedy]"
    assert str(GraphKey(1, 512)) == "prefill/causal/1x512"


def test_flags_are_a_set():
    assert GraphKey(1, 1, flags=("b", "a", "b")) == GraphKey(1, 1, flags=("a", "b"))


def test_a_mode_may_be_given_as_text():
    assert GraphKey(1, 1, mode="custom").mode is MaskMode.CUSTOM


def test_tokens_count_padding():
    assert GraphKey(4, 128).tokens == 512


@pytest.mark.parametrize(
    "text",
    [
        "",
        "prefill",
        "prefill/causal",
        "prefill/causal/1",
        "prefill/causal/1x",
        "/causal/1x1",
        "a/causal/1x1[",
        " ",
    ],
)
def test_what_is_no_key_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="such as prefill/causal/1x512"):
        GraphKey.parse(text)


@pytest.mark.parametrize(
    ("text", "field"),
    [("prefill/none/1x1", "mode"), ("prefill/causal/0x1", "rows"), ("prefill/causal/1x0", "seq_len")],
)
def test_parts_of_a_text_are_checked(text, field):
    with pytest.raises(ConfigError, match=f"^{field}: "):
        GraphKey.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_a_key_or_an_error_of_ours(text):
    try:
        key = GraphKey.parse(text)
    except ConfigError:
        return
    assert GraphKey.parse(str(key)) == key


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rows": 0}, "rows: 0"),
        ({"rows": True}, "rows: True"),
        ({"seq_len": 0}, "seq_len: 0"),
        ({"seq_len": 1.5}, "seq_len: 1.5"),
        ({"kv_len": -1}, "kv_len: -1"),
        ({"mode": "dense"}, "mode: 'dense'"),
        ({"kind": "Prefill"}, "kind or flag: 'Prefill'"),
        ({"kind": ""}, "kind or flag: ''"),
        ({"flags": ("a,b",)}, "kind or flag: 'a,b'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(fields, named):
    with pytest.raises(ConfigError, match=f"^{named} is not allowed; allowed: "):
        GraphKey(**{"rows": 1, "seq_len": 1, **fields})


def test_keys_are_frozen_and_hashable():
    key = GraphKey(1, 128)
    with pytest.raises(AttributeError):
        key.rows = 2
    assert {key: 1}[GraphKey(1, 128)] == 1


def test_every_mode_is_declared():
    assert set(COVERS) == set(MaskMode) == set(SERVES)


@pytest.mark.parametrize("graph", MaskMode)
@pytest.mark.parametrize("asked", MaskMode)
def test_modes_serve_exactly_what_the_table_says(graph, asked):
    assert dominates(GraphKey(1, 128, mode=graph), GraphKey(1, 128, mode=asked)) == (asked in SERVES[graph])


@pytest.mark.parametrize("graph", MaskMode)
def test_a_longer_graph_serves_bidirectional_only_with_the_lengths_at_hand(graph):
    serves = dominates(GraphKey(1, 256, mode=graph), GraphKey(1, 128, mode=MaskMode.BIDIRECTIONAL))
    assert serves == (graph in (MaskMode.CUSTOM, MaskMode.PADDED))


@given(near_keys)
def test_dominates_is_reflexive(key):
    assert dominates(key, key)


@given(near_keys, near_keys)
def test_dominates_is_antisymmetric(one, other):
    assert not (dominates(one, other) and dominates(other, one)) or one == other


@given(near_keys, near_keys, near_keys)
def test_dominates_is_transitive(one, two, three):
    assert dominates(one, three) or not (dominates(one, two) and dominates(two, three))


@given(keys, st.sampled_from(["rows", "seq_len", "kv_len"]))
def test_a_smaller_graph_never_serves(key, field):
    larger = replace(key, **{field: getattr(key, field) + 1})
    assert not dominates(key, larger)
    assert dominates(larger, key) == (field != "seq_len" or key.mode is not MaskMode.BIDIRECTIONAL)


@given(keys)
def test_another_kind_or_flag_never_serves(key):
    assert not dominates(replace(key, kind=key.kind + "x"), key)
    assert not dominates(replace(key, flags=(*key.flags, "zzzzzzzzz")), key)
    assert not dominates(key, replace(key, flags=(*key.flags, "zzzzzzzzz")))


@given(st.lists(near_keys))
def test_keys_can_be_ordered(some):
    assert sorted(sorted(some), reverse=True) == sorted(some)[::-1]
