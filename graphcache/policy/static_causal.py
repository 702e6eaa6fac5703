"""One graph per length: never a mask, so one sequence at a time."""

from __future__ import annotations

from typing import Literal

from graphcache.batch import Batch, Launch, Plan
from graphcache.errors import ConfigError, PolicyError
from graphcache.eviction.protocol import Eviction
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.modes import row_mode
from graphcache.policy.protocol import Ladders, State, View
from graphcache.policy.static import Static, prefill


class StaticCausal(Static):
    """Runs each sequence in a launch of its own, without a mask.

    Without a causal term (``encoder_only``) a mask of row lengths is needed, except where a row is full.
    ``several`` says what becomes of a batch of several sequences: ``split`` runs one launch each,
    ``refuse`` is for servers whose ``max_num_seqs`` is 1.

    Raises:
        ConfigError: ``several`` is neither.
    """

    modes = (MaskMode.CAUSAL,)

    def __init__(
        self,
        ladders: Ladders,
        eviction: Eviction | None = None,
        *,
        several: Literal["split", "refuse"] = "split",
        encoder_only: bool = False,
    ) -> None:
        super().__init__(ladders, eviction, encoder_only=encoder_only)
        if several not in ("split", "refuse"):
            raise ConfigError.of("several", several, "split, refuse")
        self.several = several

    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return one launch per sequence.

        Raises:
            PolicyError: several sequences, where they are refused.
            LadderError: a sequence exceeds the ladder.
        """
        if self.several == "refuse" and len(batch.sequences) > 1:
            raise PolicyError(
                f"static-causal with several: refuse got a batch of {len(batch.sequences)} sequences;"
                " set max_num_seqs to 1, or several: split"
            )
        lengths = (sequence.new for sequence in batch.sequences)
        return Plan(tuple(Launch(self._key(length), (index,)) for index, length in enumerate(lengths)))

    def _key(self, length: int) -> GraphKey:
        seq_len = self.ladders.prefill.bucket(length)
        return prefill(seq_len, row_mode(self.encoder_only, (length,), seq_len))
