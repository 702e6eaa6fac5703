"""FlexAttention: traced as an operator, expanded where it is compiled."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcache.backends.exported import compile_job
from graphcache.backends.flex import BLOCK, LEAST_TOKENS, block_tables, expand, flex_attention
from graphcache.backends.inductor import InductorBackend
from graphcache.backends.program import Template
from graphcache.backends.protocol import Artifact
from graphcache.key import GraphKey, MaskMode

HEADS, KV_HEADS, SIZE = 4, 2, 16
SCALE = SIZE**-0.5
LONG, SHORT = (GraphKey(1, tokens, mode=MaskMode.CUSTOM) for tokens in (LEAST_TOKENS, 256))
ROWS = st.lists(st.integers(1, 2 * BLOCK), min_size=1, max_size=6)


def lay(lengths: list[int], tokens: int) -> torch.Tensor:
    """Return one row of segments, one behind the other, and padding behind them."""
    row = torch.full((1, tokens), -1, dtype=torch.int32)
    at = 0
    for number, length in enumerate(lengths):
        row[0, at : at + length] = number
        at += length
    return row


def visible(segments: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return who sees whom, ``[seq_len, seq_len]``, token by token."""
    tokens = segments.shape[1]
    row = segments[0].tolist()
    seen = [
        [own == other and (own >= 0 or i == j) and (i >= j or not causal) for j, other in enumerate(row)]
        for i, own in enumerate(row)
    ]
    return torch.tensor(seen).view(tokens, tokens)


@given(lengths=ROWS, causal=st.booleans(), data=st.data())
def test_no_visible_block_is_skipped_and_one_without_a_mask_is_visible_whole(lengths, causal, data):
    blocks = data.draw(st.integers(-(-sum(lengths) // BLOCK), 2 + sum(lengths) // BLOCK), label="blocks")
    segments = lay(lengths, blocks * BLOCK)
    seen = visible(segments, causal).unfold(0, BLOCK, BLOCK).unfold(1, BLOCK, BLOCK)
    partial, partial_indices, whole, whole_indices = block_tables(segments, causal=causal)
    for query in range(blocks):
        masked = set(partial_indices[0, 0, query, : partial[0, 0, query]].tolist())
        free = set(whole_indices[0, 0, query, : whole[0, 0, query]].tolist())
        assert not masked & free
        for key in range(blocks):
            block = seen[query, key]
            assert key in masked | free or not block.any()
            assert key not in free or block.all()


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Turn each head's pairs by their token's angle, with tokens before heads in memory, as models do."""
    x = x.transpose(1, 2)
    angle = torch.arange(x.shape[1])[:, None, None] * 0.01
    left, right = x.chunk(2, dim=-1)
    turned = (left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin())
    return torch.cat(turned, dim=-1).transpose(1, 2)


class Packed(torch.nn.Module):
    """Attention behind projections and a rotation, which keeps keys in a cache of any number of slots."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Linear(32, HEADS * SIZE)
        self.kv = torch.nn.Linear(32, 2 * KV_HEADS * SIZE)

    def forward(self, x: torch.Tensor, segments: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], -1, SIZE)
        q = self.q(x).view(shape).transpose(1, 2)
        k, v = self.kv(x).view(shape).transpose(1, 2).chunk(2, dim=1)
        q, k = rotated(q), rotated(k)
        cache.index_copy_(0, torch.arange(x.shape[1]), k[0].transpose(0, 1).flatten(1))
        return flex_attention(q, k, v, segments, True, SCALE).transpose(1, 2).flatten(2)


class PackedProgram:
    operators = ("graphcache.backends.flex",)

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = Packed().eval()

    def module(self, key: GraphKey) -> torch.nn.Module:
        return self.model

    def inputs(self, key: GraphKey, slots: int = 4096) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(2)
        segments = lay([key.seq_len // 3, key.seq_len // 2], key.seq_len)
        return torch.randn(1, key.seq_len, 32), segments, torch.zeros(slots, KV_HEADS * SIZE)

    def dynamic_shapes(self, key: GraphKey) -> tuple[object, ...]:
        return None, None, {0: torch.export.Dim("slots", min=2)}

    def template(self, key: GraphKey) -> Template:
        new = torch.export.Dim("new", min=2)
        return Template("packed", ({1: new}, {1: new}, {0: torch.export.Dim("slots", min=2)}))

    def facts(self) -> list[tuple[str, str]]:
        return [("model", "packed")]


@pytest.mark.timeout(300)
def test_a_template_is_written_down_and_compiled_elsewhere_with_blocks_skipped_where_that_pays():
    program = PackedProgram()
    backend = InductorBackend(program)
    payloads = {key: compile_job((job := backend.job(key)).data, **job.arguments) for key in (LONG, SHORT)}
    assert b"flex_attention" in payloads[LONG]
    for key, payload in payloads.items():
        graph = backend.load(key, Artifact(payload=payload))
        for slots in (4096, 2048):
            inputs, wanted = program.inputs(key, slots), program.inputs(key, slots)
            torch.testing.assert_close(graph(*inputs), program.model(*wanted), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(inputs[2], wanted[2])


def test_only_what_stands_for_attention_is_expanded():
    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    assert not expand(torch.fx.symbolic_trace(Plain()))


@pytest.mark.parametrize("causal", [True, False])
def test_the_operator_by_itself_masks_token_by_token(causal):
    segments = lay([3, 5], 10)
    q = torch.randn(1, HEADS, 10, SIZE)
    k, v = torch.randn(2, 1, KV_HEADS, 10, SIZE)
    seen = visible(segments, causal)
    scores = (q @ k.repeat_interleave(2, dim=1).mT * SCALE).masked_fill(~seen, float("-inf"))
    expected = scores.softmax(-1) @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(flex_attention(q, k, v, segments, causal, SCALE), expected)
    torch.library.opcheck(flex_attention, (q, k, v, segments, causal, SCALE))
