"""Print, as JSON, how much of some memory each configuration leaves for vLLM's KV cache, or why nothing.

python reserve.py BYTES POLICY.yaml …
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from unittest.mock import patch

from vllm.v1.worker.cpu_worker import CPUWorker

from graphcache.config import load_config
from graphcache.errors import ConfigError
from graphcache.vllm.worker import GraphCacheWorker


def left(policy: str, explicit: int | None = None) -> int | str:
    os.environ["GRAPHCACHE_POLICY"] = policy
    worker = object.__new__(GraphCacheWorker)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=explicit)
    supplier = SimpleNamespace(background=load_config(policy).workers > 0)
    worker.model_runner = SimpleNamespace(graphs=SimpleNamespace(supplier=supplier))
    try:
        return worker.determine_available_memory()
    except ConfigError as error:
        return str(error)


def main() -> None:
    available = int(sys.argv[1])
    with patch.object(CPUWorker, "determine_available_memory", lambda self: available):
        print("RESULTS " + json.dumps([left(policy) for policy in sys.argv[2:]]))
        print("EXPLICIT " + json.dumps([left(policy, available) for policy in sys.argv[2:]]))


if __name__ == "__main__":
    main()
