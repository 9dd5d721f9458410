"""How far the products of query and key weights are from random matrices: spikes are directions that learning made.

After Nandan Kumar Jha, Brandon Reagen. A Random Matrix Theory Perspective on the Learning Dynamics of Multi-head Latent
Attention. arXiv 2507.09394, 2025. Of the paper only the abstract was at hand: the measures are the usual ones of the
Marchenko–Pastur law. The law of a product of two factors is ours, and the one to compare W_q W_kᵀ with: it is no
Marchenko–Pastur matrix even before training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing, rotate, tables
from ropewalk.frequencies.spectrum import Spectrum

Variance = Literal["mean", "fit"]

ROUNDING = 1e-12
"""Eigenvalues below this share of the largest are zeros."""


class RandomMatrix(NamedTuple):
    """A spectrum beside that of a random matrix of its size.

    Attributes:
        eigenvalues: falling.
        low: lower edge of the random spectrum.
        high: upper edge.
        variance: of the entries, as the edges take it; of a product the scale of its eigenvalues.
    """

    eigenvalues: Tensor
    low: float
    high: float
    variance: float

    @property
    def outliers(self) -> int:
        """Eigenvalues above the edge."""
        return int((self.eigenvalues > self.high).sum())

    @property
    def gap(self) -> float:
        """λ_1 − λ₊"""
        return float(self.eigenvalues[0]) - self.high

    @property
    def relative_gap(self) -> float:
        """λ_1 / λ₊ − 1"""
        return float(self.eigenvalues[0]) / self.high - 1

    @property
    def outlier_energy(self) -> float:
        """Σ of the outliers / Σ λ"""
        return float(self.eigenvalues[self.eigenvalues > self.high].sum() / self.eigenvalues.sum())

    @property
    def soft_rank(self) -> float:
        """λ₊ / λ_1: 1 or more for noise, near 0 where one direction holds everything."""
        return self.high / float(self.eigenvalues[0])

    @property
    def stable_rank(self) -> float:
        """Σ λ / λ_1"""
        return float(self.eigenvalues.sum() / self.eigenvalues[0])

    @property
    def entropy_rank(self) -> float:
        """exp(−Σ p ln p), p = λ / Σ λ"""
        kept = torch.where(self.eigenvalues > ROUNDING * self.eigenvalues[0], self.eigenvalues, 0.0)
        p = kept / kept.sum()
        return float(torch.special.xlogy(p, p).sum().neg().exp())


def mp_diagnostics(matrix: Tensor, variance: Variance = "mean") -> RandomMatrix:
    """Eigenvalues of A Aᵀ/q of a matrix A (p, q), p ≤ q, beside λ± = σ²(1 ± √(p/q))².

    Args:
        matrix: (p, q), transposed where it is taller than wide.
        variance: σ²: the "mean" of the squared entries, or a "fit": the mean of the eigenvalues that are no outliers.

    Raises:
        ConfigError: a matrix of zeros, or one that is not finite.
    """
    a = _matrix(matrix)
    a = a if a.shape[0] <= a.shape[1] else a.mT
    p, q = a.shape
    values = torch.linalg.eigvalsh(a @ a.mT / q).flip(-1)
    sigma = float(a.square().mean())
    low, high = mp_edges(p / q, sigma)
    if variance not in ("mean", "fit"):
        raise ConfigError(f"variance is 'mean' or 'fit'; got {variance!r}")
    while variance == "fit":
        within = float(values[values <= high].mean())
        if not within < sigma:
            break
        sigma = within
        low, high = mp_edges(p / q, sigma)
    return RandomMatrix(values, low, high, sigma)


def mp_edges(ratio: float, variance: float = 1.0) -> tuple[float, float]:
    """λ± = σ²(1 ± √γ)², γ = p/q."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"the ratio p/q is above 0 and at most 1; got {ratio!r}")
    return variance * (1 - math.sqrt(ratio)) ** 2, variance * (1 + math.sqrt(ratio)) ** 2


def mp_distance(found: RandomMatrix, ratio: float, points: int = 4000) -> float:
    """Largest difference between the spectrum's distribution and Marchenko and Pastur's, integrated numerically.

    Args:
        found: of `mp_diagnostics`.
        ratio: γ = p/q.
        points: of the integral.
    """
    low, high = mp_edges(ratio, found.variance)
    # With x = middle + half · sin t the root at both edges is smooth.
    t = torch.linspace(-math.pi / 2, math.pi / 2, points, dtype=torch.float64)
    x = (low + high) / 2 + (high - low) / 2 * t.sin()
    root = (high - low) / 2 * t.cos()
    density = root / (2 * math.pi * ratio * found.variance * x.clamp(min=1e-300)) * root
    density[0], density[-1] = (0.0, 0.0) if low > 0 else (density[1], 0.0)
    cdf = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumulative_trapezoid(density, t)])
    values = found.eigenvalues.double().cpu().flip(-1).contiguous()
    at = torch.searchsorted(x, values).clamp(1, points - 1)
    share = ((values - x[at - 1]) / (x[at] - x[at - 1])).clamp(0, 1)
    theory = (cdf[at - 1] + share * (cdf[at] - cdf[at - 1])) / cdf[-1]
    n = len(values)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    return float(torch.maximum((theory - steps[:-1]).abs(), (theory - steps[1:]).abs()).max())


def product_edges(ratio: float) -> tuple[float, float]:
    """λ± = 1/χ(z±), χ(z) = z / ((1 + z)(1 + cz)²), z± = (−c ± √(c² + 8c)) / 4c: edges for a product of two random factors.

    Of eigenvalues divided by d² mean(W_q²) mean(W_k²), where the factors are (d, D) and c = D/d. The lower edge is 0 from
    c = 1 on.
    """
    if not (math.isfinite(ratio) and ratio > 0):
        raise ConfigError(f"the ratio D/d is a positive number; got {ratio!r}")
    c = ratio
    root = math.sqrt(c * c + 8 * c)
    low, high = ((1 + z) * (1 + c * z) ** 2 / z for z in ((-c - root) / (4 * c), (-c + root) / (4 * c)))
    return (0.0 if c >= 1 else low), high


def product_diagnostics(w_q: Tensor, w_k: Tensor) -> RandomMatrix:
    """Eigenvalues of M Mᵀ / s, M = W_q W_kᵀ, s = d² mean(W_q²) mean(W_k²), beside those of a product of random factors.

    The D eigenvalues come from (W_qᵀ W_q)(W_kᵀ W_k); where the factors are wider than d, the d of M Mᵀ do.

    Args:
        w_q: (d, D) of one head, or of all heads of a layer side by side; y = x W.
        w_k: (d, D) likewise, key heads repeated for the query heads that use them.

    Raises:
        ConfigError: weights that are all zero, or not finite.
    """
    a, b = _matrix(w_q), _matrix(w_k)
    if a.shape != b.shape:
        raise ShapeError(f"W_q {tuple(a.shape)} and W_k {tuple(b.shape)}; repeat key heads for their query heads")
    d, width = a.shape
    scale = d * d * float(a.square().mean()) * float(b.square().mean())
    if width <= d:
        # (AᵀA)(BᵀB) has the eigenvalues of LᵀBᵀBL, AᵀA = LLᵀ by its symmetric root, which exists for any rank.
        values, vectors = torch.linalg.eigh(a.mT @ a)
        root = vectors * values.clamp(min=0).sqrt()
        found = torch.linalg.eigvalsh(root.mT @ (b.mT @ b) @ root)
    else:
        found = torch.linalg.svdvals(a @ b.mT).square().flip(-1)
    low, high = product_edges(width / d)
    return RandomMatrix(found.clamp(min=0).flip(-1) / scale, low, high, scale)


def qk_interaction(
    w_q: Tensor,
    w_k: Tensor,
    *,
    spectrum: Spectrum | None = None,
    distance: float = 0.0,
    pairing: Pairing = "half",
) -> Tensor:
    """M = W_q R(Δ) W_kᵀ of one head, (d, d): what a query reads off a key Δ tokens away; without frequencies M = W_q W_kᵀ.

    Args:
        w_q: (d, D); y = x W.
        w_k: (d, D).
        spectrum: of the turned channels, which come first.
        distance: Δ.
        pairing: of the channels.
    """
    a, b = _matrix(w_q), _matrix(w_k)
    if spectrum is not None:
        angles = distance * spectrum.tensor().to(b.device)
        b = rotate(b, *tables(angles, torch.float64), pairing)
    return a @ b.mT


@dataclass
class SpectrumTracker:
    """Keeps the spectra of a model's layers while it trains, step 0 first.

        tracker = SpectrumTracker(lambda: [(b.q.weight.mT, b.k.weight.mT) for b in model.blocks], every=100)
        for step in range(1000):
            tracker(step)
            ...
        tracker.map("outlier_energy")      # (layers, steps)

    Args:
        weights: returns W_q and W_k, (d, D) each, one pair a layer or head.
        every: steps between two looks.
    """

    weights: Callable[[], list[tuple[Tensor, Tensor]]]
    every: int = 100
    steps: list[int] = field(default_factory=list)
    spectra: list[list[RandomMatrix]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"every is a number of steps, at least 1; got {self.every!r}")

    @torch.no_grad()
    def __call__(self, step: int) -> None:
        """Look at the weights, if it is time to."""
        if step % self.every == 0:
            self.steps.append(step)
            self.spectra.append([product_diagnostics(q.detach(), k.detach()) for q, k in self.weights()])

    def map(self, measure: str) -> Tensor:
        """Return a property of `RandomMatrix` by layer and step, (layers, steps)."""
        if not self.steps:
            raise ConfigError("nothing was tracked yet: call the tracker with step 0 before training")
        rows = [[float(getattr(found, measure)) for found in layers] for layers in self.spectra]
        return torch.tensor(rows, dtype=torch.float64).mT


def _matrix(matrix: Tensor) -> Tensor:
    if matrix.ndim != 2 or not matrix.numel():
        raise ShapeError(f"expected a matrix; got shape {tuple(matrix.shape)}")
    a = matrix.double()
    if not bool(a.isfinite().all()) or not bool(a.any()):
        raise ConfigError("the matrix holds NaN or infinity, or zeros alone: it has no spectrum to compare")
    return a
