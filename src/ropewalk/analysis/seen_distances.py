"""Which distances a training text teaches, and how far scores can move between those."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.frequencies.spectrum import Spectrum


@dataclass(frozen=True)
class SeenDistances:
    """Distances i − j of the pairs that causal attention computes.

    Attributes:
        counts: (context,) pairs at each distance.
    """

    counts: Tensor

    @property
    def seen(self) -> Tensor:
        """The distances that occur, rising."""
        return torch.nonzero(self.counts)[:, 0]

    @property
    def share(self) -> float:
        """Of the distances of the context, how many occur."""
        return float((self.counts > 0).double().mean())

    def gaps(self) -> list[tuple[int, int]]:
        """Return the stretches of distances that never occur, (first, last) each."""
        missing = torch.nonzero(self.counts == 0)[:, 0].tolist()
        found: list[tuple[int, int]] = []
        for r in missing:
            found = [*found[:-1], (found[-1][0], r)] if found and found[-1][1] == r - 1 else [*found, (r, r)]
        return found

    def histogram(self, bins: int = 16) -> Tensor:
        """Return the share of pairs in equal stretches of the context, (bins,)."""
        check_positive(bins=bins)
        edges = (torch.arange(len(self.counts)) * bins) // len(self.counts)
        sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, edges, self.counts.double())
        return sums / sums.sum().clamp(min=1)


def seen_distances(positions: Tensor, context: int, valid: Tensor | None = None) -> SeenDistances:
    """Count the distances of all pairs of a query and an earlier key.

    Args:
        positions: (n,) or (B, n) whole numbers in the order of the text.
        context: largest distance that is of interest, plus 1.
        valid: of the same shape, False for padding.

    Raises:
        ShapeError: positions of another shape or dtype.
        ConfigError: a distance below 0 or beyond the context.
    """
    check_positive(context=context)
    rows = positions[None] if positions.ndim == 1 else positions
    if rows.ndim != 2 or rows.is_floating_point():
        raise ShapeError(
            f"positions have shape {tuple(positions.shape)} and dtype {positions.dtype}; expected whole (n,) or (B, n)"
        )
    real = torch.ones_like(rows, dtype=torch.bool) if valid is None else valid.reshape(rows.shape).bool()
    counts = torch.zeros(context, dtype=torch.long)
    for row, there in zip(rows, real, strict=True):
        at = row[there]
        r = (at[:, None] - at)[torch.ones(len(at), len(at), dtype=torch.bool).tril()]
        if r.numel() and not 0 <= int(r.min()) <= int(r.max()) < context:
            raise ConfigError(
                f"distances from {int(r.min())} to {int(r.max())} in a context of {context}; positions rise from token to token"
            )
        counts += torch.bincount(r, minlength=context)
    return SeenDistances(counts)


def score_slope_bound(spectrum: Spectrum, amplitudes: Tensor) -> Tensor:
    """sup |ds/dr| ≤ Σ_f ω_f A_f for s(r) = Σ_f A_f cos(ω_f r + φ_f): how fast a score can change with the distance, (...).

    A_f = |q_f| |k_f|. Position interpolation by λ divides it by λ, so that what was trained at one distance holds nearby.
    Coarser, after Bernstein: sup |s'| ≤ ω_max sup |s|, and sup |s''| ≤ ω_max² sup |s|.

    Args:
        spectrum: P frequencies, as they are after scaling.
        amplitudes: (..., P), not negative.

    Source: EndPrompt: Efficient Long-Context Extension via Terminal Anchoring. arXiv 2605.14589, 2026.
    """
    if amplitudes.shape[-1:] != (len(spectrum.inv_freq),):
        raise ShapeError(
            f"amplitudes {tuple(amplitudes.shape)} for {len(spectrum.inv_freq)} planes; one a plane, in the last dimension"
        )
    if bool((amplitudes < 0).any()) or not bool(amplitudes.isfinite().all()):
        raise ConfigError("amplitudes are numbers from 0 on")
    return (amplitudes.double() * spectrum.tensor().abs().to(amplitudes.device)).sum(-1)
