"""Request traces: read, generated, recorded, and replayed into the batches that a server's steps see."""

from graphcache.trace.formats import FORMATS, read_trace
from graphcache.trace.generate import SOURCES, generate
from graphcache.trace.record import StepRecorder
from graphcache.trace.replay import Limits, best_step_seconds, nominal_step_seconds, replay
from graphcache.trace.requests import Trace
from graphcache.trace.steps import Steps

__all__ = [
    "FORMATS",
    "SOURCES",
    "Limits",
    "StepRecorder",
    "Steps",
    "Trace",
    "best_step_seconds",
    "generate",
    "nominal_step_seconds",
    "read_trace",
    "replay",
]
