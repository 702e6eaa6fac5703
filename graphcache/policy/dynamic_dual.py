"""Two graphs per length: a mask only where there are several sequences."""

from __future__ import annotations

from graphcache.batch import Batch, Plan
from graphcache.key import MaskMode
from graphcache.policy.protocol import State, View
from graphcache.policy.static import Static, packed


class DynamicDual(Static):
    """Packs every batch into one row: causal for a lone sequence, with a custom mask for several."""

    modes = (MaskMode.CUSTOM, MaskMode.CAUSAL)

    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return one packed launch.

        Raises:
            LadderError: the batch's tokens exceed the ladder.
        """
        seq_len = self.ladders.prefill.bucket(batch.tokens)
        mode = MaskMode.CAUSAL if len(batch.sequences) == 1 else MaskMode.CUSTOM
        return packed(seq_len, mode, len(batch.sequences))
