"""Attention Buckets: bases whose attention does not dip at the same distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest
from ropewalk.frequencies.spectrum import check_base, check_rotary_width, geometric
from ropewalk.frequencies.waveform import extrema, waveform

Wave = Literal["mean_cos", "bound"]
Combine = Literal["logits", "probs"]

TOOL_BASES = (10_000, 17_500, 18_000, 19_000, 20_000, 25_000)
"""The paper's bases for tool use, of Llama 2 (head_dim 128)."""

RETRIEVAL_BASES = (10_000, 13_000, 16_000, 19_000, 22_000, 25_000, 28_000)
"""The paper's bases for answers from retrieved texts."""


def attention_waveform(base: float, head_dim: int, distances: Tensor, kind: Wave = "mean_cos") -> Tensor:
    """(2/d) Σ_i cos(m ω_i), or the bound (2/d) Σ_j |Σ_{i≤j} e^(imω_i)|, at each distance m; float64.

    Args:
        base: of the frequencies ω_i = base^(−2i/d).
        head_dim: d.
        distances: any shape, in tokens.
        kind: "mean_cos", 1 at distance 0, or "bound" of Su and others (arXiv 2104.09864), (d/2 + 1) / 2 there.
    """
    check_rotary_width(head_dim)
    check_base(base)
    spectrum = geometric(head_dim, base)
    if kind == "mean_cos":
        return waveform(spectrum, distances) / len(spectrum.inv_freq)
    if kind != "bound":
        raise ConfigError(f"kind is one of {', '.join(get_args(Wave))}; got {kind!r}.{suggest(kind, get_args(Wave))}")
    angles = distances.double()[..., None] * spectrum.tensor().to(distances.device)
    return torch.hypot(angles.cos().cumsum(-1), angles.sin().cumsum(-1)).mean(-1)


def smoothed(wave: Tensor, sigma: float) -> Tensor:
    """Smooth a curve (L,) by a Gaussian, cut at 4σ and normalised, with the ends reflected; σ = 0 leaves it as it is."""
    if wave.ndim != 1:
        raise ShapeError(f"a curve is (length,); got shape {tuple(wave.shape)}")
    if not 0 <= sigma < math.inf:
        raise ConfigError(f"sigma is a number of distances, from 0 on; got {sigma!r}")
    reach = math.floor(4 * sigma + 0.5)
    if reach == 0:
        return wave
    at = torch.arange(-reach, reach + 1, dtype=torch.float64, device=wave.device)
    kernel = torch.exp(-0.5 * (at / sigma) ** 2)
    n = len(wave)
    index = torch.arange(-reach, n + reach, device=wave.device) % (2 * n)  # … 1 0 | 0 1 … n−1 | n−1 n−2 …
    padded = wave.double()[torch.where(index < n, index, 2 * n - 1 - index)]
    return torch.nn.functional.conv1d(padded[None, None], (kernel / kernel.sum())[None, None])[0, 0]


def find_extrema(wave: Tensor, sigma: float = 0.0, prominence: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return where a curve (L,) has peaks and troughs, strictly inside, at a scale.

    The fastest plane puts an extremum every six distances, wherever the base; smoothing leaves those that depend on it.

    Args:
        wave: the curve.
        sigma: of a Gaussian that smooths it first.
        prominence: how far a peak rises above the higher of the lowest points between it and higher ground on either side (or
            the end), at least; likewise, upside down, for troughs.
    """
    curve = smoothed(wave, sigma)
    peaks, troughs = extrema(curve)
    if prominence > 0:
        peaks, troughs = (_prominent(c, at, prominence) for c, at in ((curve, peaks), (-curve, troughs)))
    return peaks, troughs


def complementary_bases(
    count: int,
    head_dim: int = 128,
    *,
    lowest: float = 10_000.0,
    highest: float = 30_000.0,
    stride: float = 1000.0,
    length: int = 4096,
    sigma: float = 50.0,
    kind: Wave = "mean_cos",
) -> tuple[float, ...]:
    """Choose bases so that the peaks of one fill the troughs of the others: from the lowest on, one after the other.

    The published rule could not be read; this one is ours, and gives sets that complement each other, not the published lists.
    Waves are smoothed and scaled to 0 … 1. Each step adds the candidate with the smallest mean distance from the troughs of the
    maximum of the waves so far to its nearest peak; ties go to the lower base, and what has no peak comes last.

    Args:
        count: N, bases.
        head_dim: of the model.
        lowest: the base of the model.
        highest: of the candidates. Bases far above the model's own hurt a model that was not tuned.
        stride: between candidates.
        length: distances looked at.
        sigma: see `find_extrema`.
        kind: see `attention_waveform`.

    Raises:
        ConfigError: fewer candidates than bases; no trough to fill.

    Source: Yuhan Chen, Ang Lv, Ting-En Lin, Changyu Chen, Yuchuan Wu, Fei Huang, Yongbin Li, Rui Yan. Fortify the Shortest
    Stave in Attention: Enhancing Context Awareness of Large Language Models for Effective Tool Use. arXiv 2312.04455, 2023.
    """
    check_positive(count=count, length=length)
    check_base(lowest)
    check_base(highest)
    if not 0 < stride < math.inf or highest < lowest:
        raise ConfigError(f"candidates run from {lowest:g} to {highest:g} by a positive stride; got {stride!r}")
    steps = math.floor((highest - lowest) / stride * (1 + 1e-12))
    if count > steps + 1:
        raise ConfigError(
            f"{count} bases of only {steps + 1} candidates between {lowest:g} and {highest:g}; lower the stride"
        )
    bases = [float(lowest + j * stride) for j in range(steps + 1)]
    waves = [_scaled(smoothed(attention_waveform(b, head_dim, torch.arange(length), kind), sigma)) for b in bases]
    peaks = [extrema(wave)[0] for wave in waves]
    chosen = [0]
    while len(chosen) < count:
        _, troughs = extrema(torch.stack([waves[j] for j in chosen]).amax(0))
        if not len(troughs):
            raise ConfigError(
                f"the waves of {[bases[j] for j in chosen]} leave no trough within {length} distances at sigma {sigma:g}; give a "
                "larger length or a smaller sigma"
            )
        left = [j for j in range(len(bases)) if j not in chosen]
        chosen.append(min(left, key=lambda j: (_far(troughs, peaks[j]), j)))
    return tuple(bases[j] for j in chosen)


def wave_coverage(bases: Sequence[float], head_dim: int, length: int = 4096, sigma: float = 50.0) -> float:
    """min_m max_j W_j(m), waves smoothed and scaled to 0 … 1: how well the worst distance is seen; no base takes from it."""
    waves = [_scaled(smoothed(attention_waveform(b, head_dim, torch.arange(length)), sigma)) for b in bases]
    return float(torch.stack(waves).amax(0).min())


def mixed(logits: Tensor, combine: Combine = "logits") -> Tensor:
    """Σ_j α_j ℓ_j,  α = softmax_j(max_v ℓ_j): what copies of a model with different bases say together, (..., V) of (N, ..., V).

    Args:
        logits: of N copies.
        combine: "logits", as released; "probs", as the paper describes it: log Σ_j α_j p_j, p = softmax(ℓ),
            α = softmax_j(max_v p_j).
    """
    shares = copy_weights(logits, combine)[..., None]
    if combine == "logits":
        return (shares * logits.to(shares.dtype)).sum(0)
    return (shares.log() + logits.to(shares.dtype).log_softmax(-1)).logsumexp(0)


def copy_weights(logits: Tensor, combine: Combine = "logits") -> Tensor:
    """Return α, how much each of N copies counts, (N, ...) of logits (N, ..., V); float32 or wider."""
    if combine not in get_args(Combine):
        raise ConfigError(f"combine is 'logits' or 'probs'; got {combine!r}.{suggest(combine, get_args(Combine))}")
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    sure = wide.amax(-1) if combine == "logits" else wide.softmax(-1).amax(-1)
    return sure.softmax(0)


def _far(troughs: Tensor, peaks: Tensor) -> float:
    if not len(peaks):
        return math.inf
    return float((troughs[:, None] - peaks).abs().amin(-1).double().mean())


def _scaled(wave: Tensor) -> Tensor:
    return (wave - wave.min()) / (wave.max() - wave.min())


def _prominent(curve: Tensor, at: Tensor, least: float) -> Tensor:
    kept = []
    for p in at.tolist():
        higher = torch.nonzero(curve > curve[p])[:, 0]
        left, right = higher[higher < p], higher[higher > p]
        start = int(left.max()) if len(left) else 0
        stop = int(right.min()) if len(right) else len(curve) - 1
        foot = torch.maximum(curve[start : p + 1].min(), curve[p : stop + 1].min())
        if float(curve[p] - foot) >= least:
            kept.append(p)
    return torch.tensor(kept, dtype=torch.long, device=at.device)
