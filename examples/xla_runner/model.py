"""A decoder that embeds, whose attention layers read their metadata from a context, as vLLM's do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812


@dataclass
class Metadata:
    """What the attention layers of one launch need: a mask, or none and the causal term."""

    attn_mask: torch.Tensor | None
    is_causal: bool


class _Context:
    def __init__(self) -> None:
        # In the instance from the start: dynamo guards on what an object has, and would compile twice.
        self.metadata: Metadata | None = None


_context = _Context()


@contextmanager
def set_forward_context(metadata: Metadata) -> Iterator[None]:
    """Have the attention layers find this metadata while the context is open."""
    before, _context.metadata = _context.metadata, metadata
    try:
        yield
    finally:
        _context.metadata = before


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model; the weights follow from the seed."""

    vocabulary: int = 256
    hidden: int = 128
    heads: int = 4
    layers: int = 2
    seed: int = 0


class Layer(torch.nn.Module):
    """Attention and a feed-forward part, each added to its input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = torch.nn.LayerNorm(config.hidden)
        self.qkv = torch.nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.out = torch.nn.Linear(config.hidden, config.hidden, bias=False)
        self.up = torch.nn.Linear(config.hidden, 2 * config.hidden)
        self.down = torch.nn.Linear(2 * config.hidden, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run one layer over ``[rows, tokens, hidden]``."""
        metadata = _context.metadata
        rows, tokens, hidden = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=metadata.attn_mask, is_causal=metadata.is_causal
        )
        x = x + self.out(attended.transpose(1, 2).reshape(rows, tokens, hidden))
        return x + self.down(F.gelu(self.up(x)))


class EmbeddingModel(torch.nn.Module):
    """Returns a hidden state per token; the last token's is a sequence's embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.embed = torch.nn.Embedding(config.vocabulary, config.hidden)
        self.positions = torch.nn.Embedding(8192, config.hidden)
        self.layers = torch.nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = torch.nn.LayerNorm(config.hidden)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run the model over ``[rows, tokens]``, in the metadata's context."""
        x = self.embed(input_ids) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Forward(torch.nn.Module):
    """The model with its mask among its inputs: what a graph is compiled from."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attn_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Put the mask into the context, and run the model."""
        with set_forward_context(Metadata(attn_mask, is_causal=attn_mask is None)):
            return self.model(input_ids, positions)
