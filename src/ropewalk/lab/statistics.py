"""Means and differences of measurements, with intervals that count both sources of spread.

A number that a comparison reports would change if the models were trained again (another seed) and if they were scored
on other documents. Seeds are few and share their documents, so the two are kept apart and then joined:

    half² = (t_{n−1} s / √n)² + (t_{D−1} e)²

s is the spread of the n seed means, e the standard error over the D documents of the seed average, from resampling whole
documents; t are quantiles of Student's distribution. Resampling two or three seeds would give intervals that are far too
narrow, and so would counting tokens of one document as independent. Differences are taken within a seed and within a
document before anything is averaged: what makes a document hard is hard for both sides and drops out.

With one seed the interval covers documents only, and both the note and the verdict say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.lab.results import MeasurementError, Record
from ropewalk.lab.student import LEVEL, student_quantile

RESAMPLES = 1000
_BLOCK = 1 << 22  # drawn document numbers held at once

BETTER, WORSE, SAME, ONE_SEED = "better", "worse", "no difference seen", "seeds not measured"

# One seed's measurements: the value and the weight (tokens) of every document.
Sample = Mapping[str, tuple[float, float]]
# Seeds of one stratum (one length, one size of a task).
Seeds = Mapping[int, Sample]


@dataclass(frozen=True, slots=True)
class Interval:
    """low ≤ mean ≤ high, and what the width covers.

    Attributes:
        mean: average over seeds of the weighted mean over documents.
        low: lower end; −inf where no spread could be measured (one seed, one document).
        high: upper end; +inf where no spread could be measured.
        seeds: seeds averaged.
        documents: documents (or examples of a task) that were resampled.
        note: what a reader must know; empty where both spreads were measured.
    """

    mean: float
    low: float
    high: float
    seeds: int
    documents: int
    note: str = ""

    @property
    def half_width(self) -> float:
        """Half of the width; inf where no spread could be measured."""
        return (self.high - self.low) / 2

    @property
    def spans_zero(self) -> bool:
        """Whether zero is not ruled out."""
        return self.low <= 0 <= self.high

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Return plain data for JSON, where an end that was not measured is None."""
        ends = {
            name: value if math.isfinite(value) else None for name, value in (("low", self.low), ("high", self.high))
        }
        return {"mean": self.mean, **ends, "seeds": self.seeds, "documents": self.documents, "note": self.note}


def mean(records: Iterable[Record], *, level: float = LEVEL) -> Interval | None:
    """Return the mean of `loss` or `exact` records of one encoding; None if there are none.

    Records of several sizes of a task are averaged, each size counting the same. Records of several lengths of text
    are refused: their documents are the same, and so are no independent samples.
    """
    return _interval(samples(records), level)


def difference(a: Iterable[Record], b: Iterable[Record], *, level: float = LEVEL) -> Interval | None:
    """Return the mean of a − b, paired by seed and by document; None if they have no seed in common.

    Args:
        a: `loss` or `exact` records of one encoding, all seeds.
        b: those of another one, at the same length or sizes.
        level: probability that the interval means to cover the true difference.

    Raises:
        MeasurementError: for numbers that are not finite, and for documents that are not the same on both sides.
    """
    left, right = samples(a), samples(b)
    shared = [key for key in left if key in right]
    paired: dict[str, Seeds] = {}
    for key in shared:
        paired[key] = {
            seed: _subtract(left[key][seed], right[key][seed], f"seed {seed}, {key}")
            for seed in left[key]
            if seed in right[key]
        }
    interval = _interval(paired, level)
    if interval is None:
        return None
    measured = {seed for side in (left, right) for seeds in side.values() for seed in seeds}
    notes = [interval.note]
    if len(measured) > interval.seeds:
        notes.append(f"{interval.seeds} of {len(measured)} seeds are on both sides")
    if left.keys() != right.keys():
        notes.append(f"{len(shared)} of {len({*left, *right})} sizes are on both sides")
    return replace(interval, note="; ".join(note for note in notes if note))


def proportion(right: int, count: int, *, level: float = LEVEL) -> Interval:
    """Return how often something was right, with Wilson's interval: also none or all of a few is no certainty.

    Source: Edwin B. Wilson. Probable Inference, the Law of Succession, and Statistical Inference. Journal of the American
    Statistical Association 22, 1927.
    """
    if not 0 <= right <= count or count < 1:
        raise ConfigError(f"{right} of {count} is no fraction; give 0 ≤ right ≤ count and a count of at least 1")
    z = student_quantile((1 + level) / 2, 1e9)  # the normal distribution's
    p, spread = right / count, z * z / count
    centre = (p + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (p * (1 - p) + spread / 4)) / (1 + spread)
    return Interval(
        p, max(0.0, centre - half), min(1.0, centre + half), 1, count, "one seed: spread between seeds not measured"
    )


def verdict(difference: Interval | None, *, lower_is_better: bool = True) -> str:
    """Say what a difference a − b shows about a.

    Returns:
        "better" or "worse" where the interval leaves zero out; "no difference seen" where it does not (which is no proof
        that there is none); "seeds not measured" where one seed is all there is and its documents do differ, so that
        nobody knows what another seed would say; "not measured" where nothing was.
    """
    if difference is None:
        return "not measured"
    if math.isinf(difference.half_width):
        return ONE_SEED
    if difference.spans_zero:
        return SAME
    if difference.seeds < 2:
        return ONE_SEED
    return BETTER if (difference.mean < 0) == lower_is_better else WORSE


def samples(records: Iterable[Record]) -> Mapping[str, Seeds]:
    """Return the documents of `loss` and the examples of `exact` records, by stratum and by seed.

    A record that comes twice (a trial that was resumed) counts once, the later one.
    """
    strata: dict[str, dict[int, Sample]] = {}
    for record in records:
        if record["kind"] == "loss":
            key = f"length {record['length']}"
            sample = {name: (float(value), float(weight)) for name, (value, weight) in record["documents"].items()}
        elif record["kind"] == "exact":
            key = f"size {record['size']}"
            sample = {str(i): (float(item), 1.0) for i, item in enumerate(record["items"])}
        else:
            raise ConfigError(
                f"an interval is made of 'loss' or 'exact' records; got kind {record['kind']!r}, which has no documents "
                "to resample"
            )
        _check(sample, key)
        strata.setdefault(key, {})[int(record["seed"])] = sample
    lengths = [key for key in strata if key.startswith("length")]
    if lengths and len(strata) > 1:
        raise ConfigError(f"give the records of one length or sizes of a task; got {', '.join(strata)}")
    return strata


def _interval(strata: Mapping[str, Seeds], level: float) -> Interval | None:
    """Return the interval of the mean over strata, for the seeds that have all of them."""
    if not 0 < level < 1:
        raise ConfigError(f"the level of an interval lies between 0 and 1, both left out; got {level!r}")
    if not strata:
        return None
    seeds = sorted(set.intersection(*(set(stratum) for stratum in strata.values())))
    tables = [_table(key, stratum, seeds) for key, stratum in strata.items()] if seeds else []
    tables = [(values, weights) for values, weights in tables if weights.numel()]
    if not tables:
        return None
    # Strata have documents of their own, so their errors are independent; seeds run through all of them.
    seed_means = torch.stack([values @ weights / weights.sum() for values, weights in tables]).mean(0)
    documents = sum(weights.numel() for _, weights in tables)
    document_dof = documents - len(tables)
    square, notes = 0.0, []
    if len(seeds) > 1:
        spread = float(seed_means.std()) if bool((seed_means != seed_means[0]).any()) else 0.0
        square += (student_quantile((1 + level) / 2, len(seeds) - 1) * spread) ** 2 / len(seeds)
    else:
        notes.append("one seed: spread between seeds not measured")
    if document_dof:
        errors = [_document_error(values.mean(0), weights) for values, weights in tables]
        error = math.sqrt(sum(e * e for e in errors)) / len(tables)
        square += (student_quantile((1 + level) / 2, document_dof) * error) ** 2
    else:
        notes.append("one document: spread between documents not measured")
    half = math.sqrt(square) if len(seeds) > 1 or document_dof else math.inf
    if half == 0:
        notes.append("all samples are equal")
    centre = float(seed_means.mean()) if half else float(seed_means[0])
    return Interval(centre, centre - half, centre + half, len(seeds), documents, "; ".join(notes))


def _table(key: str, stratum: Seeds, seeds: list[int]) -> tuple[Tensor, Tensor]:
    """Return values (seeds, documents) and weights (documents), in the order of the documents' names."""
    first = stratum[seeds[0]]
    names = sorted(first)
    for seed in seeds:
        _same_documents(first, stratum[seed], f"seed {seeds[0]}", f"seed {seed}", key)
    values = torch.tensor([[stratum[seed][name][0] for name in names] for seed in seeds], dtype=torch.float64)
    weights = torch.tensor([first[name][1] for name in names], dtype=torch.float64)
    return values, weights


def _document_error(values: Tensor, weights: Tensor) -> float:
    """Return the standard error of Σ w v / Σ w when whole documents are drawn anew, with replacement."""
    count = weights.numel()
    if count < 2 or bool((values == values[0]).all()):
        return 0.0
    generator = torch.Generator().manual_seed(0)  # the same data give the same interval, to the last digit
    block = max(1, _BLOCK // count)
    means = []
    for start in range(0, RESAMPLES, block):
        drawn = torch.randint(count, (min(block, RESAMPLES - start), count), generator=generator)
        drawn_weights = weights[drawn]
        means.append((values[drawn] * drawn_weights).sum(1) / drawn_weights.sum(1))
    # Drawing from the sample itself makes the spread too small by the usual (n − 1) / n.
    return float(torch.cat(means).std()) * math.sqrt(count / (count - 1))


def _check(sample: Sample, where: str) -> None:
    for name, (value, weight) in sample.items():
        for what, number in (("value", value), ("weight", weight)):
            if not math.isfinite(number):
                raise MeasurementError(
                    f"the {what} of document {name!r} at {where} is {number}; an interval needs finite numbers. A trial that "
                    "gave it has failed: leave its records out"
                )
        if weight <= 0:
            raise MeasurementError(
                f"document {name!r} at {where} weighs {weight:g}; every document has tokens to score"
            )


def _subtract(a: Sample, b: Sample, where: str) -> Sample:
    _same_documents(a, b, "one side", "the other", where)
    return {name: (value - b[name][0], weight) for name, (value, weight) in a.items()}


def _same_documents(a: Sample, b: Sample, left: str, right: str, where: str) -> None:
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise MeasurementError(
            f"measurements are paired by document, and {len(odd)} documents ({odd[0]!r}, ...) were scored for {left} or "
            f"{right} only ({where}); score all trials on the same documents"
        )
    for name, (_, weight) in a.items():
        if weight != b[name][1]:
            raise MeasurementError(
                f"document {name!r} was scored on {weight:g} tokens for {left} and {b[name][1]:g} for {right} ({where}); "
                "score all trials on the same tokens"
            )
