"""One attention layer on the device, as a backend sees it."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import torch_xla

from graphcache.key import GraphKey, MaskMode

HIDDEN = 16
CAUSAL, CUSTOM = (GraphKey(1, 32, mode=mode) for mode in (MaskMode.CAUSAL, MaskMode.CUSTOM))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)[:, 0]


class SmallProgram:
    def __init__(self, facts: tuple[tuple[str, str], ...] = ()) -> None:
        self.model = Attention().eval().requires_grad_(False).to(torch_xla.device())
        self._facts = list(facts)

    def module(self, key: GraphKey) -> torch.nn.Module:
        return self.model

    def inputs(self, key: GraphKey) -> tuple[torch.Tensor, ...]:
        random = torch.Generator().manual_seed(key.seq_len)
        inputs = (torch.rand(key.rows, key.seq_len, HIDDEN, generator=random),)
        if key.mode is MaskMode.CUSTOM:
            inputs += (torch.ones(key.seq_len, key.seq_len, dtype=torch.bool).tril(),)
        return inputs

    def dynamic_shapes(self, key: GraphKey) -> None:
        return None

    def facts(self) -> list[tuple[str, str]]:
        return [("model", "small"), *self._facts]
