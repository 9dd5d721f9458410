"""Noise that is a function of what it belongs to: never stored, never cast, the same in a prefill and in decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def normal(*keys: Tensor) -> Tensor:
    """Return standard normal numbers, float64: one for each place of the broadcast keys, unrelated between places.

    Args:
        keys: whole numbers (a seed, a layer, a head, a channel, …) and float64 positions, which count by their bits.
    """
    # Two uniform numbers a place, made normal after Box and Muller; the logarithm is of no zero.
    state = _state(keys)
    first, second = (_fraction(state + n) for n in (_GOLDEN, _FIRST))
    return (-2 * (1 - first).log()).sqrt() * (2 * math.pi * second).cos()


def uniform(*keys: Tensor) -> Tensor:
    """Return numbers from 0 to below 1 alike, float64, of the same keys as `normal`."""
    return _fraction(_state(keys) + _GOLDEN)


# The mixing function of splitmix64 (Guy Steele, Doug Lea, Christine Flood, 2014), in whole numbers that wrap around.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)


def _state(keys: Sequence[Tensor]) -> Tensor:
    state = keys[0].new_zeros((), dtype=torch.int64)
    for key in keys:
        state = _mixed(state + _GOLDEN + (key.double().view(torch.int64) if key.is_floating_point() else key.long()))
    return state


def _fraction(state: Tensor) -> Tensor:
    """53 bits, as a number below 1."""
    return _shifted(_mixed(state), 11).double() * 2.0**-53


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros, as numbers without a sign are shifted."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
