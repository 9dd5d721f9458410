"""How far an honest rotation may be from the exact one."""

from __future__ import annotations

import torch
from torch import Tensor

UNITS = {
    torch.bfloat16: 2.0**-9,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
"""Largest relative error of rounding once."""

FLOAT32 = UNITS[torch.float32]

ELEMENT = 6.0
"""cos, sin, two products and their sum, each rounded, are at most 4 units of the length of a pair, with a factor on them 5."""

SYSTEMATIC = 1.5
"""What may be left of that in the mean over many tokens: rounded tables do not err one way."""


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
    return position.abs().double() * frequency * units * FLOAT32
