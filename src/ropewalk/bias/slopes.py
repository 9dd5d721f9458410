"""The slopes of ALiBi, for any number of heads."""

from __future__ import annotations

import torch
from torch import Tensor


def alibi_slopes(num_heads: int) -> Tensor:
    """m_h = 2^(−8h/H), h = 1 … H, for a power of two H (float64).

    Otherwise with P the largest power of two below H: the P slopes of P heads, then the 1st, 3rd, 5th, ... of the 2P
    slopes of 2P heads until there are H.
    """
    power = 1 << (max(num_heads, 1).bit_length() - 1)
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-8.0 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return torch.tensor(slopes[:num_heads], dtype=torch.float64, device="cpu")
