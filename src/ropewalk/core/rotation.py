"""Turning pairs of channels (placeholder until the tuned version lands)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, suggest

Pairing = Literal["interleaved", "half"]


def check_pairing(pairing: str) -> Pairing:
    if pairing not in ("interleaved", "half"):
        raise ConfigError(
            f"pairing {pairing!r}; allowed are 'interleaved', 'half'.{suggest(pairing, ['interleaved', 'half'])}"
        )
    return pairing  # type: ignore[return-value]


def tables(angles: Tensor, dtype: torch.dtype, scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, *, inverse: bool = False) -> Tensor:
    P = cos.shape[-1]
    dt = torch.float64 if x.dtype == torch.float64 else torch.float32
    if inverse:
        sin = -sin
    y = x[..., : 2 * P].to(dt)
    cos, sin = cos.to(dt), sin.to(dt)
    if pairing == "half":
        a, b = y[..., :P], y[..., P:]
        r = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    else:
        a, b = y[..., 0::2], y[..., 1::2]
        r = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([r.to(x.dtype), x[..., 2 * P :]], -1)
