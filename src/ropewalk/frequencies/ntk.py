"""NTK-aware scaling in its published forms: a larger base, by parts, and growing with the length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.checks import check_factor, check_length

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum


def ntk(spectrum: Spectrum, factor: float) -> Spectrum:
    """ω_i s^(−i/(P−1)): the fastest plane stays and the slowest is divided by s.

    Of a geometric spectrum of width d it is the one with base · s^(d/(d−2)). A single plane is the fastest, and stays.

    Args:
        spectrum: as trained.
        factor: s, new context over the original one.

    Source: bloc97, NTK-Aware Scaled RoPE, 2023; written down by Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole,
    arXiv 2309.00071, 2023.
    """
    check_factor(factor)
    return spectrum.then(_divided(spectrum, factor), f"ntk({factor!r})")


def ntk_factors(planes: int, factor: float) -> tuple[float, ...]:
    """s^(i/(P−1)): what NTK-aware scaling divides each plane by."""
    return tuple(factor ** (i / max(planes - 1, 1)) for i in range(planes))


def ntk_by_parts(
    spectrum: Spectrum, factor: float, original: float, *, slow: float = 1.0, fast: float = 32.0
) -> Spectrum:
    """(1 − g_i) ω_i / s + g_i ω_i,  g_i = (r_i − slow) / (fast − slow) between 0 and 1,  r_i = L ω_i / 2π.

    Planes that turned often in training keep their frequency, those that did not complete a turn are interpolated.
    `yarn` with ``ramp="paper"`` is this with a temperature.

    Args:
        spectrum: as trained.
        factor: s, new context over the original one.
        original: L, tokens of the training context.
        slow: turns up to which a plane is interpolated in full (α in the paper).
        fast: turns from which it stays (β).

    Source: Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole. YaRN: Efficient Context Window Extension of Large
    Language Models. arXiv 2309.00071, 2023, definition 2.
    """
    check_factor(factor)
    values = blend(spectrum.inv_freq, factor, keep_by_turns(spectrum.turns(original), slow, fast))
    options = "".join(f", {n}={v!r}" for n, v, usual in (("slow", slow, 1.0), ("fast", fast, 32.0)) if v != usual)
    return spectrum.then(values, f"ntk_by_parts({factor!r}, original={original!r}{options})")


def keep_by_turns(turns: tuple[float, ...], slow: float, fast: float) -> tuple[float, ...]:
    """Return how much of each plane is kept, from 0 at ``slow`` turns to 1 at ``fast``. Planes may turn backwards."""
    if not 0 <= slow < fast < math.inf:
        raise ConfigError(
            f"a plane is interpolated up to slow and kept from fast, 0 <= slow < fast; got {slow!r}, {fast!r}"
        )
    return tuple(min(max((abs(r) - slow) / (fast - slow), 0.0), 1.0) for r in turns)


def blend(inv_freq: tuple[float, ...], factor: float, keep: tuple[float, ...]) -> tuple[float, ...]:
    """Return (1 − g_i) ω_i / s + g_i ω_i; exactly ω_i and ω_i / s at the ends."""
    return tuple((1 - g) * (w / factor) + g * w for w, g in zip(inv_freq, keep, strict=True))


def dynamic_ntk(spectrum: Spectrum, length: float, original: float, *, factor: float = 1.0) -> Spectrum:
    """ω_i (a n/L − (a − 1))^(−i/(P−1)) for n > L, ω_i up to there: NTK-aware for the length n that is fixed here.

    a = 1 is NTK-aware scaling by n/L. For an encoding that follows the length by itself: `ropewalk.DynamicNTK`.

    Args:
        spectrum: as trained.
        length: n, tokens of the context it is made for.
        original: L, tokens of the training context.
        factor: a; "factor" in the configurations of transformers.

    Source: emozilla, Dynamically Scaled RoPE, 2023; written down in arXiv 2309.00071, 2023.
    """
    check_length("length", length)
    check_length("original", original)
    check_factor(factor)
    scale = factor * max(length, original) / original - (factor - 1)
    return spectrum.then(
        _divided(spectrum, scale), f"dynamic_ntk({length!r}, original={original!r}, factor={factor!r})"
    )


def _divided(spectrum: Spectrum, scale: float) -> list[float]:
    factors = ntk_factors(len(spectrum.inv_freq), scale)
    return [w / f for w, f in zip(spectrum.inv_freq, factors, strict=True)]
