"""Position interpolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.frequencies.checks import check_factor, check_length

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum


def linear(spectrum: Spectrum, factor: float) -> Spectrum:
    """ω_i / s: every plane turns s times slower, so that s times as many tokens fill the angles seen in training.

    Args:
        spectrum: as trained.
        factor: s, new context over the original one.

    Source: Shouyuan Chen, Sherman Wong, Liangjian Chen, Yuandong Tian. Extending Context Window of Large Language Models
    via Positional Interpolation. arXiv 2306.15595, 2023.
    """
    check_factor(factor)
    return spectrum.then((w / factor for w in spectrum.inv_freq), f"linear({factor!r})")


def dynamic_linear(spectrum: Spectrum, length: float, original: float) -> Spectrum:
    """ω_i L / n for n > L, ω_i up to there: interpolation for the length n that is fixed here.

    Args:
        spectrum: as trained.
        length: n, tokens of the context it is made for.
        original: L, tokens of the training context.

    Source: Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole. YaRN: Efficient Context Window Extension of Large
    Language Models. arXiv 2309.00071, 2023, section 3.3.
    """
    check_length("length", length)
    check_length("original", original)
    return linear(spectrum, max(length / original, 1.0))
