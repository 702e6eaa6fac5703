"""Prometheus metrics of what the caches of all workers count.

By mask mode and kind, never by length: a ladder of many lengths makes no more time series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, TypeAlias

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from graphcache.key import GraphKey
from graphcache.stats import KeyCounters

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One time series' value: ``counter`` or ``gauge``, its name, and its labels."""

    type: str
    name: str
    labels: Labels
    value: float


def samples(read: Iterable[dict[str, Any]]) -> list[Sample]:
    """Add up workers' snapshots into samples, sorted by name and labels."""
    sums: defaultdict[tuple[str, str, Labels], float] = defaultdict(float)
    for snapshot in read:
        sums["counter", "steps", ()] += snapshot["steps"]
        sums["gauge", "resident_bytes", ()] += snapshot["resident_bytes"]
        sums["gauge", "retained_bytes", ()] += snapshot["retained_bytes"]
        for text in snapshot["resident"]:
            sums["gauge", "resident_graphs", _shape(text)] += 1
        for reason, count in snapshot["errors"].items():
            sums["counter", "errors", (("reason", reason),)] += count
        for text, counters in snapshot["keys"].items():
            sums["gauge", "resident_graphs", _shape(text)] += 0  # what has left is a series of 0
            for field in fields(KeyCounters):
                sums["counter", field.name, _shape(text)] += counters[field.name]
    return [Sample(kind, f"graphcache_{name}", labels, v) for (kind, name, labels), v in sorted(sums.items())]


class SnapshotCollector:
    """Makes metrics of what the workers wrote last, at each scrape."""

    def __init__(self, read: Callable[[], Iterable[dict[str, Any]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family for each name."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for sample in samples(self._read()):
            make = CounterMetricFamily if sample.type == "counter" else GaugeMetricFamily
            if sample.name not in families:
                labels = [name for name, _ in sample.labels]
                families[sample.name] = make(sample.name, _words(sample.name), labels=labels)
            families[sample.name].add_metric([value for _, value in sample.labels], sample.value)
        yield from families.values()


class SharedMetrics:
    """A worker's own metrics where those of several processes are added up by prometheus_client itself.

    That is how vLLM counts with several API servers; a collector in one of them would not be asked.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._counted: defaultdict[tuple[str, Labels], float] = defaultdict(float)

    def update(self, snapshot: dict[str, Any]) -> None:
        """Take the worker's counters up to where they are now."""
        for sample in samples([snapshot]):
            metric = self._metric(sample)
            series = metric.labels(**dict(sample.labels)) if sample.labels else metric
            if sample.type == "gauge":
                series.set(sample.value)
            else:
                series.inc(sample.value - self._counted[sample.name, sample.labels])
                self._counted[sample.name, sample.labels] = sample.value

    def _metric(self, sample: Sample) -> Any:
        if sample.name not in self._metrics:
            labels, words = [name for name, _ in sample.labels], _words(sample.name)
            if sample.type == "gauge":
                made: Any = prometheus_client.Gauge(sample.name, words, labels, multiprocess_mode="livesum")
            else:
                made = prometheus_client.Counter(sample.name, words, labels)
            self._metrics[sample.name] = made
        return self._metrics[sample.name]


def _words(name: str) -> str:
    return f"Graph cache: {name.removeprefix('graphcache_').replace('_', ' ')}."


def _shape(text: str) -> Labels:
    key = GraphKey.parse(text)
    return (("mode", key.mode.value), ("kind", key.kind))
