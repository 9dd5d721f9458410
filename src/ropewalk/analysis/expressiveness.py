"""What a table of position vectors can tell apart, fit and generalise; and how far ALiBi looks.

A table is P (n, d): what an embedding adds at positions 0 ... n − 1. After Yin Li. Theoretical Analysis of Positional
Encodings in Transformer Models: Impact on Expressiveness and Generalization. arXiv 2506.06398, 2025; the constants of its
theorems are not public, and the quantities here are the standard ones of their names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, ShapeError, check_positive


@dataclass(frozen=True)
class CodeReport:
    """How well the vectors of positions are spread.

    Attributes:
        positions: number n of positions.
        width: d.
        parameters: learned numbers behind them.
        rank: of P.
        condition: condition number of PᵀP; infinite where columns depend on each other.
        coherence: largest |p_i·p_j| / (|p_i| |p_j|) of two positions; None where fewer than two vectors are not zero.
        min_distance: least |p_i − p_j|; 0 where two positions have the same code, None for a single position.
        max_norm: largest |p_i|.
        information: ½ log det(I + PPᵀ/σ²) with σ = 1, in nats: what a reading with unit noise tells of the position.
    """

    positions: int
    width: int
    parameters: int
    rank: int
    condition: float
    coherence: float | None
    min_distance: float | None
    max_norm: float
    information: float


def position_vectors(encoding: Encoding, length: int, hidden_size: int) -> Tensor:
    """Return what an embedding adds at positions 0 ... length − 1, (length, hidden_size) float64."""
    check_positive(length=length, hidden_size=hidden_size)
    with torch.no_grad():
        return encoding.embed(torch.zeros(1, length, hidden_size, dtype=torch.float64))[0]


def code_report(codes: Tensor, parameters: int = 0) -> CodeReport:
    """Describe a table of position vectors (n, d).

    Raises:
        ShapeError: not a table of finite numbers with at least one row and column.
    """
    p = _table(codes)
    n, d = p.shape
    singular = torch.linalg.svdvals(p)
    tolerance = singular[0] * max(n, d) * torch.finfo(p.dtype).eps
    rank = int((singular > tolerance).sum())
    norms = p.norm(dim=-1)
    unit = p[norms > 0] / norms[norms > 0, None]
    apart = ~torch.eye(len(unit), dtype=torch.bool, device=p.device)
    distance = torch.cdist(p, p, compute_mode="donot_use_mm_for_euclid_dist")
    distance = distance[~torch.eye(n, dtype=torch.bool, device=p.device)]
    return CodeReport(
        positions=n,
        width=d,
        parameters=parameters,
        rank=rank,
        condition=float((singular[0] / singular[-1]) ** 2) if rank == d else math.inf,
        coherence=float((unit @ unit.t()).abs()[apart].max()) if len(unit) > 1 else None,
        min_distance=float(distance.min()) if n > 1 else None,
        max_norm=float(norms.max()),
        information=float(torch.log1p(singular.square()).sum() / 2),
    )


def rademacher(codes: Tensor, bound: float = 1.0, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Return the empirical Rademacher complexity of {p ↦ w·p, |w| ≤ B}, and an upper bound of it.

    (B/n) E|Σ_i σ_i p_i| over random signs σ, by Monte Carlo; B max|p| / √n.
    """
    p = _table(codes)
    check_positive(draws=draws)
    if not 0 < bound < math.inf:
        raise ConfigError(f"bound is the largest norm of w, a positive number; got {bound!r}")
    n = p.shape[0]
    signs = torch.randint(0, 2, (draws, n), generator=torch.Generator().manual_seed(seed)).to(p) * 2 - 1
    sampled = bound / n * (signs @ p).norm(dim=-1).mean()
    return float(sampled), float(bound * p.norm(dim=-1).max() / math.sqrt(n))


def approximation_error(codes: Tensor, target: Tensor) -> float:
    """Return |f − P P⁺ f|: how much of a function of the position no linear map of the codes can give.

    Args:
        codes: P, (n, d).
        target: f, (n,).
    """
    p = _table(codes)
    if target.shape != p.shape[:1]:
        raise ShapeError(
            f"target has shape {tuple(target.shape)}; expected a number for each of {p.shape[0]} positions"
        )
    f = target.to(p)
    # Through an orthonormal basis of the columns, so that badly conditioned ones lose nothing.
    left, singular, _ = torch.linalg.svd(p, full_matrices=False)
    basis = left[:, singular > singular[0] * max(p.shape) * torch.finfo(p.dtype).eps]
    return float((f - basis @ (basis.t() @ f)).norm())


def alibi_tail(slope: float, distance: int, logit_bound: float) -> float:
    """Bound the attention that ALiBi gives to keys farther than ``distance``: e^(2B) e^(−m(D + 1)) / (1 − e^(−m)).

    Holds for causal attention over any length, where the logits of the content lie in [−B, B]. The weight of a key at
    distance t is at most e^(B − mt) / e^(−B), since the query itself is among the keys; the rest is a geometric sum.
    """
    if not 0 < slope < math.inf or distance < 0 or not 0 <= logit_bound < math.inf:
        raise ConfigError(
            f"slope is positive, distance and logit_bound are at least 0; got {slope!r}, {distance!r}, {logit_bound!r}"
        )
    return math.exp(2 * logit_bound - slope * (distance + 1)) / -math.expm1(-slope)


def _table(codes: Tensor) -> Tensor:
    if codes.ndim != 2 or not codes.numel() or not bool(codes.isfinite().all()):
        raise ShapeError(
            f"codes have shape {tuple(codes.shape)}; expected finite numbers (positions, width), at least one each"
        )
    return codes.detach().double()
