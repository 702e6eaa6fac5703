"""A restart: how long a fresh process takes until its graphs are ready, all of them compiled before."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from graphcache.bench.children import run_all
from graphcache.bench.concurrent import SMALL, graph_keys
from graphcache.bench.graphs import SampleGraphs
from graphcache.bench.sample import MODEL, SampleProgram, Sizes, form_of
from graphcache.bench.timing import Progress, silent, timed
from graphcache.errors import GraphCacheError
from graphcache.key import GraphKey
from graphcache.store.open import open_store

HERE = "graphcache.bench.restart"


def measure(
    graphs: int = 16,
    *,
    small: bool = False,
    with_vllm: bool = True,
    directory: Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Compile everything in one process, then measure in a fresh one, once torch is imported.

    ``ours_seconds`` and ``torch_compile_seconds`` are until the last graph is ready to run, beside them
    ``…_first_seconds`` until the first; ``vllm_seconds`` is until vLLM's one graph, with a dynamic length
    and no choice of mask, is ready.  ``vllm_reason`` says why that is None, or more than a load takes.
    What a graph's run takes is left out.  Caches are kept below ``directory`` if it is given.

    Raises:
        GraphCacheError: a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="graphcache-bench-") as fresh:
        root = (directory or Path(fresh)).absolute()
        result: dict[str, Any] = {"graphs": graphs}
        contenders = ["ours", "torch_compile"]
        for index, name in enumerate(contenders):
            for turn, doing in enumerate(("compiles", "restarts")):
                progress(f"{name} {doing}", 2 * index + turn, 2 * len(contenders) + 2)
                ready = _run(name, root, graphs, small)
            result |= {f"{name}_first_seconds": ready[0], f"{name}_seconds": ready[-1]}
        if not with_vllm or not find_spec("vllm"):
            return {**result, "vllm_seconds": None, "vllm_reason": "vLLM is not installed, or was not asked"}
        progress("vllm", 2 * len(contenders), 2 * len(contenders) + 2)
        return {**result, **_vllm(root)}


def _run(name: str, root: Path, graphs: int, small: bool) -> list[float]:
    variables = {"TORCHINDUCTOR_CACHE_DIR": f"{root}/inductor", "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    variables["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "1"
    job = {"contender": name, "store": f"{root}/store", "graphs": graphs, "small": small}
    ready: list[float] = run_all(HERE, [job], variables)[0]
    return ready


def _vllm(root: Path) -> dict[str, Any]:
    variables = {"VLLM_CACHE_ROOT": f"{root}/vllm", "TORCHINDUCTOR_CACHE_DIR": f"{root}/vllm/inductor"}
    variables |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    variables |= {"HF_HUB_OFFLINE": "1", "GRAPHCACHE_PLATFORM": ""}
    try:
        for _ in ("compiles", "restarts"):
            (told,) = run_all("graphcache.vllm.measure", [{"model": f"{root}/model"}], variables)
    except GraphCacheError as error:
        return {"vllm_seconds": None, "vllm_reason": str(error)}
    reason = "its stored graph did not load: it compiled again, from a warm Inductor cache"
    return {"vllm_seconds": told["seconds"], "vllm_reason": reason if told["compiles"] else ""}


def _ours(program: SampleProgram, keys: list[GraphKey], store: str) -> Iterator[float]:
    """Yield, for each graph, the seconds since the store was opened at which it was ready."""
    began = time.perf_counter()
    opened = open_store(store)
    graphs = SampleGraphs(program, opened)
    for key in keys:
        graphs[key]
        yield time.perf_counter() - began
    opened.close()


def _torch_compile(program: SampleProgram, keys: list[GraphKey], store: str) -> Iterator[float]:
    """Yield the same for ``torch.compile``, which is ready once it was called: less what a call takes."""
    compiled: dict[str, Callable[..., object]] = {}
    spent = 0.0
    with torch._dynamo.config.patch(recompile_limit=4 * len(keys)):
        for key in keys:
            inputs, form = program.inputs(key), form_of(key)
            function = compiled.get(form)
            if function is None:
                function = compiled[form] = torch.compile(program.module(key), dynamic=False)
            calls = [timed(partial(function, *inputs)) for _ in range(2)]
            spent += calls[0] - calls[1]
            yield spent


CONTENDERS = {"ours": _ours, "torch_compile": _torch_compile}


def main() -> None:
    """Do a job; print at how many seconds each graph was ready."""
    job = json.loads(sys.argv[1])
    program = SampleProgram(SMALL if job["small"] else Sizes())
    with torch.no_grad():
        ready = CONTENDERS[job["contender"]](program, graph_keys(job["graphs"], MODEL), job["store"])
        print(json.dumps(list(ready)))


if __name__ == "__main__":
    main()
