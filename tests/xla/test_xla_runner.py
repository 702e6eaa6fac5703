"""The example: the same embeddings under each policy, and every compile of torch-xla accounted for."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is not installed; `make test-xla` runs these tests")

from examples.xla_runner import run
from examples.xla_runner.model import ModelConfig
from examples.xla_runner.runner import PoolingRunner


def test_the_policies_agree_and_account_for_every_compile(capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--steps=8", "--longest=64", "--lengths", "32", "64"])
    printed = capsys.readouterr().out
    policies = re.findall(r"^(static-mask|static-causal|dynamic-dual) +(\d+) +(\d+) +(\d+)", printed, re.M)
    assert [(name, compiles) for name, _, compiles, _ in policies] == [
        ("static-mask", "2"),
        ("static-causal", "2"),
        ("dynamic-dual", "4"),
    ]
    assert [counted for _, _, counted, _ in policies] == [theirs for _, _, _, theirs in policies]
    (difference,) = re.findall(r"differ by at most (\S+)", printed)
    assert 0 < float(difference) < 1e-4
    lengths = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)x$", printed, re.M)
    assert [length for length, *_ in lengths] == ["32", "64"]
    assert all(float(seconds) > 0 for _, *row in lengths for seconds in row)


def test_a_mask_that_lets_prompts_see_each_other_would_be_seen() -> None:
    runner = PoolingRunner(ModelConfig(layers=1), str(run.POLICIES / "static-mask.yaml"), 32)
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    alone, together = runner.execute_model(prompts[1:])[0], runner.execute_model(prompts)[1]
    assert (alone - together).abs().max() < 1e-4
    key = next(iter(runner.cache.resident))
    (ids, positions, mask), _ = runner.prepare_inputs(key, prompts)
    leaking = runner.cache.resident[key](ids, positions, mask * 0).cpu()[0, 6]
    assert (alone - leaking).abs().max() > 1e-2
    runner.cache.close()


def test_the_stream_is_the_same_for_every_policy_and_fits_the_ladder() -> None:
    steps = run.stream(200, 64, seed=1)
    assert steps == run.stream(200, 64, seed=1) != run.stream(200, 64, seed=2)
    assert {len(prompts) for prompts in steps} == {1, 2, 3, 4}
    assert max(sum(map(len, prompts)) for prompts in steps) <= 64


def test_embeddings_that_differ_are_told() -> None:
    same = {"embeddings": [[1.0, 2.0]]}
    assert run.compare([same, same]) == 0
    assert run.compare([same, {"embeddings": [[1.0, 2.5]]}]) == 0.5
