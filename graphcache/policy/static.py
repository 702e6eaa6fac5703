"""What the policies share that decide by a fixed rule: an eviction order beside the rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from graphcache.batch import Batch, Launch, Plan
from graphcache.eviction.lru import Lru
from graphcache.eviction.protocol import Eviction
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.modes import row_modes
from graphcache.policy.protocol import Action, Ladders, State, View


@lru_cache(maxsize=4096)
def prefill(seq_len: int, mode: MaskMode, rows: int = 1) -> GraphKey:
    """Return the key of a prefill graph; equal questions get the same object."""
    return GraphKey(rows=rows, seq_len=seq_len, mode=mode)


@lru_cache(maxsize=4096)
def packed(seq_len: int, mode: MaskMode, sequences: int) -> Plan:
    """Return the plan of one packed launch; equal questions get the same object, which is memoised on."""
    return Plan((Launch(prefill(seq_len, mode), tuple(range(sequences))),))


class Static(ABC):
    """A rule from batch to plan, with an `Eviction` that says what leaves; the state is the eviction's.

    ``encoder_only`` says that the model's attention has no causal term: where the rule asks for ``causal``
    it gets ``padded`` and ``bidirectional`` in its place.
    """

    modes: tuple[MaskMode, ...]
    """The mask modes that the rule asks for."""

    def __init__(
        self, ladders: Ladders, eviction: Eviction | None = None, *, encoder_only: bool = False
    ) -> None:
        self.ladders = ladders
        self.eviction = eviction or Lru()
        self.encoder_only = encoder_only
        alone = row_modes(encoder_only) if MaskMode.CAUSAL in self.modes else ()
        self.modes = (*(mode for mode in self.modes if mode is not MaskMode.CAUSAL), *alone)

    @abstractmethod
    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return the launches for this batch."""

    def start(self, saved: Any = None) -> State:
        """Return the eviction's state."""
        return self.eviction.start(saved)

    def save(self, state: State) -> Any:
        """Return the eviction's state as plain JSON values."""
        return self.eviction.save(state)

    def advance(self, state: State, batch: Batch, plan: Plan, view: View) -> tuple[State, Sequence[Action]]:
        """Tell the eviction what ran; never ask for more than the batch does."""
        for launch in plan.launches:
            self.eviction.on_hit(state, launch.key)
        return state, ()

    def inserted(self, state: State, key: GraphKey, view: View) -> State:
        """Tell the eviction what became resident."""
        self.eviction.on_insert(state, key)
        return state

    def victim(self, state: State, key: GraphKey, candidates: Sequence[GraphKey], view: View) -> GraphKey:
        """Let the eviction choose."""
        return self.eviction.victim(state, candidates)

    def warm_keys(self) -> Iterable[GraphKey]:
        """List the rule's graphs, the longest first, of one length that first which serves the most."""
        return [
            prefill(seq_len, mode) for seq_len in reversed(self.ladders.prefill.sizes) for mode in self.modes
        ]
