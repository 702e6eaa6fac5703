"""A store filled with a model's graphs without a server, and told what of it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from graphcache.child import events, vllm_environment
from graphcache.config import load_config
from graphcache.errors import ConfigError, GraphCacheError

Outcome = Literal["stored", "missing", "compiled", "failed"]


@dataclass(frozen=True, slots=True)
class Filling:
    """What to fill a store with; goes to its process as JSON.

    ``arguments`` are those of ``vllm serve``: what they decide is in the graphs.  ``march`` is the compiler's
    ``-march`` for another machine; None is what the policy says.  A ``dry`` one compiles nothing.
    """

    model: str
    policy: str
    store: str
    arguments: Sequence[str] = ()
    march: str | None = None
    workers: int = 1
    dry: bool = False


class Filled(NamedTuple):
    """One graph: whether it was stored, or what became of its compile, and the seconds of that."""

    key: str
    outcome: Outcome
    seconds: float = 0.0
    error: str = ""


Report = Callable[[Filled, int, int], None]
"""Is told each graph when it is done, how many are, and of how many."""


def fill(job: Filling, report: Report = lambda graph, done, total: None) -> list[Filled]:
    """Have every graph that a policy can ask for compiled where the store lacks it; return what is there.

    Raises:
        ConfigError: a model that is not there, or a policy that can't be used.
        GraphCacheError: the model can't be built; the message ends with the last lines of the log.
    """
    if not Path(job.model).is_dir():
        raise ConfigError.of("model", job.model, "the directory of a model")
    load_config(job.policy)
    environment = vllm_environment(job.policy, job.store)
    graphs: list[Filled] = []
    told = events("graphcache.vllm.offline", asdict(job), environment, f"building {job.model}")
    for event in told:
        if "error" in event:
            raise GraphCacheError(event["error"])
        graphs.append(Filled(**event["graph"]))
        report(graphs[-1], len(graphs), event["of"])
    return graphs
