"""One rank: drives a cache of its own through a job, and prints its decisions as JSON.

The job on the command line says, for this rank: after how many calls a request is ready, what fails, what the
store has, at which step the rank dies, and how long its runs take.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta

import torch.distributed as dist

from graphcache.agree import AgreedLearner, AgreedSupplier
from graphcache.backends.protocol import Graph
from graphcache.backends.torch_group import TorchGroup
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.protocol import Failed, Supplied
from graphcache.costs import PaddedWork
from graphcache.errors import CompileError, GraphCacheError
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders


class Scripted:
    """A background supplier that is ready, or fails, after as many calls as the job says."""

    background = True

    def __init__(self, job):
        self.job = job
        self.waiting = {}

    def prepare(self, keys):
        return 0

    def fetch(self, key):
        if str(key) in self.job["failing"]:
            raise CompileError(key, "planted")
        source = "load" if self.stored(key) else "compile"
        return Supplied(key, Graph(lambda: None, nbytes=self.job["nbytes"]), source, 0.0)

    def stored(self, key):
        return str(key) in self.job["stored"]

    def request(self, key, urgency=None):
        self.waiting.setdefault(key, self.job["delay"])

    def ready(self):
        self.waiting = {key: calls - 1 for key, calls in self.waiting.items()}
        done = [key for key, calls in self.waiting.items() if calls <= 0]
        for key in done:
            del self.waiting[key]
        return [self._outcome(key) for key in done]

    def _outcome(self, key):
        try:
            return self.fetch(key)
        except CompileError as error:
            return Failed(key, "compile", error)

    def close(self):
        pass


class Speed(PaddedWork):
    """Costs of a rank whose runs take so many times as long."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def run_seconds(self, key):
        return self.factor * super().run_seconds(key)


class Learner:
    def __init__(self, factor):
        self.factor = factor

    def observe(self, key, seconds):
        pass

    def supplied(self, key, source, seconds, nbytes):
        pass

    def snapshot(self):
        return Speed(self.factor)


def main():
    rank, size, meeting, job = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )
    group = TorchGroup()
    cache = GraphCache(
        DynamicDual(Ladders(Ladder((16, 32, 64)))),
        AgreedSupplier(Scripted(job), group, every_steps=4),
        budget=Budget(graphs=4, bytes=100),
        on_miss=OnMiss.FALLBACK,
        learner=AgreedLearner(Learner(job["factor"]), group, lambda costs: costs.factor, Speed),
    )
    cache.LEARN_STEPS = 8
    decisions, error = [], None
    try:
        for index, lengths in enumerate(job["batches"]):
            if index == job.get("dies_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            with cache.step(Batch.of(lengths)) as step:
                decisions.append([[str(launch.key), launch.outcome.value] for launch in step])
    except GraphCacheError as raised:
        error = f"{type(raised).__name__}: {raised}"
    resident = [str(key) for key in cache.resident]
    factor = getattr(cache.view.costs, "factor", None)
    print(json.dumps({"decisions": decisions, "resident": resident, "error": error, "factor": factor}))
    sys.stdout.flush()
    os._exit(0)  # a group whose member died can't be left in good order


main()
