"""RoPE and ALiBi seen as wavelets and windows.

After Yui Oka, Taku Hasegawa, Kyosuke Nishida, Kuniko Saito. Wavelet-based Positional Representation for Long Context. arXiv
2502.02004, 2025.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError


def rotation_by_wavelets(position: float, inv_freq: Tensor) -> Tensor:
    """Return RoPE's rotation at a position as a matrix (d, d) whose rows are shifted wavelets along the channels.

    Rows 2j and 2j + 1 hold the two wavelets of plane j, which are (cos φ, −sin φ) and (sin φ, cos φ) on two cells and 0
    elsewhere, shifted by 2j. Every scale is 2: RoPE is a wavelet transform with windows of one size.
    """
    planes = inv_freq.double()
    if planes.ndim != 1:
        raise ShapeError(f"inv_freq has shape {tuple(planes.shape)}; expected a frequency for each plane")
    angle = position * planes[:, None, None]
    first = torch.cat([angle.cos(), angle.sin()], 1)  # (P, 2, 1): value of both wavelets on the first cell
    second = torch.cat([-angle.sin(), angle.cos()], 1)
    cell = torch.arange(2 * len(planes), device=planes.device)
    away = cell - 2 * torch.arange(len(planes), device=planes.device)[:, None, None]
    return torch.where(away == 0, first, torch.where(away == 1, second, 0.0)).flatten(0, 1)


def window_sizes(weights: Tensor, threshold: float = 1e-3) -> Tensor:
    """Return the largest distance at which attention reaches a threshold, (..., ) for weights (..., Q, K).

    Queries are the last of the keys. −1 where no weight reaches it.
    """
    if weights.ndim < 2 or weights.shape[-1] < weights.shape[-2]:
        raise ShapeError(
            f"weights have shape {tuple(weights.shape)}; expected (..., Q, K) with the queries last among the keys"
        )
    if not threshold > 0:
        raise ConfigError(f"threshold is a positive weight; got {threshold!r}")
    q, k = weights.shape[-2:]
    distance = torch.arange(k - q, k, device=weights.device)[:, None] - torch.arange(k, device=weights.device)
    seen = (weights >= threshold) & (distance >= 0)
    return torch.where(seen, distance, -1).amax((-1, -2))
