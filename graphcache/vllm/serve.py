"""The process of one engine of ``graphcache run``: a job as JSON on its standard input, events on its output.

Requests arrive on the engine's own clock: it runs while a step runs, and jumps to the next arrival when there
is nothing to do, so that batches form as they would at the trace's rate, without the waiting.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from graphcache.run import Job, Result
from graphcache.vllm.emit import take_stdout, tell_warm_up

KV_CACHE_BYTES = 256 * 2**20
CALIBRATION_RUNS = 5


def main() -> None:
    """Read the job, run it, and write its events, one JSON object a line."""
    emit = take_stdout()
    job = Job(**json.load(sys.stdin))
    tell_warm_up(emit)
    began = time.perf_counter()
    engine = _engine(job)
    start_seconds = time.perf_counter() - began
    requests = Requests(engine, job)
    stretch = requests.calibrate() if job.load else job.stretch
    emit({"event": "ready", "stretch": stretch})
    before = len(requests.step_seconds)
    (warm,) = engine.collective_rpc("graphcache_stats")
    requests.run(stretch, lambda done: emit({"event": "done", "done": done, "of": len(job.prompt_tokens)}))
    (snapshot,) = engine.collective_rpc("graphcache_stats")
    result = Result(
        policy=job.policy,
        max_num_seqs=job.max_num_seqs,
        stretch=stretch,
        requests=len(job.prompt_tokens),
        tokens=sum(job.prompt_tokens),
        step_seconds=requests.step_seconds[before:],
        start_seconds=start_seconds,
        snapshot=snapshot,
        warm=warm["total"],
    )
    emit({"event": "result", "result": asdict(result)})


class Requests:
    """Feeds one engine its requests at their times, and measures its steps."""

    def __init__(self, engine: Any, job: Job) -> None:
        self.step_seconds: list[float] = []
        self._engine = engine
        self._job = job
        self._random = random.Random(job.seed)
        self._added = 0

    def calibrate(self) -> float:
        """Return the stretch that gives the job's load, from the speed of lone mean requests."""
        assert self._job.load
        lengths, arrived = self._job.prompt_tokens, self._job.arrived_seconds
        mean = round(sum(lengths) / len(lengths))
        for _ in range(CALIBRATION_RUNS):
            self._add(mean)
            while self._engine.has_unfinished_requests():
                self._step()
        seconds_per_token = min(self.step_seconds) / mean
        span = arrived[-1] - arrived[0]
        return sum(lengths) * seconds_per_token / (self._job.load * span) if span else 1.0

    def run(self, stretch: float, done: Callable[[int], None]) -> None:
        """Run all requests; ``done`` is told after each step how many have come to their end."""
        arrivals = [seconds * stretch for seconds in self._job.arrived_seconds]
        now, following, finished = 0.0, 0, 0
        while finished < len(arrivals):
            if not self._engine.has_unfinished_requests():
                now = max(now, arrivals[following])
            while following < len(arrivals) and arrivals[following] <= now:
                self._add(self._job.prompt_tokens[following])
                following += 1
            finished += self._step()
            now += self.step_seconds[-1]
            done(finished)

    def _add(self, tokens: int) -> None:
        from vllm import PoolingParams

        prompt = {"prompt_token_ids": self._random.choices(range(256), k=tokens)}
        self._engine.add_request(str(self._added), prompt, PoolingParams(task="embed"))
        self._added += 1

    def _step(self) -> int:
        """Run one step; return how many requests it finished."""
        began = time.perf_counter()
        outputs = self._engine.step()
        self.step_seconds.append(time.perf_counter() - began)
        return sum(output.finished for output in outputs)


def _engine(job: Job) -> Any:
    from vllm import LLM

    llm = LLM(
        model=job.model,
        runner="pooling",
        convert="embed",
        dtype=job.dtype,
        max_model_len=job.max_model_len,
        max_num_batched_tokens=job.max_model_len,
        max_num_seqs=job.max_num_seqs,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        seed=job.seed,
    )
    return llm.llm_engine


if __name__ == "__main__":
    main()
