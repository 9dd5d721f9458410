"""Grid cells: where a sum of plane waves is large, and whether that looks like hexagons."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ropewalk.core.errors import ConfigError, ShapeError, check_positive

ALIKE, UNLIKE = (60, 120), (30, 90, 150)
"""Degrees by which a hexagonal lattice is turned onto itself, and onto its gaps."""


def rate_map(vectors: Tensor, size: int = 64, extent: float = 20.0, phase: Tensor | None = None) -> Tensor:
    """Return Σ_j cos(⟨w_j, x⟩ + φ_j) / n over the square [−extent, extent]², (size, size): what a grid cell fires.

    Args:
        vectors: (n, 2) frequency vectors, such as those of one scale and head of `GridPE`.
        size: samples of a side.
        extent: half a side.
        phase: (n,) φ; None: 0, a cell that fires in the middle.
    """
    check_positive(size=size)
    if vectors.ndim != 2 or vectors.shape[1] != 2 or not len(vectors):
        raise ShapeError(f"vectors have shape {tuple(vectors.shape)}; a map of the plane takes (n, 2)")
    if not (math.isfinite(extent) and extent > 0):
        raise ConfigError(f"extent is half the side of the map, a positive number; got {extent!r}")
    line = torch.linspace(-extent, extent, size, dtype=torch.float64)
    x = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)
    angle = (x[:, :, None] * vectors.detach().double().cpu()).sum(-1)
    return (angle if phase is None else angle + phase.detach().double().cpu()).cos().mean(-1)


def gridness(rates: Tensor) -> float:
    """Return min(r_60, r_120) − max(r_30, r_90, r_150), r_a how the autocorrelogram correlates with itself turned by a°.

    Above 0 for hexagons, up to 2; below 0 for squares; near 0 for neither. Read on a ring that leaves out the peak in the middle
    and the corners.

    Args:
        rates: (n, n), several periods wide.
    """
    if rates.ndim != 2 or rates.shape[0] != rates.shape[1] or rates.shape[0] < 8:
        raise ShapeError(f"rates have shape {tuple(rates.shape)}; expected a square of 8 or more samples a side")
    n = rates.shape[0]
    centred = rates.double() - rates.double().mean()
    power = torch.fft.rfft2(centred, s=(2 * n, 2 * n)).abs().square()
    pairs = torch.fft.rfft2(torch.ones_like(centred), s=(2 * n, 2 * n)).abs().square()
    overlap = torch.fft.fftshift(torch.fft.irfft2(pairs, s=(2 * n, 2 * n))).clamp(min=1)
    seen = (torch.fft.fftshift(torch.fft.irfft2(power, s=(2 * n, 2 * n))) / overlap)[n - n // 2 : n + n // 2 + 1]
    seen = seen[:, n - n // 2 : n + n // 2 + 1]
    line = torch.linspace(-1, 1, len(seen), dtype=torch.float64)
    radius = (line[:, None].square() + line.square()).sqrt()
    inner = _first_zero(seen)
    ring = (radius > inner) & (radius < 1)

    def likeness(degrees: float) -> float:
        a = math.radians(degrees)
        turn = torch.tensor([[math.cos(a), -math.sin(a), 0.0], [math.sin(a), math.cos(a), 0.0]], dtype=torch.float64)
        where = affine_grid(turn[None], [1, 1, *seen.shape], align_corners=True)
        turned = grid_sample(seen[None, None], where, align_corners=True)[0, 0]
        return float(torch.corrcoef(torch.stack([seen[ring], turned[ring]]))[0, 1])

    return min(map(likeness, ALIKE)) - max(map(likeness, UNLIKE))


def _first_zero(correlation: Tensor) -> float:
    """Radius, as a share of half the side, at which the peak in the middle ends along a row."""
    middle = len(correlation) // 2
    falls = (correlation[middle, middle:] <= 0).nonzero()
    return float(falls[0]) / middle if len(falls) else 0.0
