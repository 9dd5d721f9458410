"""Retrieval between texts and videos with graded relevance: the SMS loss, mean average precision, nDCG."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.core.errors import ConfigError, ShapeError

LEVELS = 240
"""Relevance is told apart in steps of 1/240, as it was stored."""


class SMSLoss(nn.Module):
    """Mean over i ≠ j, both directions, of ℓ(c, z),  c = w_i − R_ij,  z = c · margin − (S_ii − S_ij),  S = t̂ v̂ᵀ.

    ℓ = relu(z) where c > ε, relu(|z| − tolerance) where |c| < ε, relu(−z) where c < −ε,  ε = 1.1/240: an item is as far below
    the matched one as it is less relevant, stays by it where it is as relevant, and lies above it where it is more.

    Args:
        margin: of a whole step in relevance.
        tolerance: distance that equally relevant items may have.

    Source: Xiaoqi Wang, Yi Wang, Lap-Pui Chau. EVA02-AT: Egocentric Video-Language Understanding with Spatial-Temporal Rotary
    Positional Embeddings and Symmetric Optimization. arXiv 2506.14356, 2025; the loss first in arXiv 2406.12256.
    """

    def __init__(self, margin: float = 0.6, tolerance: float = 0.1) -> None:
        super().__init__()
        if not margin > 0 or not tolerance >= 0:
            raise ConfigError(f"margin is positive and tolerance at least 0; got {margin!r} and {tolerance!r}")
        self.margin, self.tolerance = margin, tolerance

    def forward(self, text: Tensor, video: Tensor, relevance: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the loss.

        Args:
            text: (n, d) features; text i belongs to video i. Of any length: they are normalised here.
            video: (n, d) features.
            relevance: (n, n) of video j for text i, in [0, 1]; read in steps of 1/240.
            weight: (n,) relevance of the matched pairs; None: 1.

        Raises:
            ShapeError: sizes that do not fit, or fewer than two pairs.
            ConfigError: a relevance outside [0, 1].
        """
        n = text.shape[0]
        if text.ndim != 2 or text.shape != video.shape or relevance.shape != (n, n) or n < 2:
            raise ShapeError(
                f"texts {tuple(text.shape)}, videos {tuple(video.shape)} and relevance {tuple(relevance.shape)}: expected "
                "(n, d), (n, d) and (n, n) with n of 2 or more"
            )
        if weight is not None and weight.shape != (n,):
            raise ShapeError(f"weight has shape {tuple(weight.shape)}; expected ({n},)")
        _check_relevance(relevance)
        dtype = torch.promote_types(text.dtype, torch.float32)
        with torch.autocast(text.device.type, enabled=False):
            t, v = (functional.normalize(x.to(dtype), dim=-1) for x in (text, video))
            score = t @ v.T
            graded = (relevance.to(torch.float64) * LEVELS + 1e-6).floor().to(dtype) / LEVELS
            own = torch.ones(n, dtype=dtype, device=text.device) if weight is None else weight.to(dtype)
            both = [self._pairs(s, r, own) for s, r in ((score, graded), (score.T, graded.T))]
        return torch.stack(both).mean()

    def _pairs(self, score: Tensor, relevance: Tensor, own: Tensor) -> Tensor:
        gap = own[:, None] - relevance
        z = gap * self.margin - (score.diagonal()[:, None] - score)
        near = 1.1 / LEVELS
        loss = torch.where(gap > near, z.relu(), torch.where(gap < -near, (-z).relu(), 0.0))
        loss = torch.where(gap.abs() < near, (z.abs() - self.tolerance).relu(), loss)
        return loss[~torch.eye(len(score), dtype=torch.bool, device=score.device)]

    def extra_repr(self) -> str:
        return f"margin={self.margin}, tolerance={self.tolerance}"


def mean_average_precision(scores: Tensor, relevance: Tensor) -> float | None:
    """Mean over queries of the average precision; an item counts where its relevance is 1.

    Args:
        scores: (queries, items); ties go to the lower index.
        relevance: (queries, items) in [0, 1].

    Returns:
        The mean over queries that have such an item; None if there is none.
    """
    ranked = _ranked(scores, relevance) >= 1
    found = ranked.any(1)
    if not found.any():
        return None
    hits, place = ranked.double().cumsum(1), torch.arange(1, ranked.shape[1] + 1, device=scores.device)
    return float(((hits / place * ranked).sum(1) / ranked.sum(1).clamp(min=1))[found].mean())


def ndcg(scores: Tensor, relevance: Tensor) -> float | None:
    """Mean over queries of DCG / (largest DCG),  DCG = Σ_r R_r / log₂(r + 1) over ranks r = 1 … number of items with R > 0.

    Args:
        scores: (queries, items); ties go to the lower index.
        relevance: (queries, items) in [0, 1].

    Returns:
        The mean over queries that have such an item; None if there is none.
    """
    ranked, best = _ranked(scores, relevance), relevance.double().sort(1, descending=True).values
    discount = torch.arange(2, ranked.shape[1] + 2, dtype=torch.float64, device=scores.device).log2()
    top = best > 0
    found = top.any(1)
    if not found.any():
        return None
    got, most = ((r * top / discount).sum(1) for r in (ranked, best))
    return float((got[found] / most[found]).mean())


def _ranked(scores: Tensor, relevance: Tensor) -> Tensor:
    """Return the relevance of the items by falling score."""
    if scores.ndim != 2 or scores.shape != relevance.shape:
        raise ShapeError(
            f"scores {tuple(scores.shape)} and relevance {tuple(relevance.shape)}: one number a query and item"
        )
    if not bool(scores.isfinite().all()):
        raise ConfigError("scores are finite numbers")
    _check_relevance(relevance)
    return relevance.double().gather(1, scores.sort(dim=1, descending=True, stable=True).indices)


def _check_relevance(relevance: Tensor) -> None:
    if not bool(((relevance >= 0) & (relevance <= 1)).all()):
        raise ConfigError("relevance is a number from 0 to 1")
