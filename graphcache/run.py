"""Real vLLM engines over a stream of requests, one after another, one for each policy."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graphcache.child import events, vllm_environment
from graphcache.config import load_config
from graphcache.errors import ConfigError, GraphCacheError
from graphcache.trace.requests import Trace

SINGLE = "static-causal"
"""The policy that a server chooses by ``max_num_seqs 1``: its engine gets no batches of several."""

MODEL = {"family": "qwen3", "hidden": 1024, "layers": 4, "heads": 16, "seed": 0}
"""The model that is written where none is given: big enough that attention shows."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one engine has to do; goes to its process as JSON.

    ``arrived_seconds`` and ``prompt_tokens`` are the requests.  The engine's clock stands still while it
    has nothing to do.  With a ``load``, arrivals are stretched so that it is busy that share of the time,
    as measured once it is warm; with a ``stretch``, by that factor.
    """

    policy: str
    model: str
    store: str
    arrived_seconds: list[float]
    prompt_tokens: list[int]
    max_num_seqs: int
    max_model_len: int
    dtype: str = "bfloat16"
    seed: int = 0
    load: float | None = None
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one engine did: seconds of each step, and what its cache counted.

    ``snapshot`` is the cache's own at the end, ``warm`` the totals it had before the first request.
    """

    policy: str
    max_num_seqs: int
    stretch: float
    requests: int
    tokens: int
    step_seconds: list[float]
    start_seconds: float
    snapshot: dict[str, Any] = field(repr=False)
    warm: dict[str, float] = field(repr=False)

    def row(self) -> dict[str, Any]:
        """Return the figures of the table, as plain values; p50 and p99 are of steps, in seconds.

        Loads and compiles are those of the warm-up too; hits, fallbacks and stalls of the requests alone.
        """
        total = self.snapshot["total"]
        served = {name: total[name] - self.warm[name] for name in ("hits", "fallbacks", "stalls")}
        ordered = sorted(self.step_seconds)
        running = sum(ordered)
        return {
            "policy": self.policy,
            "max_num_seqs": self.max_num_seqs,
            "requests": self.requests,
            "steps": len(ordered),
            **served,
            **{name: total[name] for name in ("loads", "compiles")},
            "compile_seconds": total["compile_seconds"],
            "start_seconds": self.start_seconds,
            "run_seconds": running,
            "tokens_per_second": self.tokens / running if running else 0.0,
            "p50_step_seconds": quantile(ordered, 0.5),
            "p99_step_seconds": quantile(ordered, 0.99),
            "resident_graphs": len(self.snapshot["resident"]),
            "resident_bytes": self.snapshot["resident_bytes"],
        }


Report = Callable[[dict[str, Any]], None]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the ordered values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def jobs(
    trace: Trace,
    policies: Sequence[str],
    *,
    model: Path,
    store: Path,
    max_num_seqs: int,
    max_model_len: int,
    dtype: str,
    seed: int,
    load: float | None,
) -> list[Job]:
    """Return one job per policy over the same requests; those above ``max_model_len`` must be out already.

    Raises:
        ConfigError: no requests are left, or a policy that can't be used.
    """
    for policy in policies:
        load_config(policy)
    if not len(trace):
        raise ConfigError.of("requests", 0, f"at least one of at most {max_model_len} tokens")
    return [
        Job(
            policy=policy,
            model=str(model),
            store=str(store),
            arrived_seconds=[float(seconds) for seconds in trace.arrived_seconds],
            prompt_tokens=[int(tokens) for tokens in trace.prompt_tokens],
            max_num_seqs=1 if policy == SINGLE else max_num_seqs,
            max_model_len=max_model_len,
            dtype=dtype,
            seed=seed,
            load=load,
        )
        for policy in policies
    ]


def run_job(job: Job, report: Report = lambda event: None) -> Result:
    """Run one engine in a process of its own; ``report`` is told of warm-up and steps as they happen.

    Raises:
        GraphCacheError: the engine failed; the message ends with the last lines of its log.
    """
    environment = vllm_environment(job.policy, job.store)
    what, result = f"the engine of {job.policy}", None
    for event in events("graphcache.vllm.serve", asdict(job), environment, what):
        if event["event"] == "result":
            result = Result(**event["result"])
        else:
            report(event)
    if result is None:
        raise GraphCacheError(f"{what} ended without a result")
    return result


def default_model(directory: Path) -> Path:
    """Return the model that is written where none is given, after writing it where it is not there yet."""
    from graphcache.vllm.models import write_model

    path = directory / "-".join(str(value) for value in MODEL.values())
    if not path.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix="model-", dir=directory))
        try:
            write_model(unfinished, **MODEL)  # type: ignore[arg-type]
            unfinished.rename(path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return path
