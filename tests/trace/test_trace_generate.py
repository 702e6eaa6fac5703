import numpy as np
import pytest

from graphcache.errors import ConfigError, UnknownNameError
from graphcache.trace import SOURCES, generate
from graphcache.trace.generate import SHARES


@pytest.mark.parametrize("name", SOURCES)
def test_prompt_lengths_have_the_published_quantiles(name):
    drawn = np.quantile(generate(name, 50_000, seed=5).prompt_tokens, SHARES)
    published = SOURCES[name].prompt_tokens
    assert drawn == pytest.approx(np.array(published), rel=0.01, abs=1)
    assert published[0] <= drawn[0]
    assert drawn[-1] <= published[-1]


@pytest.mark.parametrize("name", SOURCES)
def test_rate_and_output_lengths_are_the_published_ones(name):
    trace = generate(name, 50_000, seed=5)
    assert len(trace) / trace.span_seconds == pytest.approx(SOURCES[name].rate, rel=0.01)
    assert np.median(trace.output_tokens) == pytest.approx(SOURCES[name].output_tokens, rel=0.05)


@pytest.mark.parametrize(
    ("name", "variation"),
    [("azure-code", 13.2), ("azure-conv", 1.1), ("mooncake-conv", 1.0), ("servegen-r1", 1.6)],
)
def test_gaps_vary_as_published(name, variation):
    gaps = np.diff(generate(name, 50_000, seed=5).arrived_seconds)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.12)


@pytest.mark.parametrize(("name", "low", "high"), [("azure-code", 8, 18), ("azure-conv", 1, 1.6)])
def test_arrivals_in_a_second_are_as_dispersed_as_published(name, low, high):
    counts = np.bincount(generate(name, 50_000, seed=5).arrived_seconds.astype(int))
    assert low <= counts.var() / counts.mean() <= high


def test_equal_seeds_give_equal_traces():
    one, same, other = (generate("azure-code", 500, seed=seed) for seed in (1, 1, 2))
    for field in ("arrived_seconds", "prompt_tokens", "output_tokens"):
        assert (getattr(one, field) == getattr(same, field)).all()
        assert (getattr(one, field) != getattr(other, field)).any()


def test_a_trace_says_what_it_is():
    trace = generate("vtc-arena", 7, seed=9)
    assert (len(trace), trace.name, trace.notes) == (7, "vtc-arena", ("generated with seed 9",))


def test_unknown_names_and_no_requests_are_refused():
    with pytest.raises(UnknownNameError, match="azure-code"):
        generate("azure")
    with pytest.raises(ConfigError, match="requests: 0"):
        generate("azure-code", 0)
