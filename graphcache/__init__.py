"""The compiled-graph cache of vLLM model runners on static-shape hardware."""

from graphcache._version import __version__
from graphcache.batch import Batch, Launch, Layout, Plan, Sequence
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.ladder import Ladder

__all__ = [
    "Batch",
    "GraphKey",
    "Ladder",
    "Launch",
    "Layout",
    "MaskMode",
    "Plan",
    "Sequence",
    "__version__",
    "dominates",
]
