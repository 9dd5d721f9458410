"""Intervals: quantiles against tables, coverage by simulation, pairing, and what is said of thin data."""

import json
import math

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab import statistics
from ropewalk.lab.results import MeasurementError
from ropewalk.lab.statistics import difference, mean, verdict
from ropewalk.lab.student import incomplete_beta, student_quantile


def losses(table, weights=None, encoding="a", length=64, first_seed=0):
    """Records of `loss` from rows (seeds) of columns (documents)."""
    return [
        {
            **{"kind": "loss", "trial": f"{encoding}-s{seed}", "encoding": encoding, "task": "text", "seed": seed},
            **{"length": length, "split": "test", "last": 32, "mean": math.nan},
            "documents": {
                f"doc{j}": [float(value), 1.0 if weights is None else float(weights[j])] for j, value in enumerate(row)
            },
        }
        for seed, row in enumerate(table, first_seed)
    ]


def exact(table, size=5, encoding="a"):
    return [
        {"kind": "exact", "encoding": encoding, "seed": seed, "size": size, "items": list(items)}
        for seed, items in enumerate(table)
    ]


@pytest.mark.parametrize(
    ("probability", "dof", "value"),
    [  # printed tables of Student's t
        (0.975, 1, 12.706204736174705),
        (0.975, 2, 4.302652729749464),
        (0.975, 3, 3.182446305284263),
        (0.975, 4, 2.776445105197793),
        (0.975, 10, 2.228138851964939),
        (0.975, 30, 2.042272456301238),
        (0.95, 5, 2.015048373333024),
        (0.995, 2, 9.924843200918293),
        (0.9995, 1, 636.6192487687196),
        (0.9, 120, 1.288646088),
        (0.975, 1e7, 1.959964),
    ],
)
def test_quantiles_are_those_of_the_tables(probability, dof, value):
    assert student_quantile(probability, dof) == pytest.approx(value, rel=2e-7 if dof > 100 else 1e-9)
    assert student_quantile(1 - probability, dof) == pytest.approx(-student_quantile(probability, dof), rel=1e-9)


def test_quantiles_with_one_and_two_degrees_of_freedom_have_closed_forms():
    for probability in (0.5, 0.6, 0.8, 0.99, 0.9999):
        assert student_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-11)
        u = 2 * probability - 1
        assert student_quantile(probability, 2) == pytest.approx(u * math.sqrt(2 / (1 - u * u)), rel=1e-9)


def test_incomplete_beta_has_its_symmetries():
    assert incomplete_beta(2.5, 0.5, 0.0) == 0 and incomplete_beta(2.5, 0.5, 1.0) == 1
    for a, b, x in [(0.5, 0.5, 0.3), (2, 3, 0.4), (40, 0.5, 0.99), (500, 0.5, 0.999)]:
        assert incomplete_beta(a, b, x) + incomplete_beta(b, a, 1 - x) == pytest.approx(1, abs=1e-13)
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(0.5248, abs=1e-12)  # P(Binomial(4, 0.4) ≥ 2)
    assert incomplete_beta(0.5, 0.5, 0.25) == pytest.approx(1 / 3, abs=1e-13)  # arcsine law


@pytest.mark.parametrize(("probability", "dof"), [(0, 3), (1, 3), (math.nan, 3), (0.5, 0), (0.5, math.nan)])
def test_impossible_quantiles_are_refused(probability, dof):
    with pytest.raises(ConfigError, match="got"):
        student_quantile(probability, dof)


def test_the_half_width_joins_seeds_and_documents():
    # Every document moves alike between seeds: documents add their spread once, not once a seed.
    documents = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    seeds = torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64)
    interval = mean(losses(documents + seeds[:, None]))
    of_seeds = student_quantile(0.975, 2) * float(seeds.std()) / math.sqrt(3)
    of_documents = student_quantile(0.975, 3) * float(documents.std()) / 2
    assert interval.mean == pytest.approx(1.5 + 0.4)
    assert interval.half_width == pytest.approx(math.hypot(of_seeds, of_documents), rel=0.05)
    assert (interval.seeds, interval.documents, interval.note) == (3, 4, "")
    assert interval.low < interval.mean < interval.high


def test_resampling_documents_gives_the_known_standard_error():
    generator = torch.Generator().manual_seed(3)
    documents = torch.randn(400, generator=generator, dtype=torch.float64)
    error = float(documents.std()) / 20
    assert mean(losses([documents])).half_width == pytest.approx(student_quantile(0.975, 399) * error, rel=0.06)


def test_documents_weigh_as_many_tokens_as_they_have():
    assert mean(losses([[1.0, 4.0]], weights=[300, 100])).mean == pytest.approx(1.75)
    heavy = mean(losses([[1.0, 2.0, 1.0, 2.0]], weights=[1, 1000, 1, 1000]))
    assert heavy.mean == pytest.approx(2, abs=2e-3)


@pytest.mark.parametrize(("seeds", "documents"), [(2, 12), (3, 25), (5, 60)])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds, documents):
    generator = torch.Generator().manual_seed(seeds)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    covered, runs = 0, 240
    for run in range(runs):
        of_seeds, of_documents = [(0.3, 1.0), (1.0, 1.0), (0.1, 2.0), (0.0, 1.0)][run % 4]
        hard = 5 * normal(1, documents)  # documents differ more than encodings do, and that must cancel
        gap = 0.7 + of_seeds * normal(seeds, 1) + of_documents * normal(1, documents) + 0.5 * normal(seeds, documents)
        interval = difference(losses(hard + gap), losses(hard.expand(seeds, -1)))
        covered += interval.low <= 0.7 <= interval.high
    assert covered / runs >= 0.93
    assert covered / runs < 1  # an interval that never misses is too wide to tell anything


def test_no_difference_is_rarely_called_one():
    generator = torch.Generator().manual_seed(11)
    called = 0
    for _ in range(200):
        a, b = torch.randn(2, 3, 20, generator=generator, dtype=torch.float64)
        called += verdict(difference(losses(a), losses(b))) in ("better", "worse")
    assert called / 200 <= 0.07


def test_differences_are_paired():
    generator = torch.Generator().manual_seed(5)
    hard = 3 * torch.randn(1, 30, generator=generator, dtype=torch.float64)
    noise = 0.01 * torch.randn(3, 30, generator=generator, dtype=torch.float64)
    a, b = losses(hard + noise), losses((hard + 0.1).expand(3, -1))
    assert mean(a).half_width > 0.5
    interval = difference(a, b)
    assert interval.half_width < 0.02
    assert verdict(interval) == "better" and verdict(interval, lower_is_better=False) == "worse"
    assert verdict(difference(b, a)) == "worse"
    assert difference(b, a).mean == pytest.approx(-interval.mean)
    # The order of records and of documents is of no account.
    turned = [{**record, "documents": dict(reversed(record["documents"].items()))} for record in reversed(a)]
    assert difference(turned, b) == interval


def test_one_seed_says_that_seeds_were_not_measured():
    interval = difference(losses([[1.0, 1.1, 1.2]]), losses([[2.0, 2.2, 2.1]]))
    assert interval.high < 0
    assert "one seed" in interval.note
    assert verdict(interval) == "seeds not measured"
    assert verdict(difference(losses([[1.0, 3.0]]), losses([[2.0, 2.0]]))) == "no difference seen"


def test_one_document_says_so():
    interval = difference(losses([[1.0], [1.1]]), losses([[2.0], [2.0]]))
    assert "one document" in interval.note and math.isfinite(interval.half_width)
    unknown = difference(losses([[1.0]]), losses([[2.0]]))
    assert unknown.half_width == math.inf and verdict(unknown) == "seeds not measured"
    assert json.loads(json.dumps(unknown.as_dict(), allow_nan=False))["low"] is None


def test_empty_samples_are_none_and_equal_ones_are_said_to_be():
    assert mean([]) is None and difference([], []) is None
    assert mean(losses([[]])) is None
    assert difference(losses([[1.0, 2.0]]), losses([[1.0, 2.0]], first_seed=7)) is None
    assert verdict(None) == "not measured"
    same = difference(losses([[1.0, 2.0]] * 2), losses([[1.0, 2.0]] * 2))
    assert (same.mean, same.low, same.high, same.note) == (0, 0, 0, "all samples are equal")
    assert verdict(same) == "no difference seen"
    shifted = difference(losses([[1.0, 2.0]] * 2), losses([[0.5, 1.5]] * 2))
    assert (shifted.mean, shifted.half_width) == (0.5, 0) and verdict(shifted) == "worse"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_raises(bad):
    with pytest.raises(MeasurementError, match="document 'doc1' at length 64"):
        mean(losses([[1.0, bad]]))
    with pytest.raises(MeasurementError, match="weight of document 'doc0'"):
        mean(losses([[1.0, 2.0]], weights=[bad, 1]))
    with pytest.raises(MeasurementError, match="weighs 0"):
        mean(losses([[1.0, 2.0]], weights=[0, 1]))


def test_seeds_that_only_one_side_has_are_left_out_and_counted():
    interval = difference(losses([[1.0, 2.0]] * 3), losses([[1.5, 2.4]] * 2))
    assert interval.seeds == 2 and "2 of 3 seeds" in interval.note


def test_documents_must_be_the_same():
    with pytest.raises(MeasurementError, match="doc2"):
        difference(losses([[1.0, 2.0]]), losses([[1.0, 2.0, 3.0]]))
    with pytest.raises(MeasurementError, match="300 tokens"):
        difference(losses([[1.0, 2.0]], weights=[300, 1]), losses([[1.0, 2.0]], weights=[200, 1]))
    with pytest.raises(MeasurementError, match="seed 0 or seed 1"):
        mean([*losses([[1.0, 2.0]]), *losses([[1.0]], first_seed=1)])


def test_exact_matches_are_resampled_by_example_and_averaged_over_sizes():
    right = [1] * 30 + [0] * 10
    one = mean(exact([right] * 2))
    assert one.mean == 0.75 and one.documents == 40
    assert one.half_width == pytest.approx(student_quantile(0.975, 39) * math.sqrt(0.75 * 0.25 / 39), rel=0.06)
    # Sizes are strata: what differs between them is no noise.
    both = mean([*exact([[1] * 40] * 2, size=5), *exact([[0] * 10] * 2, size=9)])
    assert (both.mean, both.half_width, both.documents) == (0.5, 0, 50)
    mixed = mean([*exact([right] * 2, size=5), *exact([[0] * 10] * 2, size=9)])
    assert mixed.mean == 0.375
    better = difference(exact([[1] * 40] * 2), exact([right] * 2))
    assert verdict(better, lower_is_better=False) == "better"
    partly = difference([*exact([right] * 2), *exact([right] * 2, size=9)], exact([right] * 2))
    assert "1 of 2 sizes" in partly.note


def test_wrong_records_are_refused():
    with pytest.raises(ConfigError, match="'speed'"):
        mean([{"kind": "speed"}])
    with pytest.raises(ConfigError, match="length 64, length 128"):
        mean([*losses([[1.0]]), *losses([[1.0]], length=128)])
    with pytest.raises(ConfigError, match="got 95"):
        mean(losses([[1.0]]), level=95)


def test_intervals_do_not_depend_on_the_global_generator():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = mean(losses([[1.0, 2.0, 5.0]] * 2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert mean(losses([[1.0, 2.0, 5.0]] * 2)) == first


def test_many_examples_are_resampled_in_blocks(monkeypatch):
    table = torch.randn(1, 50, generator=torch.Generator().manual_seed(1)).tolist()
    whole = mean(losses(table))
    monkeypatch.setattr(statistics, "_BLOCK", 100)
    assert mean(losses(table)).half_width == pytest.approx(whole.half_width, rel=1e-9)
