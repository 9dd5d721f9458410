"""A ladder of frequencies between two periods, for coordinates that are measured rather than counted."""

from __future__ import annotations

import math

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.spectrum import Spectrum


def physical_period_frequencies(period_min: float, period_max: float, n: int) -> Spectrum:
    """ω_i = 2π / T_i,  T_i = T_min (T_max / T_min)^(i/(n−1)),  i = 0 … n − 1: both periods are taken, the shortest first.

    The ladder of RoPE divides by n instead and leaves its slowest end out. n = 1 gives T_min.

    Args:
        period_min: T_min, in units of the coordinate.
        period_max: T_max.
        n: frequencies.

    Raises:
        ConfigError: periods that are not positive, or in the wrong order.

    Example:
        >>> [round(p, 6) for p in physical_period_frequencies(0.01, 1.0, 3).wavelengths()]
        [0.01, 0.1, 1.0]
    """
    check_positive(n=n)
    for name, period in (("period_min", period_min), ("period_max", period_max)):
        if isinstance(period, bool) or not isinstance(period, int | float) or not 0 < period < math.inf:
            raise ConfigError(f"{name} is a positive number, in units of the coordinate; got {period!r}")
    if period_max < period_min:
        raise ConfigError(f"period_min {period_min:g} is longer than period_max {period_max:g}; exchange them")
    ratio = period_max / period_min
    periods = [period_min * ratio ** (i / (n - 1)) if n > 1 else period_min for i in range(n)]
    origin = f"physical_period_frequencies({float(period_min)!r}, {float(period_max)!r}, {n})"
    return Spectrum(tuple(2 * math.pi / p for p in periods), origin=origin)
