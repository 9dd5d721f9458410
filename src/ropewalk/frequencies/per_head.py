"""HARPE: a base for each head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.spectrum import check_base, check_rotary_width, geometric
from ropewalk.frequencies.waveform import extrema, waveform

Bases = Literal["uniform", "search", "preset"]

PUBLISHED = tuple(
    round(million * 1e6)
    for million in (
        1.00, 1.15, 1.30, 1.45, 2.17, 2.20, 2.23, 2.47, 2.50, 2.65, 2.68, 2.71, 2.74, 2.80, 2.83, 2.92,
        3.01, 3.04, 3.10, 3.13, 3.16, 3.22, 3.43, 3.46, 3.61, 3.88, 4.09, 4.15, 4.39, 4.45, 4.51, 4.54,
    )
)  # fmt: skip
"""The bases of the paper's 32 heads, in the order of the heads."""


def per_head_bases(
    num_heads: int,
    kind: Bases | Sequence[float] = "uniform",
    *,
    lowest: float = 1e6,
    highest: float = 5e6,
    descending: bool = False,
    head_dim: int = 128,
    stride: float = 3e4,
    length: int = 4096,
) -> tuple[float, ...]:
    """Return one base a key head.

    Args:
        num_heads: N, key heads (a base a query head would break the keys that a group shares).
        kind: "uniform": lowest + h (highest − lowest) / (N − 1); "search": `search_bases`; "preset": the paper's table
            for 32 heads; or the bases themselves.
        lowest: smallest base of "uniform" and "search", the only one of a single head.
        highest: largest base of these.
        descending: from the largest to the smallest.
        head_dim: of the search.
        stride: of the search, between candidates.
        length: of the search, distances looked at.

    Raises:
        ConfigError: an unknown kind, bases that are not positive, not one a head, or in no order.

    Source: Haoran Lian et al. Breaking the Stage Barrier: A Novel Single-Stage Approach to Long Context Extension for Large
    Language Models. arXiv 2412.07171, 2024.
    """
    check_positive(num_heads=num_heads)
    if not isinstance(kind, str):
        bases = tuple(kind)
        if len(bases) != num_heads:
            raise ConfigError(f"{len(bases)} bases for {num_heads} key heads; give one for each")
        for base in bases:
            check_base(base)
        if descending:
            raise ConfigError("bases that are given have their own order; leave descending=False")
        return tuple(float(b) for b in bases)
    if kind == "uniform":
        _check_range(lowest, highest)
        step = (highest - lowest) / max(num_heads - 1, 1)
        bases = tuple(float(lowest + h * step) for h in range(num_heads))
    elif kind == "search":
        bases = search_bases(num_heads, head_dim, lowest=lowest, highest=highest, stride=stride, length=length)
    elif kind == "preset":
        if num_heads != len(PUBLISHED):
            raise ConfigError(
                f"the published bases are of 32 key heads and there are {num_heads}; use 'uniform' or 'search'"
            )
        bases = tuple(float(b) for b in PUBLISHED)
    else:
        raise ConfigError(f"bases are 'uniform', 'search', 'preset' or numbers, one a key head; got {kind!r}")
    return bases[::-1] if descending else bases


def search_bases(
    num_heads: int,
    head_dim: int = 128,
    *,
    lowest: float = 1e6,
    highest: float = 5e6,
    stride: float = 3e4,
    length: int = 4096,
) -> tuple[float, ...]:
    """Choose bases so that the `waveform` of one head peaks where that of another dips; ascending.

    Greedy: from {lowest} on, the candidate lowest + j·stride is added whose peaks are nearest to the valleys so far and
    whose valleys are nearest to the peaks so far, by the sum of these distances; ties go to the smallest base.

    The paper does not define its waveform. This is a reconstruction, and it does not give the paper's own table (which is
    the preset "preset"): the waveform is Σ_i cos(m ω_i) at m = 0 … length − 1, extrema are strict and inside, and each is
    paired with the nearest opposite one.

    Raises:
        ConfigError: more heads than candidates; a length within which a waveform has no peak or no valley.
    """
    check_positive(num_heads=num_heads, length=length)
    check_rotary_width(head_dim)
    _check_range(lowest, highest)
    if not 0 < stride < math.inf:
        raise ConfigError(f"stride is a positive distance between candidate bases; got {stride!r}")
    steps = math.floor((highest - lowest) / stride * (1 + 1e-12))  # 0.3 / 0.1 is 2.9999999999999996
    if num_heads > steps + 1:
        raise ConfigError(
            f"{num_heads} heads and only {steps + 1} bases between {lowest:g} and {highest:g} at a stride of {stride:g}; "
            "lower the stride"
        )
    candidates = [float(lowest + j * stride) for j in range(steps + 1)]
    peaks, valleys = zip(*(_extrema(base, head_dim, length) for base in candidates), strict=True)

    chosen = [0]
    taken_peaks, taken_valleys = torch.zeros(length, dtype=torch.bool), torch.zeros(length, dtype=torch.bool)
    for _ in range(num_heads - 1):
        taken_peaks[peaks[chosen[-1]]] = True
        taken_valleys[valleys[chosen[-1]]] = True
        to_peak, to_valley = _distance_to(taken_peaks), _distance_to(taken_valleys)
        cost = [int(to_valley[p].sum() + to_peak[v].sum()) for p, v in zip(peaks, valleys, strict=True)]
        chosen.append(min((j for j in range(len(candidates)) if j not in chosen), key=lambda j: (cost[j], j)))
    return tuple(candidates[j] for j in sorted(chosen))


def _extrema(base: float, head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    wave = waveform(geometric(head_dim, base), torch.arange(length, device="cpu"))
    peaks, valleys = extrema(wave)
    if not len(peaks) or not len(valleys):
        raise ConfigError(
            f"the waveform of base {base:g} and head_dim {head_dim} has no peak or no valley within {length} tokens; "
            "give a larger length"
        )
    return peaks, valleys


def _distance_to(marks: Tensor) -> Tensor:
    """Return the distance of each place to the nearest mark."""
    at = torch.nonzero(marks)[:, 0]
    place = torch.arange(len(marks))
    right = torch.searchsorted(at, place)
    after = at[right.clamp(max=len(at) - 1)]
    before = at[(right - 1).clamp(min=0)]
    return torch.minimum((place - before).abs(), (place - after).abs())


def _check_range(lowest: float, highest: float) -> None:
    check_base(lowest)
    check_base(highest)
    if lowest > highest:
        raise ConfigError(f"the lowest base {lowest:g} is above the highest, {highest:g}")
