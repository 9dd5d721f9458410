"""What one step of a position does to vectors: eigenvalues and singular values of the matrices that act.

Rotations (multiplicative GRAPE, RoPE) keep lengths: all singular values are 1. Unipotent matrices (additive GRAPE, ALiBi,
FoX) shear: one pair of singular values is σ and 1/σ, all eigenvalues are 1. PaTH's factors shrink one direction. After Yifan
Zhang et al., Group Representational Position Encoding, arXiv 2512.07805, 2025.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError


class FactorSpectrum(NamedTuple):
    """Eigenvalues (..., d), complex, by falling size and then by angle, and singular values (..., d), falling."""

    eigenvalues: Tensor
    singular_values: Tensor

    @property
    def contraction(self) -> Tensor:
        """Smallest singular value: what the most shrunk direction keeps in one step."""
        return self.singular_values[..., -1]


def factor_spectrum(matrix: Tensor) -> FactorSpectrum:
    """Return the spectrum of square matrices (..., d, d), computed in float64."""
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ShapeError(f"a factor is a square matrix (..., d, d); got shape {tuple(matrix.shape)}")
    if not bool(matrix.isfinite().all()):
        raise ConfigError("the factor holds NaN or infinity, so it has no spectrum")
    values = torch.linalg.eigvals(matrix.double())
    # Sizes are rounded so that those of a pair compare equal; then the angle decides.
    by_angle = values.gather(-1, values.angle().argsort(-1))
    order = by_angle.abs().mul(1e9).round().sort(dim=-1, descending=True, stable=True).indices
    return FactorSpectrum(by_angle.gather(-1, order), torch.linalg.svdvals(matrix.double()))


def rotation_factor(generator: Tensor, steps: float = 1.0) -> Tensor:
    """exp(nL), what n steps of a skew generator L (..., d, d) do; float64."""
    return torch.linalg.matrix_exp(steps * generator.double())


def additive_factor(head_dim: int, shift: float) -> Tensor:
    """1 + s e_{d+2} e_{d+1}ᵀ, which adds s to the logit of q̂ = (q, 1, 0) and k̂ = (k, 0, 1): q̂ᵀ Gᵀ k̂ = q·k + s. float64."""
    factor = torch.eye(head_dim + 2, dtype=torch.float64)
    factor[head_dim + 1, head_dim] = shift
    return factor


def additive_singular_values(shift: Tensor | float) -> tuple[Tensor, Tensor]:
    """σ± = √(1 + s²/2 ± |s| √(1 + s²/4)), the singular values of `additive_factor` besides the ones; their product is 1."""
    size = torch.as_tensor(shift, dtype=torch.float64).abs()
    larger = (1 + size.square() / 2 + size * (1 + size.square() / 4).sqrt()).sqrt()
    return larger, 1 / larger


def path_factor(direction: Tensor, beta: Tensor | float) -> Tensor:
    """1 − β w wᵀ, PaTH's factor of one token (arXiv 2505.16381), for w (..., d); float64.

    Its singular values are 1 and |1 − β‖w‖²|: for unit w it shrinks that direction where 0 < β < 2, and at β = 2 it is a
    reflection.
    """
    w = direction.double()
    beta = torch.as_tensor(beta, dtype=torch.float64, device=w.device)[..., None, None]
    eye = torch.eye(w.shape[-1], dtype=torch.float64, device=w.device)
    return eye - beta * w[..., :, None] * w[..., None, :]
