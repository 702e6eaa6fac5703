"""From what people write on a command line to what a simulation takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphcache.bytesize import format_bytes, parse_bytes
from graphcache.costs import Costs, CostTable
from graphcache.errors import ConfigError, UnknownNameError
from graphcache.ladder import Ladder
from graphcache.policy.protocol import Budget
from graphcache.profiles import load_profile
from graphcache.trace import SOURCES, Limits, Steps, Trace, best_step_seconds, generate, read_trace, replay
from graphcache.trace.replay import Task

BUDGET_FORMS = "a number of graphs such as 8, a size such as 2GiB, both as 8/2GiB, or all"
LADDER_FORMS = "LOW:HIGH for doubling sizes, LOW:HIGH:STEP for equal steps, or the sizes, separated by commas"


def parse_budget(text: str) -> Budget:
    """Read a budget: ``8`` graphs, ``2GiB`` of them, both as ``8/2GiB``, or ``all`` for no bound.

    Raises:
        ConfigError: none of these.
    """
    if text == "all":
        return Budget()
    bounds: dict[str, int] = {}
    for part in text.split("/"):
        kind = "graphs" if part.isdecimal() else "bytes"
        try:
            value = int(part) if kind == "graphs" else parse_bytes(part)
        except ConfigError:
            value = 0
        if value < 1 or kind in bounds:
            raise ConfigError.of("budget", text, BUDGET_FORMS)
        bounds[kind] = value
    return Budget(**bounds)


def parse_budgets(texts: Sequence[str], *, one: bool = False) -> list[Budget]:
    """Read budgets; only ``one`` where there can't be several.

    Raises:
        ConfigError: one of them is no budget, or there are several.
    """
    if one and len(texts) > 1:
        raise ConfigError.of("budget", ",".join(texts), "one, for the file of schedules holds one")
    return [parse_budget(text) for text in texts]


def format_budget(budget: Budget) -> str:
    """Return a budget as ``parse_budget`` reads it."""
    parts = [str(budget.graphs)] if budget.graphs is not None else []
    parts += [format_bytes(budget.bytes).replace(" ", "")] if budget.bytes is not None else []
    return "/".join(parts) or "all"


def parse_ladder(text: str) -> Ladder:
    """Read a ladder: ``128:16384`` doubles, ``128:4096:256`` steps, ``128,384,1024`` are the sizes.

    Raises:
        ConfigError: none of these, or sizes that do not increase.
    """
    try:
        numbers = [int(part) for part in text.replace(":", ",").split(",")]
    except ValueError:
        numbers = []
    if ":" not in text and numbers:
        return Ladder(numbers)
    if "," in text or len(numbers) not in (2, 3):
        raise ConfigError.of("ladder", text, LADDER_FORMS)
    return Ladder.pow2(numbers[0], numbers[1]) if len(numbers) == 2 else Ladder.linear(*numbers)


def load_costs(profile: str | Path, compile_seconds: float | None = None) -> CostTable:
    """Read a profile; ``compile_seconds`` stands for every graph's, where it is given.

    Raises:
        UnknownNameError: no shipped profile has the name.
        ConfigError: no such file, or not such a file.
    """
    costs = load_profile(profile)
    return costs if compile_seconds is None else costs.with_compile_seconds(compile_seconds)


def load_requests(trace: str, *, limit: int | None = None, seed: int = 0) -> Trace | Steps:
    """Read a trace file, or generate a trace by its name; ``limit`` keeps the first requests.

    Raises:
        UnknownNameError: neither a file nor a known name.
        ConfigError: a file that is no trace, or a limit below 1.
    """
    if limit is not None and limit < 1:
        raise ConfigError.of("limit", limit, "at least 1")
    if trace in SOURCES:
        return generate(trace, limit or 10_000, seed=seed)
    if not Path(trace).expanduser().exists() and "/" not in trace:
        known = ", ".join(sorted(SOURCES))
        raise UnknownNameError(f"trace: {trace!r} is no file, and no known name; known: {known}")
    requests = read_trace(Path(trace).expanduser(), seed=seed)
    return requests if limit is None else requests.first(limit)


def load_steps(
    requests: Trace | Steps,
    ladder: Ladder,
    costs: Costs,
    *,
    limits: Limits | None = None,
    load: float | None = None,
    task: Task = "pooling",
) -> Steps:
    """Return the steps of a trace, on a server as fast as its best graphs; recorded steps are as they are.

    Requests, or recorded steps, that are longer than the ladder are left out and counted.

    Raises:
        ConfigError: a load that is no share between 0 and 1, or one for recorded steps; or all are longer
            than the ladder.
    """
    if isinstance(requests, Steps):
        if load is not None:
            raise ConfigError.of("load", load, "none, for recorded steps keep their times")
        steps = requests.shorter_than(ladder.top)
        cached = int((steps.cached > 0).sum())
        note = f"{cached} sequences had cached tokens before their new ones, which are not simulated"
        steps = replace(steps, notes=(*steps.notes, note)) if cached else steps
    else:
        limits = limits or Limits()
        limits = replace(limits, max_num_batched_tokens=min(limits.max_num_batched_tokens, ladder.top))
        step_seconds = best_step_seconds(ladder, costs)
        steps = replay(requests, limits, load=load, task=task, step_seconds=step_seconds)
    if not len(steps):
        raise ConfigError(
            f"{steps.name}: nothing in it has at most {ladder.top} tokens, the ladder's top;"
            " allowed: a ladder with a higher top, or a trace of shorter requests"
        )
    return steps
