"""DPRoPE: interpolate the planes whose rotation angles would otherwise be distributed differently from training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.linear import linear

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum

Rule = Literal["paper", "code"]

EPSILON = 1e-12
"""Added to both frequencies of a bin in the paper's divergence; the paper gives no number."""

TINY = 2.0**-14
"""Added to the counts of a bin by the released code: the smallest normal number of float16."""


def dprope(
    spectrum: Spectrum,
    original: int,
    length: int,
    *,
    bins: int = 360,
    threshold: float | None = None,
    interpolated: int | None = None,
    rule: Rule = "paper",
    candidate: Spectrum | None = None,
) -> Spectrum:
    """ω_i / s if D_i(E) > D_i(I) + t, else ω_i;  s = L'/L.

    D_i(E) says how far the angles mω_i mod 2π, m < L', are from those of m < L; D_i(I) the same for mω_i/s (`disturbance`).
    Each plane takes the way that is closer to training.

    Args:
        spectrum: as trained.
        original: L, tokens of the training context.
        length: L', tokens of the new one.
        bins: of the histograms of angles.
        threshold: t, 0 if left out. The paper sets it by the number of planes that it interpolates.
        interpolated: that number, instead of a threshold: the planes with the largest D_i(E) − D_i(I), the slower of two alike.
        rule: the "paper"'s divergence, or the one of the released "code", which has no threshold.
        candidate: what planes may take instead of their own frequency; None: position interpolation.

    Raises:
        ConfigError: a threshold and a number at once, or either with rule="code"; a number of planes that is not there.

    Source: Yingsheng Wu, Yuxuan Gu, Xiaocheng Feng, Weihong Zhong, Dongliang Xu, Qing Yang, Hongtao Liu, Bing Qin. Extending
    Context Window of Large Language Models from a Distributional Perspective. arXiv 2410.01490, 2024.
    """
    report = dprope_report(spectrum, original, length, bins=bins, rule=rule, candidate=candidate)
    planes = len(spectrum.inv_freq)
    if threshold is not None and interpolated is not None:
        raise ConfigError("threshold and interpolated both say which planes change; give one of them")
    if rule == "code" and (threshold is not None or interpolated is not None):
        raise ConfigError(
            "the released code has neither a threshold nor a number of planes; leave them out or take rule='paper'"
        )
    gain = [plane.kept - plane.changed for plane in report.planes]
    if interpolated is None:
        if threshold is not None and math.isnan(threshold):
            raise ConfigError("threshold is a number; got nan")
        chosen = {i for i, g in enumerate(gain) if g > (threshold or 0.0)}
    else:
        if isinstance(interpolated, bool) or not isinstance(interpolated, int) or not 0 <= interpolated <= planes:
            raise ConfigError(f"interpolated is a number of planes from 0 to {planes}; got {interpolated!r}")
        chosen = set(sorted(range(planes), key=lambda i: (gain[i], i), reverse=True)[:interpolated])
    values = [
        plane.candidate if i in chosen else w
        for i, (w, plane) in enumerate(zip(spectrum.inv_freq, report.planes, strict=True))
    ]
    return spectrum.then(values, f"dprope({original}, {length}, interpolated={len(chosen)})")


@dataclass(frozen=True, slots=True)
class PlaneDisturbance:
    """One plane: its frequency, the candidate's, and how far from training each would bring its angles."""

    frequency: float
    candidate: float
    kept: float
    changed: float


@dataclass(frozen=True, slots=True)
class DisturbanceReport:
    """What `dprope` decides by. Means are over the planes."""

    planes: tuple[PlaneDisturbance, ...]

    @property
    def kept(self) -> float:
        """Mean disturbance when every plane keeps its frequency."""
        return sum(p.kept for p in self.planes) / max(len(self.planes), 1)

    @property
    def changed(self) -> float:
        """Mean disturbance when every plane takes the candidate's."""
        return sum(p.changed for p in self.planes) / max(len(self.planes), 1)

    @property
    def best(self) -> float:
        """Mean disturbance when every plane takes the better of the two."""
        return sum(min(p.kept, p.changed) for p in self.planes) / max(len(self.planes), 1)

    def __str__(self) -> str:
        rows = [
            f"{i:5d} {p.frequency:12.6g} {p.candidate:12.6g} {p.kept:12.6g} {p.changed:12.6g}"
            for i, p in enumerate(self.planes)
        ]
        return "\n".join([f"{'plane':>5} {'kept':>12} {'changed to':>12} {'D kept':>12} {'D changed':>12}", *rows])


def dprope_report(
    spectrum: Spectrum,
    original: int,
    length: int,
    *,
    bins: int = 360,
    rule: Rule = "paper",
    candidate: Spectrum | None = None,
) -> DisturbanceReport:
    """Return the disturbance of every plane, with its own frequency and with the candidate's. Arguments as in `dprope`.

    Give ``candidate=spectrum.yarn(...)`` to measure another schedule by the same rule.
    """
    check_positive(original=original, length=length, bins=bins)
    if length < original:
        raise ConfigError(f"the new context, {length} tokens, is shorter than the original one, {original}")
    if rule not in ("paper", "code"):
        raise ConfigError(f"rule is 'paper' or 'code'; got {rule!r}")
    other = candidate if candidate is not None else linear(spectrum, length / original)
    if len(other.inv_freq) != len(spectrum.inv_freq):
        raise ConfigError(f"the candidate has {len(other.inv_freq)} planes and the spectrum {len(spectrum.inv_freq)}")
    measure = disturbance if rule == "paper" else code_disturbance
    planes = []
    for w, c in zip(spectrum.inv_freq, other.inv_freq, strict=True):
        trained = angle_histogram(w, original, bins)
        kept, changed = (measure(angle_histogram(frequency, length, bins), trained) for frequency in (w, c))
        planes.append(PlaneDisturbance(w, c, kept, changed))
    return DisturbanceReport(tuple(planes))


def angle_histogram(frequency: float, length: int, bins: int = 360) -> Tensor:
    """#{m < L : mω mod 2π in bin k}, k = 0 … b − 1: how often each range of angles is met, (bins,), whole numbers.

    Divided by L they sum to 1. A plane that stands still is at angle 0 always.
    """
    check_positive(length=length, bins=bins)
    if not math.isfinite(frequency):
        raise ConfigError(f"frequency is a number; got {frequency!r}")
    angles = torch.remainder(torch.arange(length, dtype=torch.float64, device="cpu") * frequency, 2 * math.pi)
    # An angle just below a full turn may round to it.
    at = (angles * bins / (2 * math.pi)).floor().long().clamp(max=bins - 1)
    return torch.bincount(at, minlength=bins)


def disturbance(counts: Tensor, trained: Tensor) -> float:
    """Σ_k X_k ln((X_k + ε) / (P_k + ε)): the divergence KL(X ‖ P) of two histograms of angles, in nats.

    Args:
        counts: X times its number of angles, of the longer context.
        trained: P likewise, of the training context.
    """
    x, p = (c.double() / c.sum() for c in (counts, trained))
    return float((x * ((x + EPSILON).log() - (p + EPSILON).log())).sum())


def code_disturbance(counts: Tensor, trained: Tensor) -> float:
    """(1/b) Σ_k P_k (ln P_k − ln X_k), with 2⁻¹⁴ added to every count before it is divided: what the released code compares."""
    x, p = ((c.double() + TINY) / c.sum() for c in (counts, trained))
    return float((p * (p.log() - x.log())).mean())
