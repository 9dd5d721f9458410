"""How far a spectrum can tell a similar key from a random one, and the smallest base that reaches a context."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.checks import check_length
from ropewalk.frequencies.spectrum import Spectrum, geometric
from ropewalk.frequencies.waveform import waveform

PUBLISHED_BASES = {
    1 << 10: 4.3e3, 1 << 11: 1.6e4, 1 << 12: 2.7e4, 1 << 13: 8.4e4, 1 << 14: 3.1e5, 1 << 15: 6.4e5,
    1 << 16: 2.1e6, 1 << 17: 7.8e6, 1 << 18: 3.6e7, 1 << 19: 6.4e7, 1 << 20: 5.1e8,
}  # fmt: skip
"""The paper's smallest bases for heads of 128 channels, by context length."""

_CHUNK = 1 << 16
_FIRST = 1 << 8


def first_negative(spectrum: Spectrum, max_length: int, *, unrotated: int = 0) -> int | None:
    """The smallest m ≤ max_length with B_m = Σ_i cos(mω_i) < 0; None if there is none that near.

    B_m is proportional to how much more a key like the query scores at distance m than a random one does.

    Args:
        spectrum: P frequencies, of any schedule.
        max_length: where the search ends; memory does not depend on it.
        unrotated: further pairs of the head that are not turned: each adds 1, and with enough of them B_m is never negative.

    Source: Xin Men, Mingyu Xu, Bingning Wang, Qingyu Zhang, Hongyu Lin, Xianpei Han, Weipeng Chen. Base of RoPE Bounds Context
    Length. arXiv 2405.14591, 2024.
    """
    check_positive(max_length=max_length)
    for start, negative in _negative(spectrum, max_length, unrotated):
        where = torch.nonzero(negative)
        if len(where):
            return start + int(where[0])
    return None


def count_negative(spectrum: Spectrum, length: int, *, unrotated: int = 0) -> int:
    """#{m : 0 ≤ m ≤ L, B_m < 0}. Arguments as in `first_negative`."""
    check_positive(length=length)
    return sum(int(negative.sum()) for _, negative in _negative(spectrum, length, unrotated))


def effective_length(spectrum: Spectrum, max_length: int, *, unrotated: int = 0) -> int | None:
    """The largest L with B_m ≥ 0 for all m ≤ L, whole numbers; None if it is not below ``max_length``.

    Arguments as in `first_negative`. The bound is not a strict one: a model has many layers.
    """
    at = first_negative(spectrum, max_length, unrotated=unrotated)
    return None if at is None else at - 1


def min_base(
    length: int, dim: int = 128, *, start: float = 2.0, step: float = 0.005, stop: float = 1e10, unrotated: int = 0
) -> float:
    """The first base of 10^(start + k · step), k = 0, 1, …, with B_m ≥ 0 for all m ≤ L.

    Larger bases may fail again: `safe_base` is beyond those.

    Args:
        length: L, tokens of the context.
        dim: channels that are turned.
        start: log₁₀ of the first base tried.
        step: of log₁₀.
        stop: largest base tried.
        unrotated: further pairs of the head, as in `first_negative`.

    Raises:
        ConfigError: no such base up to ``stop``.

    Source: as `first_negative`.
    """
    check_positive(length=length)
    for base in _grid(start, step, stop):
        if first_negative(geometric(dim, base), length, unrotated=unrotated) is None:
            return base
    raise ConfigError(
        f"no base up to {stop:g} keeps all distances up to {length} apart with {dim} channels; give a larger stop, or a "
        "wider head"
    )


def safe_base(
    length: int, dim: int = 128, *, start: float = 2.0, step: float = 0.005, stop: float = 1e8, unrotated: int = 0
) -> float:
    """10^step times the largest base of the grid up to ``stop`` that has a B_m < 0, m ≤ L. Arguments as in `min_base`.

    Between that and ``stop`` no base of the grid fails. The bases that do not fail are no interval.
    """
    check_positive(length=length)
    grid = list(_grid(start, step, stop))
    for base in reversed(grid):
        if first_negative(geometric(dim, base), length, unrotated=unrotated) is not None:
            if base == grid[-1]:
                raise ConfigError(
                    f"base {base:g} at the end of the search still fails at {length} tokens; give a larger stop"
                )
            return base * 10**step
    return grid[0]


def fitted_base(length: float) -> float:
    """0.0424 L^1.628: the paper's fit to its smallest bases, for heads of 128 channels."""
    check_length("length", length)
    return 0.0424 * length**1.628


def too_short(spectrum: Spectrum, length: int, *, unrotated: int = 0) -> str | None:
    """Say why these frequencies do not reach a context of that many tokens; None where they do."""
    at = first_negative(spectrum, length, unrotated=unrotated)
    if at is None:
        return None
    base = spectrum.base
    named = (
        ""
        if base is None
        else f" Base {base:g} is too small: min_base({length}, {2 * len(spectrum.inv_freq)}) finds one."
    )
    return (
        f"from {at} tokens of distance on, a key like the query can score less than a random one, and the context has "
        f"{length}.{named}"
    )


def abel_bound(spectrum: Spectrum, distance: float) -> float:
    """(1/P) Σ_n |S_n|,  S_n = Σ_(l<n) e^(imω_l),  n = 1 … P: the older bound on a logit at distance m.

    The score is at most max_l |h_(l+1) − h_l| times the sum, where h_l is the product of query and key in plane l.

    Source: Jianlin Su and others, arXiv 2104.09864, 2021, section 3.4.3.
    """
    if not spectrum.inv_freq:
        raise ConfigError("a spectrum without planes has no bound")
    if not math.isfinite(distance):
        raise ConfigError(f"distance is a number; got {distance!r}")
    angles = distance * spectrum.tensor()
    partial = torch.complex(angles.cos(), angles.sin()).cumsum(0)
    return float(partial.abs().mean())


def _negative(spectrum: Spectrum, length: int, unrotated: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (start, B_m < 0 for the next m); chunks grow, since a base that fails usually fails early."""
    if isinstance(unrotated, bool) or not isinstance(unrotated, int) or unrotated < 0:
        raise ConfigError(f"unrotated is a number of pairs, from 0 on; got {unrotated!r}")
    start, size = 0, _FIRST
    while start <= length:
        end = min(start + size, length + 1)
        distance = torch.arange(start, end, dtype=torch.float64, device="cpu")
        yield start, waveform(spectrum, distance) + unrotated < 0
        start, size = end, min(2 * size, _CHUNK)


def _grid(start: float, step: float, stop: float) -> Iterator[float]:
    if not (math.isfinite(start) and 0 < step < math.inf and math.isfinite(stop) and stop >= 10**start):
        raise ConfigError(
            f"bases run from 10^start to stop by factors 10^step; got start={start!r}, step={step!r}, {stop!r}"
        )
    k = 0
    while (base := 10 ** (start + k * step)) <= stop * (1 + 1e-12):
        yield base
        k += 1
