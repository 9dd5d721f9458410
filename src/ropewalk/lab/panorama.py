"""What goes with `ropewalk.rotary.spherope` when a diffusion model makes a panorama: noise, guidance, decoding, and the seam.

Source: SpheRoPE: Zero-Shot Optimization-Free 360° Panorama Generation with Spherical RoPE. arXiv 2606.32033, 2026.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError


def phase_remaster(x: Tensor, radius: float = 12.0) -> Tensor:
    """Return noise whose slow waves run along the rows near the poles, where a row is nearly one point.

    Rows are drawn together to their mean by α = 1 − cos t, t the latitude of their middle. Of the result the phases of waves of
    at most ``radius`` periods are taken; all other phases, and all amplitudes, are the noise's own.

    Args:
        x: (B, C, H, W) noise.
        radius: of the disc of frequencies, 12 for 64 x 128; below 0: x stays.
    """
    if x.ndim != 4 or not x.is_floating_point():
        raise ShapeError(f"noise has shape {tuple(x.shape)} and dtype {x.dtype}; expected real (B, C, H, W)")
    rows, columns = x.shape[-2:]
    wide = x.double()
    latitude = math.pi * (torch.arange(rows, dtype=torch.float64, device=x.device) + 0.5) / rows - math.pi / 2
    pull = (1 - latitude.cos())[:, None]
    drawn = (1 - pull) * wide + pull * wide.mean(-1, keepdim=True)
    own, other = (torch.fft.fftshift(torch.fft.fft2(t, norm="ortho"), dim=(-2, -1)) for t in (wide, drawn))
    ky = torch.arange(rows, device=x.device) - rows // 2
    kx = torch.arange(columns, device=x.device) - columns // 2
    slow = (ky[:, None].square() + kx.square()).double().sqrt() <= radius
    made = torch.polar(own.abs(), torch.where(slow, other.angle(), own.angle()))
    return torch.fft.ifft2(torch.fft.ifftshift(made, dim=(-2, -1)), norm="ortho").real.to(x.dtype)


def panorama_guidance(
    unconditional: Tensor,
    conditional: Tensor,
    geometry: Tensor,
    scale: float,
    geometry_scale: float = 6.0,
    *,
    step: int = 2,
    first: int = 2,
) -> Tensor:
    """Return u + w (c − u) + γ (g − c): guidance by the prompt, and away from flat pictures by a prompt that names the geometry.

    Args:
        unconditional: u, what the model says to no prompt.
        conditional: c, to the user's.
        geometry: g, to the user's with words about the panorama.
        scale: w; 3.5 for FLUX.1, 4 for FLUX.2.
        geometry_scale: γ; about 3 for LTX.
        step: of denoising, counted from 0.
        first: step from which on it is used; before that, c.
    """
    if not unconditional.shape == conditional.shape == geometry.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (unconditional, conditional, geometry))
        raise ShapeError(f"the three predictions have shapes {shapes}; they are of one picture")
    if step < first:
        return conditional
    return unconditional + scale * (conditional - unconditional) + geometry_scale * (geometry - conditional)


def circular_pad(x: Tensor, columns: int) -> Tensor:
    """Return x (..., W) with the columns that lie beyond its seam on both sides, (..., W + 2 · columns), for a decoder."""
    if not 0 <= columns <= x.shape[-1]:
        raise ConfigError(f"columns to wrap around are 0 to {x.shape[-1]}, all there are; got {columns!r}")
    return torch.cat([x[..., x.shape[-1] - columns :], x, x[..., :columns]], -1)


def circular_crop(x: Tensor, columns: int, upscale: int = 1) -> Tensor:
    """Undo `circular_pad` after decoding, which made ``upscale`` columns of one."""
    cut = columns * upscale
    if columns < 0 or upscale < 1 or 2 * cut >= x.shape[-1]:
        raise ConfigError(
            f"{columns} columns made {upscale} times as wide on both sides of {x.shape[-1]} leave nothing"
        )
    return x[..., cut : x.shape[-1] - cut]


def seam_score(x: Tensor) -> float:
    """Mean |x_0 − x_{W−1}| over the mean of neighbouring columns inside: 1 without a seam, larger with one.

    Args:
        x: (..., W) pictures, three columns or more.
    """
    if x.shape[-1] < 3:
        raise ShapeError(f"pictures have {x.shape[-1]} columns; a seam needs 3 or more to compare with")
    wide = x.double()
    seam, inside = (wide[..., 0] - wide[..., -1]).abs().mean(), wide.diff(dim=-1).abs().mean()
    return float(seam / inside.clamp(min=torch.finfo(torch.float64).tiny))
