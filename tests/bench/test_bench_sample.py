import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcache.bench.concurrent import SMALL
from graphcache.bench.sample import (
    ATTENTION,
    BLOCK,
    MODEL,
    SampleProgram,
    block_tables,
    dense_mask,
    form_of,
    visible,
)
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode


def key(length, mode=MaskMode.CUSTOM, *flags, rows=1, kind=MODEL):
    return GraphKey(rows, length, mode=mode, kind=kind, flags=flags)


@pytest.fixture(scope="module")
def program():
    return SampleProgram(SMALL)


def run(program, key, tokens, sequences=1):
    with torch.no_grad():
        return program.module(key)(*tokens, *program.visibility(key, sequences))


@pytest.mark.parametrize("kind", [MODEL, ATTENTION])
def test_all_forms_of_one_sequence_agree(program, kind):
    causal = key(32, MaskMode.CAUSAL, kind=kind)
    tokens = program.tokens(causal)
    expected = run(program, causal, tokens)
    for form in ((), ("dense",)):
        torch.testing.assert_close(run(program, key(32, MaskMode.CUSTOM, *form, kind=kind), tokens), expected)


@pytest.mark.parametrize("form", [(), ("dense",)])
def test_packed_sequences_are_those_that_run_alone(program, form):
    packed = key(32, MaskMode.CUSTOM, *form)
    ids, positions = program.tokens(packed, sequences=4)
    together = run(program, packed, (ids, positions), sequences=4)
    alone = key(8, MaskMode.CAUSAL)
    for start in range(0, 32, 8):
        part = slice(start, start + 8)
        expected = run(program, alone, (ids[:, part], positions[:, part]))
        torch.testing.assert_close(together[:, part], expected, atol=0.05, rtol=0.05)
    leaking = run(program, packed, (ids, positions), sequences=1)
    assert not torch.allclose(leaking, together, atol=0.05, rtol=0.05)


def test_rows_are_sequences_that_run_alone(program):
    rows = key(8, MaskMode.CAUSAL, rows=2)
    ids, positions = program.tokens(rows)
    together = run(program, rows, (ids, positions))
    for row in range(2):
        alone = run(program, key(8, MaskMode.CAUSAL), (ids[row : row + 1], positions[row : row + 1]))
        torch.testing.assert_close(together[row : row + 1], alone, atol=0.05, rtol=0.05)


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_the_tables_of_blocks_hold_all_that_is_visible_and_full_blocks_are(lengths):
    lengths.append(-sum(lengths) % BLOCK)
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    at = torch.arange(segments.shape[1])[None]
    seen = visible(segments, at)[0, 0].unfold(0, BLOCK, BLOCK).unfold(1, BLOCK, BLOCK)
    count, indices, full_count, full_indices = block_tables(segments)
    for query in range(seen.shape[0]):
        partial = set(indices[0, 0, query, : count[0, 0, query]].tolist())
        full = set(full_indices[0, 0, query, : full_count[0, 0, query]].tolist())
        assert not partial & full
        for other in range(seen.shape[1]):
            assert (other in full) == bool(seen[query, other].all())
            assert (other in partial or other in full) == bool(seen[query, other].any())


def test_the_dense_mask_hides_what_is_not_visible():
    segments, at = torch.tensor([[0, 0, 1]]), torch.arange(3)[None]
    hidden = float("-inf")
    expected = [[0.0, hidden, hidden], [0.0, 0.0, hidden], [hidden, hidden, 0.0]]
    assert dense_mask(segments, at, torch.float32)[0, 0].tolist() == expected


def test_a_key_says_its_form():
    keys = [
        key(8, MaskMode.CAUSAL),
        key(8),
        key(8, MaskMode.CUSTOM, "dense"),
        key(8, MaskMode.CUSTOM, "flex"),
    ]
    assert [form_of(each) for each in keys] == ["causal", "ids", "dense", "flex"]


def test_inputs_are_made_for_the_key(program):
    assert [tuple(each.shape) for each in program.inputs(key(16))] == [(1, 16)] * 3
    shapes = [tuple(each.shape) for each in program.inputs(key(128, MaskMode.CUSTOM, "flex", kind=ATTENTION))]
    assert shapes == [
        (1, 2, 128, 16),
        *[(1, 1, 128, 16)] * 2,
        *[(1, 128)] * 2,
        *[(1, 1, 1), (1, 1, 1, 1)] * 2,
    ]


def test_another_kind_is_refused(program):
    with pytest.raises(ConfigError, match="kind: 'decode' is not allowed; allowed: prefill, attention"):
        program.module(key(8, kind="decode"))


def test_facts_tell_sizes_and_source(program):
    facts = dict(program.facts())
    assert set(facts) == {"model.sizes", "model.dtype", "model.source"}
    assert facts != dict(SampleProgram().facts())
