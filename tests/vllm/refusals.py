"""Build engine configurations under the platform; print what each became, or how it was refused, as JSON.

    python refusals.py MODEL CASES.json

A case is the keyword arguments of vLLM's ``EngineArgs``, and environment variables beside them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch


def outcome(model: str, arguments: dict[str, Any], variables: dict[str, str]) -> str:
    """Return the settings that matter, or the error's text."""
    from vllm.engine.arg_utils import EngineArgs

    defaults = {"runner": "pooling", "convert": "embed", "max_model_len": 512, "max_num_batched_tokens": 512}
    try:
        with patch.dict(os.environ, variables):
            config = EngineArgs(model=model, **{**defaults, **arguments}).create_engine_config()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return (
        f"worker={config.parallel_config.worker_cls} "
        f"prefix_caching={config.cache_config.enable_prefix_caching} "
        f"chunked_prefill={config.scheduler_config.enable_chunked_prefill} "
        f"tokens={config.scheduler_config.max_num_batched_tokens} "
        f"mode={config.compilation_config.mode.name} dtype={config.model_config.dtype}"
    )


def main() -> None:
    cases = json.loads(Path(sys.argv[2]).read_text())
    results = {name: outcome(sys.argv[1], *case) for name, case in cases.items()}
    print("RESULTS " + json.dumps(results))


if __name__ == "__main__":
    main()
