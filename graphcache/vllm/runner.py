"""vLLM's CPU model runner, with every forward pass taken from the graph cache."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from graphcache.backends.protocol import Backend
from graphcache.batch import Batch, Sequence
from graphcache.cache import GraphCache
from graphcache.vllm.program import VllmProgram
from graphcache.vllm.setup import check_warm, open_cache, open_program
from graphcache.vllm.tokens import StepTokens, collect, spans
from graphcache.vllm.waves import waves

logger = init_logger(__name__)


@runtime_checkable
class Rebinding(Protocol):
    """A backend whose graphs point at the model's weights, and must be told when those are replaced."""

    def rebind(self) -> None:
        """Bind every graph to the weights as they are now."""
        ...


class GraphCacheModelRunner(CPUModelRunner):
    """Pads each step to its bucket, and runs the whole model as the graphs that the policy asks for."""

    graphs: GraphCache
    backend: Backend
    program: VllmProgram

    def load_model_only(self) -> None:
        """Load the model, and open no cache."""
        super().load_model()

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load the model, and open the cache of its graphs."""
        super().load_model(load_dummy_weights)
        self.program = open_program(self.model, self.vllm_config)
        self.graphs, self.backend = open_cache(self.program)

    def reload_weights(self, *arguments: Any, **options: Any) -> None:
        """Replace the weights, and bind the graphs to the new ones.

        Raises:
            LoadError: they differ from the old ones in name, dtype, shape or strides.
        """
        super().reload_weights(*arguments, **options)
        if isinstance(self.backend, Rebinding):
            self.backend.rebind()

    def warm(self) -> float:
        """Make the policy's graphs resident, then freeze the cache; return the seconds spent compiling."""
        report = self.graphs.warm()
        check_warm(self.graphs, self.vllm_config)
        self.graphs.freeze()
        logger.info(
            "graphcache is warm after %.1f s: %d graphs compiled, %d loaded, %d asked for, %d left out,"
            " %d failed",
            report.seconds,
            len(report.compiled),
            len(report.loaded),
            len(report.asked),
            len(report.left_out),
            len(report.failed),
        )
        return self.graphs.stats.total().compile_seconds

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """Return the hidden states ``[tokens, hidden]`` of the step's tokens, in vLLM's order."""
        assert input_ids is not None
        assert positions is not None
        starts = self.query_start_loc.np[: self.input_batch.num_reqs + 1].tolist()
        about = next(iter(get_forward_context().attn_metadata.values()))
        types = model_kwargs.get("token_type_ids")
        scheduled = StepTokens(input_ids, positions, about.slot_mapping, about.block_table_tensor, types)
        caches = self.program.caches()
        hidden = torch.empty((starts[-1], self.model_config.get_hidden_size()), dtype=self.model_config.dtype)
        lengths = [end - start for start, end in pairwise(starts)]
        cached = self.input_batch.num_computed_tokens_cpu[: len(lengths)].tolist()
        for wave in self._waves(starts, cached, scheduled):
            with self.graphs.step(Batch(tuple(Sequence(lengths[i], cached[i]) for i in wave))) as step:
                for launch in step:
                    carried = [wave[index] for index in launch.sequences]
                    cut = tuple(spans(launch.key, carried, launch.layout, starts))
                    inputs = self.program.padding(launch.key)
                    inputs.fill(scheduled, cut)
                    began = time.perf_counter()
                    output = launch.graph(*self.program.given(inputs), *caches)
                    step.ran(launch, time.perf_counter() - began)
                    collect(hidden, output, cut)
        return hidden

    def _waves(self, starts: list[int], cached: list[int], scheduled: StepTokens) -> list[list[int]]:
        if self.program.paged is None:
            return [list(range(len(cached)))]
        slots, blocks = scheduled.slots.numpy(), scheduled.blocks.numpy()
        return waves(starts, cached, slots, blocks, self.program.paged.block_size)
