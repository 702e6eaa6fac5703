"""A two-layer attention model of hidden size 64 that has one of everything a backend must get right."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from graphcache.backends.program import Template
from graphcache.key import GraphKey, MaskMode

HIDDEN = 64
CAUSAL = GraphKey(rows=1, seq_len=32, mode=MaskMode.CAUSAL)
CUSTOM = GraphKey(rows=1, seq_len=32, mode=MaskMode.CUSTOM)


@torch.library.custom_op("graphcache_tests::halve", mutates_args=())
def halve(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 0.5


@halve.register_fake
def _(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor)


class Layer(torch.nn.Module):
    """Attention that also writes its keys into a cache, in place."""

    def __init__(self, rotary: torch.nn.Module) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.rotary = rotary

    def forward(self, x: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, mask: Any) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, 4, HIDDEN // 4).permute(2, 0, 3, 1, 4)
        cache.index_copy_(0, slots, k.transpose(1, 2).reshape(rows * length, HIDDEN))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(attended.transpose(1, 2).reshape(rows, length, HIDDEN)) * self.rotary.cos[:length]


class Rotary(torch.nn.Module):
    """A table that all layers share, and that is in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cos", torch.rand(64, HIDDEN), persistent=False)


class TinyModel(torch.nn.Module):
    """Two layers, weights of one element and of no dimension, a literal, a tied weight, a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        rotary = Rotary()
        self.embedding = torch.nn.Embedding(50, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer(rotary) for _ in range(2))
        self.norm = torch.nn.Parameter(torch.rand(HIDDEN))
        self.gain = torch.nn.Parameter(torch.rand(1))
        self.bias = torch.nn.Parameter(torch.rand(()))
        self.tied = self.embedding.weight
        self.plain = torch.rand(HIDDEN)

    def forward(
        self,
        tokens: torch.Tensor,
        caches: torch.Tensor,
        slots: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        x = self.embedding(tokens)
        for layer, cache in zip(self.layers, (caches[0], caches[1]), strict=True):
            x = x + layer(x, cache, slots, mask)
        if mask is not None:
            x = halve(x)
        hidden = (
            x * self.norm * self.gain
            + self.bias * self.plain
            + torch.tensor([0.25, -0.5]).repeat(HIDDEN // 2)
        )
        return {"hidden": hidden, "logits": hidden @ self.tied.T}


class TinyProgram:
    """The model as a backend sees it; the number of cache slots is dynamic."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = TinyModel().eval().requires_grad_(False)

    def module(self, key: GraphKey) -> torch.nn.Module:
        return self.model

    def inputs(self, key: GraphKey, slots: int = 96, seed: int = 0) -> tuple[torch.Tensor, ...]:
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, 50, (key.rows, key.seq_len), generator=random)
        written = torch.randperm(slots, generator=random)[: key.tokens]
        inputs = (tokens, torch.zeros(2, slots, HIDDEN), written)
        if key.mode is MaskMode.CUSTOM:
            inputs += (torch.ones(key.seq_len, key.seq_len, dtype=torch.bool).tril(),)
        return inputs

    def dynamic_shapes(self, key: GraphKey) -> Any:
        slots = torch.export.Dim("slots", min=2)
        shapes: tuple[dict[int, Any], ...] = ({}, {1: slots}, {})
        return (*shapes, {}) if key.mode is MaskMode.CUSTOM else shapes

    def template(self, key: GraphKey) -> Template:
        length = torch.export.Dim("length", min=2, max=64)
        shapes = ({1: length}, {1: torch.export.Dim("slots", min=2)}, {0: length * key.rows})
        masked = ({0: length, 1: length},) if key.mode is MaskMode.CUSTOM else ()
        return Template(f"{key.mode} {key.rows}", (*shapes, *masked))

    def facts(self) -> list[tuple[str, str]]:
        return [("model", "tiny")]


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    """Say whether two outputs are equal but for rounding."""
    return list(ours) == list(theirs) and all(
        torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5) for name in theirs
    )
