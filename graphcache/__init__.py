"""The compiled-graph cache of vLLM model runners on static-shape hardware."""

from graphcache._version import __version__
from graphcache.batch import Batch, Launch, Layout, Plan, Sequence
from graphcache.cache import GraphCache
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.step import Outcome

__all__ = [
    "Batch",
    "GraphCache",
    "GraphKey",
    "Ladder",
    "Launch",
    "Layout",
    "MaskMode",
    "OnMiss",
    "Outcome",
    "Plan",
    "Sequence",
    "__version__",
    "dominates",
]
