"""How far an honest rotation may be from the exact one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

UNITS = {
    torch.bfloat16: 2.0**-9,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
"""Largest error of rounding once, for bfloat16 that of numbers below 1, as cos and sin are without an attention factor."""

FLOAT32 = UNITS[torch.float32]

ELEMENT = 6.0
"""cos, sin, two products and their sum, each rounded, are at most 4 units of the length of a pair, with a factor on them 5."""

SYSTEMATIC = 2.0
"""What may be left of that in the mean over many tokens. cos and sin are rounded alike wherever they are the same, and where
sin is below half a step, a cos − b sin is a cos again: tables and sums err one way there, by up to a unit each."""

CHANCE = 6.0
"""What may be left over and above by chance, for one gain: about five times the root of what three roundings leave."""


def of_tables(unit: float, dtype: torch.dtype, factor: float) -> float:
    """Return the relative error of rounding cos and sin once, with a factor on them: beyond 1 steps are twice as wide."""
    step = torch.finfo(dtype).eps * 2.0 ** (math.ceil(math.log2(factor)) - 1)
    return max(unit, step / 2 / factor)


def systematic(unit: float, dtype: torch.dtype, factor: float, count: int) -> float:
    """Return what may be left in the mean over many tokens, relative to the gain.

    A slow plane has the same cos at all tokens, near the attention factor, and rounds it the same way at each of them;
    what is rounded after it, the products and their sum, errs both ways.

    Args:
        unit: relative error of rounding once.
        dtype: of the numbers.
        factor: the attention factor, which cos and sin are multiplied by before they are rounded.
        count: over how many gains the mean is taken.
    """
    return SYSTEMATIC * of_tables(unit, dtype, factor) + CHANCE * unit / math.sqrt(count)


def unit(*dtypes: torch.dtype) -> float:
    """Return the relative error of rounding to the coarsest of the dtypes, float32 at least.

    Engines make their tables in float32 whatever they turn, so that more cannot be asked of a float64 tensor.
    """
    return max(FLOAT32, *(UNITS[dtype] for dtype in dtypes))


def narrowest(*tensors: Tensor) -> torch.dtype:
    """Return the smallest dtype that holds all the numbers exactly: dumps are often widened before they are saved."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if all(bool((t.double().to(dtype).double() == t.double()).all()) for t in tensors):
            return dtype
    return torch.float64


def float32_angles(position: Tensor, inv_freq: Tensor) -> Tensor:
    """Return how far angles p ω made in float32 may be off.

    The frequency is a power of the base: its exponent is rounded, which costs |ln ω| units, the power and the reciprocal
    one each, and so does the product with the position.
    """
    frequency = inv_freq.abs().double()
    units = 3 + 1.5 * frequency.clamp(min=1e-300).log().abs()
    return position.abs().double() * (frequency * units * FLOAT32)
