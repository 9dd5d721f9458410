"""Frequencies of rotary encodings, as values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError


@dataclass(frozen=True)
class Spectrum:
    """Inverse frequencies with what belongs to them. Schedules are functions ``Spectrum -> Spectrum``.

    Args:
        inv_freq: radians a token, one for each rotary plane. A plane of frequency 0 is not turned.
        attention_factor: cos and sin are multiplied by it, so logits by its square.
        origin: where the numbers came from, for people.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    origin: str = ""

    def tensor(self) -> Tensor:
        """Return the inverse frequencies, float64 on the CPU."""
        return torch.tensor(self.inv_freq, dtype=torch.float64, device="cpu")


def geometric(dim: int, base: float = 10_000.0) -> Spectrum:
    """ω_i = base^(−2i/dim), i = 0 … dim/2 − 1: the frequencies of RoPE (Su et al., arXiv 2104.09864, 2021)."""
    check_rotary_width(dim)
    check_base(base)
    values = tuple(float(base) ** (-2 * i / dim) for i in range(dim // 2))
    return Spectrum(values, origin=f"geometric({dim}, base={float(base)!r})")


def check_rotary_width(dim: int) -> None:
    """Check a number of channels that are turned in pairs."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 0 or dim % 2:
        raise ConfigError(
            f"rotary encodings turn pairs of channels, so their width is even; got {dim!r}. For a part of the channels use "
            "Partial(encoding, dims)"
        )


def check_base(base: float) -> None:
    """Check the base of a geometric ladder."""
    if isinstance(base, bool) or not isinstance(base, int | float) or not 0 < base < float("inf"):
        raise ConfigError(f"base is a positive number; got {base!r}")
