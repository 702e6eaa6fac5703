"""A restart where nothing that was compiled persists: the manifest says what to compile, in which order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is not installed; `make test-xla` runs these tests")

SERVER = """
import json, sys, torch
torch.set_grad_enabled(False)
from small_program import SmallProgram
from graphcache.backends.xla import compiles
from graphcache.batch import Batch
from graphcache.config.build import build_backend, build_cache
from graphcache.config.model import Config

config = Config.model_validate({
    "policy": "dynamic-dual", "ladder": {"kind": "explicit", "sizes": [16, 32, 64]},
    "budget": {"graphs": 3}, "store": {"path": sys.argv[1]}, "backend": "xla", "strict": True,
})
backend = build_backend(config, SmallProgram())
with build_cache(config, backend) as cache:
    asked = []
    cache.warm(progress=lambda key, index, count: asked.append(str(key)))
    warm = [str(key) for key in cache.resident]
    for lengths in json.loads(sys.argv[2]):
        with cache.step(Batch.of(lengths)) as step:
            for launch in step:
                launch.graph(*backend.inputs(launch.key)).cpu()
                step.ran(launch, 0.001 * launch.key.seq_len)
    total = cache.stats.total()
print(json.dumps([asked, warm, total.compiles, total.stalls, compiles()]))
"""
LONE_32, PAIR_16 = [30], [7, 7]


def test_a_restart_warms_what_earlier_processes_ran_most(
    in_child: Callable[..., str], tmp_path: Path
) -> None:
    def serve(*steps: list[int]) -> list:
        return json.loads(in_child(SERVER, str(tmp_path / "store"), json.dumps(steps)))

    serve(*[LONE_32] * 20, *[PAIR_16] * 9)
    asked, warm, compiled, stalls, theirs = serve(LONE_32, PAIR_16)
    first = ["prefill/custom/1x64", "prefill/causal/1x32", "prefill/custom/1x16"]
    assert asked[:3] == first, "the one that serves all, and then by what they ran"
    assert warm == first
    assert (compiled, stalls) == (3, 0)
    assert theirs == compiled
