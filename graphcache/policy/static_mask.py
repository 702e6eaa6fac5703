"""One graph per length: always packed, always with a mask."""

from __future__ import annotations

from graphcache.batch import Batch, Plan
from graphcache.key import MaskMode
from graphcache.policy.protocol import State, View
from graphcache.policy.static import Static, packed


class StaticMask(Static):
    """Packs every batch into one row and runs it with a custom mask."""

    modes = (MaskMode.CUSTOM,)

    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return one packed launch.

        Raises:
            LadderError: the batch's tokens exceed the ladder.
        """
        seq_len = self.ladders.prefill.bucket(batch.tokens)
        return packed(seq_len, MaskMode.CUSTOM, len(batch.sequences))
