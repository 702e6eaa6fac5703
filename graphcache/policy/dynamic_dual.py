"""Two graphs per length: a mask only where there are several sequences."""

from __future__ import annotations

from graphcache.batch import Batch, Plan
from graphcache.key import MaskMode
from graphcache.policy.modes import row_mode
from graphcache.policy.protocol import State, View
from graphcache.policy.static import Static, packed


class DynamicDual(Static):
    """Packs every batch into one row: with a custom mask only for several sequences."""

    modes = (MaskMode.CUSTOM, MaskMode.CAUSAL)

    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return one packed launch.

        Raises:
            LadderError: the batch's tokens exceed the ladder.
        """
        seq_len = self.ladders.prefill.bucket(batch.tokens)
        lone = len(batch.sequences) == 1
        mode = row_mode(self.encoder_only, (batch.tokens,), seq_len) if lone else MaskMode.CUSTOM
        return packed(seq_len, mode, len(batch.sequences))
