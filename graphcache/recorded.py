"""A cache that records its steps."""

from __future__ import annotations

from typing import Any

from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.step import Step
from graphcache.trace.record import StepRecorder


class RecordedCache(GraphCache):
    """Notes each step's batch with a recorder, which is closed with the cache; else a `GraphCache`."""

    def __init__(self, *parts: Any, recorder: StepRecorder, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._recorder = recorder
        self.at_close(recorder.close)

    def step(self, batch: Batch) -> Step:
        """Note the batch, and return its launches as `GraphCache.step` does."""
        self._recorder.record(batch)
        return super().step(batch)
