"""The search that finds LongRoPE's factors."""

from __future__ import annotations

import math

import pytest

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import geometric, ntk, search_factors

LADDER = geometric(16)
TARGET = (1.0, 1.0, 1.1, 1.5, 2.0, 3.0, 4.0, 4.2)


def distance(spectrum):
    """Return how far the factors of a spectrum are from those to be found."""
    factors = [w / v for w, v in zip(LADDER.inv_freq, spectrum.inv_freq, strict=True)]
    return sum(math.log(f / t) ** 2 for f, t in zip(factors, TARGET, strict=True))


def search(**options):
    return search_factors(LADDER, 4.0, 128, distance, **{"iterations": 30, "population": 32, "parents": 8, **options})


def test_finds_what_scores_best():
    found = search(iterations=150)
    starts = [distance(LADDER.linear(4.0)), distance(ntk(LADDER, 4.0)), distance(LADDER.yarn(4.0, 128))]
    assert found.score < min(starts) / 10
    assert found.score == distance(found.spectrum) == found.history[-1]


def test_starts_from_published_schedules():
    seen = []

    def score(spectrum):
        seen.append(spectrum)
        return 0.0

    search_factors(LADDER, 4.0, 128, score, iterations=0, population=1)
    linear, by_ntk, by_yarn = (s.tensor() for s in seen)
    assert linear.tolist() == [w / 4 for w in LADDER.inv_freq]
    for got, want in ((by_ntk, LADDER.ntk(4.0)), (by_yarn, LADDER.yarn(4.0, 128))):
        assert float((got / want.tensor() - 1).abs().max()) < 0.006  # half a step


def test_factors_keep_their_order_and_range():
    found = search()
    assert list(found.factors) == sorted(found.factors)
    assert found.factors[0] >= 1
    assert found.factors[-1] <= 5.0
    assert all(abs(f * 100 - round(f * 100)) < 1e-6 for f in found.factors)
    assert found.spectrum.inv_freq == LADDER.longrope(found.factors).inv_freq


def test_history_never_rises_and_each_set_is_scored_once():
    calls = []

    def score(spectrum):
        calls.append(spectrum.inv_freq)
        return distance(spectrum)

    found = search_factors(LADDER, 4.0, 128, score, iterations=10, population=16, parents=4)
    assert list(found.history) == sorted(found.history, reverse=True)
    assert len(found.history) == 11
    assert len(calls) == len(set(calls)) == found.tried


def test_equal_seeds_find_equal_factors():
    assert search(seed=3) == search(seed=3)
    assert search(seed=3).factors != search(seed=4).factors


def test_infinite_scores_are_avoided_and_nan_refused():
    found = search_factors(LADDER, 4.0, 128, lambda s: math.inf if s.inv_freq[0] < 0.9 else distance(s), iterations=5)
    assert math.isfinite(found.score)
    with pytest.raises(ConfigError, match="NaN"):
        search_factors(LADDER, 4.0, 128, lambda s: math.nan)


@pytest.mark.parametrize(
    "options",
    [{"population": 0}, {"parents": 0}, {"iterations": -1}, {"probability": 0.0}, {"step": 0.0}, {"widest": 0.5}],
)
def test_what_cannot_be(options):
    with pytest.raises(ConfigError):
        search(**options)
