"""A seeded generator of request traces that have the published statistics of real ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphcache.errors import ConfigError, UnknownNameError
from graphcache.trace.requests import Lengths, Times, Trace

SHARES = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
"""The shares of requests at which a source's quantiles are given."""
OUTPUT_SPREAD = 1.0
"""Standard deviation of the logarithm of output lengths, of which only the median is published."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """Arrivals that come in storms: of so many requests on average, so many seconds apart, then a pause."""

    requests: float
    gap_seconds: float
    pause_variation: float


@dataclass(frozen=True, slots=True)
class Source:
    """A real trace in numbers.

    ``prompt_tokens`` are the quantiles at `SHARES`, ``output_tokens`` is the median; ``rate`` is in requests
    a second, ``gap_variation`` the coefficient of variation of the gaps (within a storm, with ``bursts``).
    """

    prompt_tokens: tuple[int, ...]
    output_tokens: int
    rate: float
    gap_variation: float = 1.0
    bursts: Bursts | None = None


SOURCES = {
    "azure-code": Source(
        (3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437), 13, 2.57, 1.6, Bursts(93, 0.099, 1.5)
    ),
    "azure-conv": Source((2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050), 129, 5.53, 1.1),
    "mooncake-conv": Source((891, 894, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 126195), 350, 3.40),
    "vtc-arena": Source((2, 2, 2, 5, 13, 40, 161, 432, 653, 902, 1021), 211, 2.50, 1.1),
    "servegen-r1": Source((4, 9, 13, 18, 41, 208, 484, 2109, 7208, 23036, 53850), 802, 0.32, 1.6),
    "servegen-msmall": Source((18, 18, 19, 19, 20, 42, 78, 414, 667, 1528, 2826), 4, 5.01, 1.2),
    "sharegpt": Source((1, 12, 29, 74, 580, 1730, 3734, 5696, 6563, 7434, 8141), 415, 1.0),
    "arxiv": Source((1, 73, 749, 1242, 1986, 2730, 3370, 3702, 3813, 3933, 4054), 167, 1.0),
}
"""What can be generated: by name, the statistics of the trace that the name stands for."""


def generate(name: str, requests: int = 10_000, *, seed: int = 0) -> Trace:
    """Draw a trace that has the statistics of a public one; equal arguments give equal traces.

    Prompt lengths are drawn from the source's quantiles, log-linear between them, one from each of
    ``requests`` equal strata and in random order, so that a short trace has them too.  Gaps are Gamma
    distributed, and scaled to the source's rate.  Output lengths are log-normal around its median.

    Raises:
        UnknownNameError: no source has the name; the known ones are in the message.
        ConfigError: less than one request.
    """
    if name not in SOURCES:
        raise UnknownNameError.among("trace", name, SOURCES)
    if requests < 1:
        raise ConfigError.of("requests", requests, "at least 1")
    source = SOURCES[name]
    random = np.random.default_rng(seed)
    gaps = _gaps(source, requests, random)
    arrived = np.cumsum(gaps * (requests / source.rate / gaps.sum()))
    prompt = _prompts(source, requests, random)
    output = source.output_tokens * np.exp(OUTPUT_SPREAD * random.standard_normal(requests))
    note = f"generated with seed {seed}"
    return Trace.of(name, arrived, prompt, np.maximum(np.rint(output), 1).astype(np.int64), (note,))


def _prompts(source: Source, count: int, random: np.random.Generator) -> Lengths:
    shares = (random.permutation(count) + random.random(count)) / count
    logs = np.interp(shares, SHARES, np.log(source.prompt_tokens))
    prompts: Lengths = np.rint(np.exp(logs)).astype(np.int64)
    return prompts


def _gaps(source: Source, count: int, random: np.random.Generator) -> Times:
    bursts = source.bursts
    if bursts is None:
        return _gamma(1 / source.rate, source.gap_variation, count, random)
    gaps = _gamma(bursts.gap_seconds, source.gap_variation, count, random)
    ends = random.random(count) < 1 / bursts.requests
    pause = bursts.requests / source.rate - (bursts.requests - 1) * bursts.gap_seconds
    gaps[ends] = _gamma(pause, bursts.pause_variation, int(ends.sum()), random)
    return gaps


def _gamma(mean: float, variation: float, count: int, random: np.random.Generator) -> Times:
    shape = variation**-2
    return random.gamma(shape, mean / shape, count)
