"""The collectives of tensor parallel ranks, in a form that graphs may hold."""

from __future__ import annotations

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class GraphCommunicator(CpuCommunicator):
    """vLLM's own on CPU hosts, which never answers with what it was given.

    In a graph the collective is vLLM's operator, called with the group's name.  A compiled graph uses an
    operator's input again as soon as nobody reads it, so the output must not be the same memory.
    """

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        return super().all_reduce(input_.clone())
