"""The process behind ``graphcache warm``: a model without its weights, and a store that its graphs go into.

Nothing here needs a device or a request.  The model is built as a worker of ``vllm serve`` builds it, so that
what a server finds in the store is what was put there.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

from graphcache.compile.protocol import Supplier, Urgency
from graphcache.config import Config, MaskForm, load_config
from graphcache.config.build import build_backend, build_cache
from graphcache.errors import CompileError, ConfigError, GraphCacheError, LoadError
from graphcache.fill import Filled, Filling
from graphcache.key import GraphKey
from graphcache.vllm.emit import take_stdout
from graphcache.vllm.program import VllmProgram
from graphcache.vllm.setup import configured_policy
from graphcache.vllm.worker import GraphCacheWorker


def main() -> None:
    """Read the job, do it, and tell each graph, one JSON object a line."""
    emit = take_stdout()
    job = Filling(**json.load(sys.stdin))
    try:
        with tempfile.TemporaryDirectory(prefix="graphcache-warm-") as scratch:
            for graph, total in fill(job, Path(scratch)):
                emit({"graph": graph._asdict(), "of": total})
    except GraphCacheError as error:
        emit({"error": str(error)})


def fill(job: Filling, scratch: Path) -> Iterator[tuple[Filled, int]]:
    """Yield every graph that the policy can ask for, once it is known or made, and how many there are.

    ``scratch`` is a directory for what only this process needs.

    Raises:
        ConfigError: an option that does not fit the model or the backend.
        StoreError: the store can't be used.
    """
    config = _config(job)
    program = _program(job, config.mask, scratch)
    backend = build_backend(config, program)
    policy = configured_policy(config, program.vllm_config)
    with torch.no_grad(), build_cache(config, backend, policy=policy) as cache:
        supplier, keys, missing = cache.supplier, list(policy.warm_keys()), []
        for key in keys:
            if supplier.stored(key):
                yield Filled(str(key), "stored"), len(keys)
            else:
                missing.append(key)
        if not job.dry:
            supplier.prepare(missing)
            for key in missing:
                supplier.request(key, Urgency.WARM)
        for key in missing:
            yield (Filled(str(key), "missing") if job.dry else _compile(supplier, key)), len(keys)


def _compile(supplier: Supplier, key: GraphKey) -> Filled:
    began = time.perf_counter()
    try:
        supplied = supplier.fetch(key)
    except (CompileError, LoadError) as error:
        return Filled(str(key), "failed", time.perf_counter() - began, str(error))
    supplied.graph.close()
    return Filled(str(key), "compiled" if supplied.source == "compile" else "stored", supplied.seconds)


def _config(job: Filling) -> Config:
    """Return the policy's configuration, with every compile in a process of its own, for the architecture."""
    config = load_config(job.policy)
    if config.store is None:
        raise ConfigError.of(config.place("store"), None, "a store to fill")
    options = {**config.backend.options, **({"march": job.march} if job.march else {})}
    return config.model_copy(
        update={
            "backend": config.backend.model_copy(update={"options": options}),
            "compile": config.compile.model_copy(update={"workers": job.workers, "nice": 0}),
            "store": config.store.model_copy(update={"path": None}),
            "record": None,
        }
    )


def _program(job: Filling, form: MaskForm, scratch: Path) -> VllmProgram:
    """Build the model on one worker, with weights that nobody reads, and a KV cache that nobody fills."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = parser.parse_args(["--model", job.model, *job.arguments])
    engine = EngineArgs.from_cli_args(arguments)
    engine.load_format = "dummy"
    engine.kv_cache_memory_bytes = 1  # What is given is not taken from the host's memory up front.
    vllm_config = engine.create_engine_config(UsageContext.OPENAI_API_SERVER)
    if (ranks := vllm_config.parallel_config.tensor_parallel_size) > 1:
        raise ConfigError.of("tensor_parallel_size", ranks, "1: only their server fills a store for ranks")
    with set_current_vllm_config(vllm_config):
        meeting_place = f"file://{scratch / 'ranks'}"
        worker = GraphCacheWorker(vllm_config, 0, 0, meeting_place, is_driver_worker=True)
        worker.init_device()
        worker.model_runner.load_model_only()
        if vllm_config.model_config.runner_type == "generate":
            _keep_cache(worker, vllm_config)
    return VllmProgram(worker.model_runner.model, vllm_config, form)


def _keep_cache(worker: GraphCacheWorker, vllm_config: VllmConfig) -> None:
    """Give the model the smallest KV cache that vLLM allows; the number of blocks is no part of a graph."""
    spec = worker.get_kv_cache_spec()
    layout = resolve_kv_cache_layout(
        vllm_config, [worker.get_supported_kv_cache_layouts()], list(spec.values())
    )
    worker.set_kv_cache_layout(layout.name)
    needed = sum(layer.max_memory_usage_bytes(vllm_config) for layer in spec.values())
    (config,) = get_kv_cache_configs(vllm_config, [spec], [2 * needed])
    worker.initialize_from_config(config)


if __name__ == "__main__":
    main()
