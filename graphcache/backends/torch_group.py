"""A group of ranks over ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from graphcache.errors import GraphCacheError


class TorchGroup:
    """Exchanges bytes over a process group that can move CPU tensors, such as gloo's.

    ``group`` is the default group where it is not given.  The group's own timeout bounds every exchange.
    """

    def __init__(self, group: Any = None) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._group = group

    def exchange(self, told: bytes) -> Sequence[bytes]:
        """Give what this rank tells, get what each rank told, in the order of ranks.

        Raises:
            GraphCacheError: a rank is gone, or did not answer in time.
        """
        try:
            lengths = [int(length) for length in self._gather(torch.tensor([len(told)]))]
            padded = torch.zeros(max(lengths), dtype=torch.uint8)
            padded[: len(told)] = torch.frombuffer(bytearray(told), dtype=torch.uint8)
            gathered = self._gather(padded)
        except RuntimeError as error:
            raise GraphCacheError(f"rank {self.rank} of {self.size} lost the others: {error}") from error
        return [part[:length].numpy().tobytes() for part, length in zip(gathered, lengths, strict=True)]

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(gathered, mine, group=self._group)
        return gathered
