"""Decode and prefix graphs beside any policy: what a server needs that generates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from graphcache.batch import Batch, Launch, Layout, Plan
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.protocol import Action, Ladders, Policy, State, View

DECODE = "decode"


class Generation:
    """Gives new prompts to a policy, and runs sequences with cached tokens in graphs that read the cache.

    All sequences of one new token share ``decode`` launches, one row each; a sequence of several new tokens
    behind cached ones has a ``prefix`` launch of its own.  Their ``kv_len`` counts every token that is
    looked at, the new ones among them.  State, eviction and new prompts are the policy's.

    Raises:
        ConfigError: there is no ladder of cached tokens.
    """

    def __init__(self, prompts: Policy, ladders: Ladders) -> None:
        if ladders.decode is None:
            raise ConfigError.of("ladders.decode", None, "a ladder, where a server generates")
        self.prompts = prompts
        self.ladders = ladders
        self._cached = ladders.decode

    def start(self, saved: Any = None) -> State:
        """Return the policy's state."""
        return self.prompts.start(saved)

    def save(self, state: State) -> Any:
        """Return the policy's state as plain JSON values."""
        return self.prompts.save(state)

    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return the decode launches, then those with a prefix, then the policy's for new prompts.

        Raises:
            PolicyError: the policy can't serve the new prompts.
            LadderError: a sequence is longer than its ladder.
        """
        new, decoding, behind = _sorted_out(batch)
        launches = [*self._decode(batch, decoding), *(self._behind(batch, index) for index in behind)]
        if new:
            prompts = self.prompts.plan(_part(batch, new), view, state)
            launches += [_renumbered(launch, new) for launch in prompts.launches]
        return Plan(tuple(launches))

    def advance(self, state: State, batch: Batch, plan: Plan, view: View) -> tuple[State, Sequence[Action]]:
        """Tell the policy of the new prompts, and by their keys alone of the graphs that read the cache."""
        new, decoding, behind = _sorted_out(batch)
        actions: list[Action] = []
        for part in (new, [*decoding, *behind]):
            wanted = set(part)
            launches = [launch for launch in plan.launches if wanted.issuperset(launch.sequences)]
            if launches:
                places = {index: place for place, index in enumerate(part)}
                own = Plan(tuple(_renumbered(launch, places) for launch in launches))
                state, more = self.prompts.advance(state, _part(batch, part), own, view)
                actions += more
        return state, actions

    def inserted(self, state: State, key: GraphKey, view: View) -> State:
        """Tell the policy."""
        return self.prompts.inserted(state, key, view)

    def victim(self, state: State, key: GraphKey, candidates: Sequence[GraphKey], view: View) -> GraphKey:
        """Let the policy choose."""
        return self.prompts.victim(state, key, candidates, view)

    def warm_keys(self) -> Iterable[GraphKey]:
        """List decode graphs, the policy's, and those with a prefix, of each the largest first."""
        decode = [_decode_key(rows, cached) for rows in self.ladders.rows for cached in self._cached]
        behind = dict.fromkeys(
            _behind_key(new, cached) for new in self.ladders.prefill for cached in self._cached
        )
        return [*reversed(decode), *self.prompts.warm_keys(), *reversed(behind)]

    def _decode(self, batch: Batch, decoding: Sequence[int]) -> Iterable[Launch]:
        most = self.ladders.rows.top
        for start in range(0, len(decoding), most):
            part = tuple(decoding[start : start + most])
            longest = max(batch.sequences[index].cached for index in part) + 1
            key = _decode_key(self.ladders.rows.bucket(len(part)), self._cached.bucket(longest))
            yield Launch(key, part, Layout.ROWS)

    def _behind(self, batch: Batch, index: int) -> Launch:
        sequence = batch.sequences[index]
        key = _behind_key(
            self.ladders.prefill.bucket(sequence.new), self._cached.bucket(sequence.cached + sequence.new)
        )
        return Launch(key, (index,), Layout.ROWS)


def _sorted_out(batch: Batch) -> tuple[list[int], list[int], list[int]]:
    """Return the indices of new prompts, of sequences that decode, and of those behind a prefix."""
    new: list[int] = []
    decoding: list[int] = []
    behind: list[int] = []
    for index, sequence in enumerate(batch.sequences):
        (new if not sequence.cached else decoding if sequence.new == 1 else behind).append(index)
    return new, decoding, behind


def _part(batch: Batch, indices: Sequence[int]) -> Batch:
    return Batch(tuple(batch.sequences[index] for index in indices))


def _renumbered(launch: Launch, numbers: Sequence[int] | dict[int, int]) -> Launch:
    return replace(launch, sequences=tuple(numbers[index] for index in launch.sequences))


def _decode_key(rows: int, cached: int) -> GraphKey:
    return GraphKey(rows, 1, cached, MaskMode.PREFIX, DECODE)


def _behind_key(new: int, cached: int) -> GraphKey:
    # Never less than the new tokens: the graph may stand in for one that runs a prompt of that length.
    return GraphKey(1, new, max(new, cached), MaskMode.PREFIX)
