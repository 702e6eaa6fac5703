"""RMSNorm that can be exported."""

from __future__ import annotations

import torch
from vllm import ir
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.layernorm import RMSNorm


@CustomOp.register_oot(name="RMSNorm")
class ExportableRMSNorm(RMSNorm):
    """vLLM's RMSNorm over its parameter itself.

    vLLM's own reads ``weight.data``, which an exported graph keeps as a constant, apart from the weights.
    """

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Normalise ``x``, after adding ``residual`` to it if there is one (then return that sum too)."""
        weight = self.weight if self.has_weight else None
        if residual is None:
            native = ir.ops.rms_norm.impls["native"].impl_fn
            return native(x, weight, self.variance_epsilon, self.variance_size_override)
        native = ir.ops.fused_add_rms_norm.impls["native"].impl_fn
        return native(x, residual, weight, self.variance_epsilon, self.variance_size_override)

    forward_native = forward_oot  # what runs where vLLM's custom ops are off
