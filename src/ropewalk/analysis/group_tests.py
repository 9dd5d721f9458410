"""Tests of differences between groups of heads, which lie in layers and are therefore no independent samples.

The choice of tests follows Cengizhan Bayram. Does RoPE Prevent or Degrade Retrieval Heads? A Mechanistic Analysis Across
Model Families. arXiv 2606.21249, 2026.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.analysis.positional_heads import correlation, ranks
from ropewalk.core.errors import ConfigError, ShapeError, check_positive


def cohens_d(a: Tensor, b: Tensor) -> float | None:
    """(mean a − mean b) / pooled standard deviation (n − 1); None with fewer than two on a side, 0 for equal constants."""
    a, b = a.double().flatten(), b.double().flatten()
    if len(a) < 2 or len(b) < 2:
        return None
    pooled = ((len(a) - 1) * a.var() + (len(b) - 1) * b.var()) / (len(a) + len(b) - 2)
    gap = float(a.mean() - b.mean())
    return gap / float(pooled.sqrt()) if pooled > 0 else (0.0 if gap == 0 else math.copysign(math.inf, gap))


def mcnemar(first_only: int, second_only: int) -> float:
    """p = min(1, 2 Σ_{i ≤ min(b, c)} C(n, i) / 2ⁿ), n = b + c: exact, two-sided, for paired yes or no; 1 for n = 0.

    Args:
        first_only: b, pairs in which only the first succeeded.
        second_only: c, pairs in which only the second did.
    """
    for count in (first_only, second_only):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(f"counts are whole numbers from 0; got {first_only!r} and {second_only!r}")
    n = first_only + second_only
    tail = sum(math.comb(n, i) for i in range(min(first_only, second_only) + 1))
    return min(1.0, 2 * tail / 2**n)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the false discovery rate: step-up, rising with p, at most 1."""
    if any(not 0 <= p <= 1 for p in p_values):
        raise ConfigError(f"p-values lie between 0 and 1; got {list(p_values)}")
    n = len(p_values)
    adjusted, least = [0.0] * n, 1.0
    for rank, i in sorted(enumerate(sorted(range(n), key=lambda i: p_values[i]), 1), reverse=True):
        least = min(least, p_values[i] * n / rank)
        adjusted[i] = least
    return adjusted


def layer_permutation(values: Tensor, chosen: Tensor, draws: int = 10_000, seed: int = 0) -> float | None:
    """Return the two-sided p of |mean of chosen − mean of others| when labels are shuffled within each layer: (c + 1)/(n + 1).

    Args:
        values: (layers, heads).
        chosen: (layers, heads), True for one group.
        draws: n.
        seed: of the shuffles.

    Returns:
        p; None where one group is empty.
    """
    if values.shape != chosen.shape or values.ndim != 2:
        raise ShapeError(
            f"values {tuple(values.shape)} and chosen {tuple(chosen.shape)}; expected (layers, heads) both"
        )
    check_positive(draws=draws)
    x, mask = values.double(), chosen.double()
    size = float(mask.sum())
    if size in (0, x.numel()):
        return None
    generator = torch.Generator().manual_seed(seed)

    def gap(masks: Tensor) -> Tensor:
        inside = (masks * x).sum((-1, -2))
        return (inside / size - (x.sum() - inside) / (x.numel() - size)).abs()

    seen, count, block = float(gap(mask)), 0, max(1, (1 << 20) // x.numel())
    for start in range(0, draws, block):
        n = min(block, draws - start)
        order = torch.rand(n, *x.shape, generator=generator).argsort(-1)
        count += int((gap(mask.expand(n, -1, -1).gather(-1, order)) >= seen - 1e-12).sum())
    return (count + 1) / (draws + 1)


class PartialSpearman(NamedTuple):
    """Rank correlation within layers, and where 95 % of the resamples of layers lie."""

    value: float | None
    low: float | None
    high: float | None


def layer_partial_spearman(x: Tensor, y: Tensor, draws: int = 1000, seed: int = 0) -> PartialSpearman:
    """Subtract the means of layers, then correlate ranks; the interval resamples layers.

    Args:
        x: (layers, heads).
        y: (layers, heads).
        draws: resamples.
        seed: of them.
    """
    if x.shape != y.shape or x.ndim != 2:
        raise ShapeError(f"x {tuple(x.shape)} and y {tuple(y.shape)}; expected (layers, heads) both")
    check_positive(draws=draws)
    a, b = (t.double() - t.double().mean(-1, keepdim=True) for t in (x, y))
    # What subtracting a mean leaves of a constant is rounding, and ranks would make it as large as anything.
    a, b = (torch.where(t.abs() < 1e-12 * s.double().abs().max(), 0.0, t) for t, s in ((a, x), (b, y)))
    value = correlation(a.flatten(), b.flatten(), "spearman")
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(draws if value is not None else 0):
        layers = torch.randint(len(a), (len(a),), generator=generator)
        found.append(correlation(ranks(a[layers].flatten()), ranks(b[layers].flatten())))
    kept = torch.tensor([f for f in found if f is not None], dtype=torch.float64)
    if not len(kept):
        return PartialSpearman(value, None, None)
    low, high = kept.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return PartialSpearman(value, low, high)


def gini(scores: Tensor) -> float:
    """Gini coefficient of numbers from 0: 0 where all are equal, near 1 where one holds everything; 0 where all are 0."""
    x = scores.double().flatten().sort().values
    if not len(x) or float(x[0]) < 0:
        raise ConfigError("the Gini coefficient is of one or more numbers that are not negative")
    total = float(x.sum())
    if total == 0:
        return 0.0
    n = len(x)
    return float((torch.arange(1, n + 1, dtype=torch.float64) * 2 - n - 1) @ x) / (n * total)


def centre_of_mass(weights: Tensor) -> tuple[float, float] | None:
    """Return the mean index of weights (n,) and its standard deviation; None where they sum to nothing.

    Negative weights count as 0.
    """
    w = weights.double().clamp(min=0)
    total = float(w.sum())
    if total == 0:
        return None
    at = torch.arange(len(w), dtype=torch.float64)
    mean = float((w * at).sum()) / total
    return mean, math.sqrt(float((w * (at - mean).square()).sum()) / total)


def jaccard(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> float | None:
    """|a ∩ b| / |a ∪ b| of two sets of heads; None where both are empty."""
    union = set(a) | set(b)
    return len(set(a) & set(b)) / len(union) if union else None
