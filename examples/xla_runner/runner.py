"""An embedding runner on torch-xla, built as Tenstorrent's is, with the cache of graphs in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch_xla

from examples.xla_runner.model import EmbeddingModel, Forward, ModelConfig
from graphcache import Batch, GraphCache, GraphKey, Ladder, MaskMode
from graphcache.backends.xla import XlaBackend
from graphcache.policy.protocol import Ladders

Prompt = Sequence[int]

SHORTEST = 32
"""Tokens of the shortest graph."""


class PoolingRunner:
    """Runs one step's prompts and returns an embedding for each.

    ``policy`` is a policy's file or name, ``longest`` the tokens of its longest graph, and ``options`` are
    the backend's.  It is the `Program` that the backend compiles: ``module`` to ``facts``.
    """

    def __init__(self, config: ModelConfig, policy: str, longest: int, **options: Any) -> None:
        self.config = config
        self.load_model()
        ladders = Ladders(Ladder.pow2(SHORTEST, longest))
        self.cache = GraphCache.from_yaml(policy, backend=XlaBackend(self, **options), ladders=ladders)

    def load_model(self) -> None:
        """Make the model, and move it to the device."""
        self.device = torch_xla.device()
        self.model = Forward(EmbeddingModel(self.config)).eval().requires_grad_(False).to(self.device)
        torch_xla.sync(wait=True)

    def capture_model(self) -> None:
        """Compile what the policy can ask for, as far as the budget goes; nothing compiles after that."""
        self.cache.warm()
        self.cache.freeze()

    def execute_model(self, prompts: Sequence[Prompt]) -> list[torch.Tensor]:
        """Run one step; return each prompt's embedding, on the host."""
        embeddings: dict[int, torch.Tensor] = {}
        with self.cache.step(Batch.of(len(prompt) for prompt in prompts)) as step:
            for launch in step:
                inputs, ends = self.prepare_inputs(launch.key, [prompts[i] for i in launch.sequences])
                began = time.perf_counter()
                hidden = launch.graph(*inputs).cpu()[0]
                step.ran(launch, time.perf_counter() - began)
                embeddings |= {i: hidden[end - 1] for i, end in zip(launch.sequences, ends, strict=True)}
        return [embeddings[index] for index in range(len(prompts))]

    def prepare_inputs(
        self, key: GraphKey, prompts: Sequence[Prompt]
    ) -> tuple[tuple[torch.Tensor, ...], list[int]]:
        """Lay prompts out in one row, padded to the bucket, on the host; then move it to the device.

        Returns the graph's inputs, and where each prompt ends.
        """
        ids = torch.zeros(1, key.seq_len, dtype=torch.int32)
        positions = torch.zeros(1, key.seq_len, dtype=torch.int32)
        owner = torch.full((key.seq_len,), -1)
        ends: list[int] = []
        for index, prompt in enumerate(prompts):
            start = ends[-1] if ends else 0
            ends.append(start + len(prompt))
            ids[0, start : ends[-1]] = torch.tensor(prompt, dtype=torch.int32)
            positions[0, start : ends[-1]] = torch.arange(len(prompt), dtype=torch.int32)
            owner[start : ends[-1]] = index
        inputs = (ids, positions)
        if key.mode is MaskMode.CUSTOM:
            inputs += (_mask(owner),)
        return tuple(tensor.to(self.device) for tensor in inputs), ends

    # -- what the backend compiles -------------------------------------------------------------------

    def module(self, key: GraphKey) -> torch.nn.Module:
        """Return the model; whether it takes a mask shows in the inputs."""
        return self.model

    def inputs(self, key: GraphKey) -> tuple[torch.Tensor, ...]:
        """Return what `prepare_inputs` returns, for a prompt of zeros as long as the graph."""
        return self.prepare_inputs(key, [[0] * key.seq_len])[0]

    def dynamic_shapes(self, key: GraphKey) -> None:
        """Leave nothing dynamic."""

    def facts(self) -> list[tuple[str, str]]:
        """Return what is constant in a process and changes the code."""
        return [("model", str(self.config)), ("dtype", "float32")]


def _mask(owner: torch.Tensor) -> torch.Tensor:
    """Return the additive mask of a packed row: each token sees its own prompt, up to itself."""
    seen = (owner[:, None] == owner[None, :]).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)[None, None]
