"""Continuous batching: from requests to the batches that a server's steps see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, inf
from typing import Literal, TypeAlias

import numpy as np

from graphcache.costs import Costs, PaddedWork
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.trace.requests import Trace
from graphcache.trace.steps import Steps

StepSeconds: TypeAlias = Callable[[int, int], float]
"""How long a step takes, from its new tokens and its sequences."""

Task: TypeAlias = Literal["pooling", "generate"]

DECODE_SECONDS = 0.025
"""One token of every running sequence."""
LOAD_ROUNDS = 20
LOAD_TOLERANCE = 0.01
LOAD_SAMPLE = 50_000


@dataclass(frozen=True, slots=True)
class Limits:
    """A scheduler's limits, as vLLM has them: sequences, and new tokens, of one step.

    Raises:
        ConfigError: a limit below 1.
    """

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 16384

    def __post_init__(self) -> None:
        for field in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, field) < 1:
                raise ConfigError.of(field, getattr(self, field), "at least 1")


def nominal_step_seconds(tokens: int, sequences: int) -> float:
    """Return 5 ms and 0.1 ms a token: a server of 10,000 tokens a second."""
    return PaddedWork.SECONDS_PER_LAUNCH + tokens * PaddedWork.SECONDS_PER_TOKEN


def best_step_seconds(ladder: Ladder, costs: Costs) -> StepSeconds:
    """Return the seconds of a step, packed, on the best of all graphs of a ladder's two modes."""
    seconds: dict[tuple[int, bool], float] = {}
    for seq_len in ladder:
        custom = costs.run_seconds(GraphKey(1, seq_len, mode=MaskMode.CUSTOM))
        causal = costs.run_seconds(GraphKey(1, seq_len, mode=MaskMode.CAUSAL))
        seconds[seq_len, False], seconds[seq_len, True] = custom, min(custom, causal)
    bucket = ladder.bucket
    return lambda tokens, sequences: seconds[bucket(tokens), sequences == 1]


def replay(
    trace: Trace,
    limits: Limits | None = None,
    *,
    load: float | None = None,
    task: Task = "pooling",
    step_seconds: StepSeconds = nominal_step_seconds,
) -> Steps:
    """Run a trace through a first-come-first-served scheduler; return the steps that have new prompts.

    ``pooling`` runs whole prompts and nothing else.  ``generate`` is prefill-first: a step runs prompts
    whenever a slot is free and one waits, else one token of every running sequence, in `DECODE_SECONDS`;
    those steps pass time and are not returned.  ``load`` stretches the arrivals until the server is busy
    that share of the time.  Prompts above ``max_num_batched_tokens`` are left out and counted.

    Raises:
        ConfigError: a load that is not between 0 and 1, or an unknown task.
    """
    limits = limits or Limits()
    if task not in _TASKS:
        raise ConfigError.of("task", task, ", ".join(_TASKS))
    fitting = trace.prompt_tokens <= limits.max_num_batched_tokens
    admitted = trace if fitting.all() else trace.select(fitting)

    def run(requests: Trace) -> Steps:
        return _TASKS[task](requests, limits, step_seconds)

    steps = run(admitted) if load is None else _at_load(load, admitted, run)
    return replace(steps, left_out=len(trace) - len(admitted), notes=trace.notes)


def _at_load(load: float, trace: Trace, run: Callable[[Trace], Steps]) -> Steps:
    """Stretch a trace until the busy share is ``load``; a long one is first tried on its beginning."""
    if not 0 < load < 1:
        raise ConfigError.of("load", load, "a share between 0 and 1, both excluded")
    factor = 1.0
    if len(trace) > 2 * LOAD_SAMPLE:
        factor, _ = _stretch(load, factor, trace.first(LOAD_SAMPLE), run)
    return _stretch(load, factor, trace, run)[1]


def _stretch(load: float, factor: float, trace: Trace, run: Callable[[Trace], Steps]) -> tuple[float, Steps]:
    """Search for the stretch from ``factor`` on: the busy share falls about as it grows."""
    low, high, push = 0.0, inf, 1.0
    for _ in range(LOAD_ROUNDS):
        steps = run(trace.stretched(factor))
        share = steps.busy_share or 0.0
        if abs(share - load) <= LOAD_TOLERANCE * load or share == 0:
            break
        low, high = (factor, high) if share > load else (low, factor)
        factor *= push * share / load
        push = 2 * push if high == inf else 1.0  # a saturated server says little of how far there is to go
        if not low < factor < high:
            factor = (low + high) / 2
    return factor, steps


def _take(arrived: list[float], prompt: list[int], span: range, now: float, room: int) -> tuple[int, int]:
    """Take waiting requests in order while they fit; return where to go on, and their tokens."""
    tokens = 0
    for index in span:
        if arrived[index] > now or tokens + prompt[index] > room:
            return index, tokens
        tokens += prompt[index]
    return span.stop, tokens


def _pooling(trace: Trace, limits: Limits, step_seconds: StepSeconds) -> Steps:
    arrived, prompt = trace.arrived_seconds.tolist(), trace.prompt_tokens.tolist()
    started, ends = [], []
    now = busy = 0.0
    first, count = 0, len(prompt)
    while first < count:
        now = max(now, arrived[first])
        span = range(first, min(count, first + limits.max_num_seqs))
        last, tokens = _take(arrived, prompt, span, now, limits.max_num_batched_tokens)
        started.append(now)
        ends.append(last)
        seconds = step_seconds(tokens, last - first)
        now, busy, first = now + seconds, busy + seconds, last
    return _steps(trace, started, ends, busy, now)


def _generate(trace: Trace, limits: Limits, step_seconds: StepSeconds) -> Steps:
    arrived, prompt = trace.arrived_seconds.tolist(), trace.prompt_tokens.tolist()
    output = trace.output_tokens.tolist()
    started, ends = [], []
    running: list[int] = []  # a heap: the number of decode steps after which each running request is done
    now = busy = 0.0
    first, count, decoded = 0, len(prompt), 0
    while first < count or running:
        free = limits.max_num_seqs - len(running)
        if free and first < count and (arrived[first] <= now or not running):
            now = max(now, arrived[first])
            span = range(first, min(count, first + free))
            last, tokens = _take(arrived, prompt, span, now, limits.max_num_batched_tokens)
            started.append(now)
            ends.append(last)
            seconds = step_seconds(tokens, last - first)
            for index in range(first, last):
                if output[index] > 1:
                    heappush(running, decoded + output[index] - 1)
            first = last
        else:
            steps = running[0] - decoded
            if free and first < count:
                steps = min(steps, ceil((arrived[first] - now) / DECODE_SECONDS))
            decoded += steps
            seconds = steps * DECODE_SECONDS
            while running and running[0] <= decoded:
                heappop(running)
        now, busy = now + seconds, busy + seconds
    return _steps(trace, started, ends, busy, now)


def _steps(trace: Trace, started: list[float], ends: list[int], busy: float, end: float) -> Steps:
    return Steps(
        name=trace.name,
        started_seconds=np.array(started, dtype=np.float64),
        ends=np.array(ends, dtype=np.int64),
        new=trace.prompt_tokens,
        cached=np.zeros_like(trace.prompt_tokens),
        busy_share=busy / end if end > 0 else 0.0,
    )


_TASKS: dict[str, Callable[[Trace, Limits, StepSeconds], Steps]] = {
    "pooling": _pooling,
    "generate": _generate,
}
