"""What the tests share that compare answers of a real engine with stock vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Answers = tuple[dict[str, np.ndarray], dict[str, Any]]
"""What each run answered, by its name, and what its cache counted."""


def compare(
    run_batches: Callable[..., Answers],
    folder: Path,
    job: dict[str, Any],
    policies: Mapping[str, str],
    controls: Mapping[str, tuple[str, str]],
) -> Answers:
    """Run a job by one stock engine, called ``stock``, and by one of ours under every policy and control.

    A policy is the fields of a configuration, a control the name of a policy and what is broken under it.
    """
    runs = [(policy, _configuration(folder, policy, policies), None) for policy in policies]
    runs += [
        (name, _configuration(folder, policy, policies), tampering)
        for name, (policy, tampering) in controls.items()
    ]
    stock, _ = run_batches({**job, "runs": []})
    ours, stats = run_batches({**job, "runs": runs}, GRAPHCACHE_PLATFORM="cpu", GRAPHCACHE_POLICY=runs[0][1])
    return {"stock": stock["engine"], **ours}, stats


def _configuration(folder: Path, policy: str, policies: Mapping[str, str]) -> str:
    path = folder / f"{policy.replace(' ', '-')}.yaml"
    path.write_text(
        f"{{{policies[policy]}, ladder: {{kind: pow2, min: 16}}, backend: eager, store: null, strict: true}}"
    )
    return str(path)


def equal(dtype: str, ours: np.ndarray, stock: np.ndarray) -> bool:
    """Say whether answers, which are unit vectors, are equal as far as their dtype goes."""
    if dtype == "float32":
        return bool(np.abs(ours - stock).max() <= 1e-4)
    return bool((ours * stock).sum(axis=1).min() >= 0.999)


def graphs_run(stats: dict[str, Any], policies: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the keys of the graphs that ran under each policy."""
    return {
        policy: {key for key, counters in stats[policy]["keys"].items() if counters["runs"]}
        for policy in policies
    }


def modes_of(ran: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the mask modes of graphs by their keys, policy by policy."""
    return {policy: {key.split("/")[1] for key in keys} for policy, keys in ran.items()}
