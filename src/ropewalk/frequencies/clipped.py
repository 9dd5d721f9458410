"""CoPE, clipped RoPE: the slowest planes are slowed down to a stop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.checks import check_length

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum

Clipping = Literal["soft", "hard"]


def clipped(spectrum: Spectrum, planes: int = 20, mode: Clipping = "soft") -> Spectrum:
    """ω_(s+t) (1 + cos(πt / (c − 1))) / 2,  t = 0 … c − 1: a raised cosine over the last c = min(n, P) planes; s = P − c.

    The first of them keeps its frequency and the last stops, so a single one is left alone. ``mode="hard"`` stops all of them
    at once. It is the frequencies that are tapered and not the amplitudes.

    Apply it after other scaling: that looks at the frequencies as trained, and the order matters for whatever depends on them.

    Args:
        spectrum: any, already scaled to the context.
        planes: n, how many of the last planes; 20 of 64 in the paper, and not meant for other widths. `planes_beyond` counts
            those whose period is longer than the training context.
        mode: "soft" or "hard".

    Raises:
        ConfigError: a negative number of planes, an unknown mode.

    Source: Haoran Li, Sucheng Ren, Alan Yuille, Feng Wang. CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context
    LLMs. arXiv 2602.05258, 2026.
    """
    if isinstance(planes, bool) or not isinstance(planes, int) or planes < 0:
        raise ConfigError(f"planes is a whole number from 0 on; got {planes!r}")
    if mode not in ("soft", "hard"):
        raise ConfigError(f"mode is 'soft' or 'hard'; got {mode!r}")
    count = min(planes, len(spectrum.inv_freq))
    start = len(spectrum.inv_freq) - count
    tapered = [w * _taper(t, count, mode) for t, w in enumerate(spectrum.inv_freq[start:])]
    return spectrum.then((*spectrum.inv_freq[:start], *tapered), f"clipped({planes}, {mode!r})")


def _taper(t: int, count: int, mode: Clipping) -> float:
    if mode == "hard":
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * t / (count - 1))) if count > 1 else 1.0


def planes_beyond(spectrum: Spectrum, length: float) -> int:
    """#{i : 2π / ω_i > L}: planes whose period is longer than a context of L tokens; those that stand still count."""
    check_length("length", length)
    return sum(period > length for period in spectrum.wavelengths())


def unseen_planes(spectrum: Spectrum, train_length: float) -> int:
    """#{i : 0 < L ω_i < 2π}: planes that turn, and meet angles beyond L tokens that they never met in training."""
    return sum(0 < abs(r) < 1 for r in spectrum.turns(train_length))
