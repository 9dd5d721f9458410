"""HoPE: frequencies too slow for the training length are left out."""

from __future__ import annotations

import math

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.spectrum import Spectrum


def high_frequency(spectrum: Spectrum, train_length: float, *, keep_one: bool = True) -> Spectrum:
    """ω_i where ω_i ≥ 2π / L, else 0: only planes that make a full turn within the training length L are turned.

    So no angle of a single plane is new beyond L. Of base^(−2i/d) the first ⌊d ln(L/2π) / (2 ln base)⌋ + 1 planes are kept.

    Args:
        spectrum: all frequencies.
        train_length: L, of the training; it does not grow with the sequence.
        keep_one: keep plane 0 where none qualifies.

    Raises:
        ConfigError: a training length that is not positive and finite.

    Source: Yuhan Chen, Ang Lv, Jian Luan, Bin Wang, Wei Liu. HoPE: A Novel Positional Encoding Without Long-Term Decay for
    Enhanced Context Awareness and Extrapolation. arXiv 2410.21216, 2024.
    """
    check_train_length(train_length)
    kept = [i for i, w in enumerate(spectrum.inv_freq) if w >= 2 * math.pi / train_length]
    if not kept and keep_one:
        kept = [0] if spectrum.inv_freq else []
    return spectrum.keep(kept, origin=f"{spectrum.origin}.high_frequency({train_length!r})")


def check_train_length(length: float) -> None:
    """Check a training length."""
    number = isinstance(length, int | float) and not isinstance(length, bool)
    if not number or not 0 < length < math.inf:
        raise ConfigError(f"train_length is the positive number of tokens of the training; got {length!r}")
