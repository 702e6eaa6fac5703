"""Many processes that need the same graphs at once: how many compiles that takes."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from graphcache.bench.children import run_all
from graphcache.bench.graphs import sample_graphs
from graphcache.bench.sample import ATTENTION, Sizes
from graphcache.key import GraphKey, MaskMode

SMALL = Sizes(hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, vocabulary=32, max_tokens=2048)


def graph_keys(graphs: int, kind: str) -> list[GraphKey]:
    """Return as many keys: lengths of 16, 32, 64, …, each causal and with a mask made in the graph."""
    modes = (MaskMode.CAUSAL, MaskMode.CUSTOM)
    return [GraphKey(1, 16 << index // 2, mode=modes[index % 2], kind=kind) for index in range(graphs)]


def measure(processes: int = 8, graphs: int = 16) -> dict[str, Any]:
    """Have processes ask for the same graphs on an empty store, each in an order of its own.

    Returns ``processes``, ``graphs``, and summed over the processes ``compiles``, ``loads`` and ``faults``
    of the store by reason.

    Raises:
        GraphCacheError: a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="graphcache-bench-") as directory:
        jobs = [{"store": f"{directory}/store", "graphs": graphs, "seed": seed} for seed in range(processes)]
        told = run_all("graphcache.bench.concurrent", jobs, {"OMP_NUM_THREADS": "1"})
    sources = Counter(source for each in told for source in each["sources"])
    faults = sum((Counter(each["faults"]) for each in told), Counter())
    return {
        "processes": processes,
        "graphs": graphs,
        "compiles": sources["compile"],
        "loads": sources["load"],
        "faults": dict(faults),
    }


def main() -> None:
    """Get a job's graphs; print where each came from."""
    job = json.loads(sys.argv[1])
    keys = graph_keys(job["graphs"], ATTENTION)
    random.Random(job["seed"]).shuffle(keys)
    with sample_graphs(Path(job["store"]), SMALL) as graphs:
        for key in keys:
            graphs[key]
        sources = [graphs.supplied[key].source for key in keys]
        print(json.dumps({"sources": sources, "faults": graphs.stats.errors}))


if __name__ == "__main__":
    main()
