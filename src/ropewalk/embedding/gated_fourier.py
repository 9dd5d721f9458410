"""Sines of a coordinate that are switched off where an instrument cannot resolve them, and a decoder that reads them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from ropewalk.core.errors import PositionError, ShapeError, check_positive
from ropewalk.frequencies.periods import physical_period_frequencies

FWHM = 2.355
"""Full width at half maximum of a Gaussian, in standard deviations, as instruments are specified."""


def resolution_width(resolving_power: Tensor | float) -> Tensor:
    """Return σ_u = 1 / (2.355 R), the width in ln λ of what an instrument of resolving power R = λ/Δλ makes of a line.

    Raises:
        PositionError: R that is zero, negative or NaN; infinite R is a perfect instrument.
    """
    power = torch.as_tensor(resolving_power, dtype=torch.float64)
    if not is_compiling() and not bool((power > 0).all()):
        raise PositionError("a resolving power is a positive number (infinite for a perfect instrument)")
    return 1 / (FWHM * power)


class ResolutionGatedFourier(nn.Module):
    """φ(u) = [g sin ν(u − u_c) | g cos ν(u − u_c)],  g = exp(−(ν σ_u)²/2),  ν_k = 2π / T_k.

    The gate is what a Gaussian of width σ_u leaves of a wave: a linear read-out of φ is that of the sines themselves convolved
    with the Gaussian. At the Nyquist frequency of a grid it is 0.0072 where σ_u is the step and 0.291 where it is half of it.

    Args:
        n: frequencies.
        period_min: T of the fastest: two steps of the finest grid to predict on.
        period_max: T of the slowest: two distances between neighbouring patches.

    Source: see `ropewalk.rotary.wavelength_rope.WavelengthRoPE`; the form of the gate is our reading.
    """

    def __init__(self, n: int, period_min: float, period_max: float) -> None:
        super().__init__()
        check_positive(n=n)
        self.n = n
        self.spectrum = physical_period_frequencies(period_min, period_max, n)

    def gate(self, sigma: Tensor | float, device: torch.device | None = None) -> Tensor:
        """Return g, (..., n) float64, in (0, 1]."""
        sigma = torch.as_tensor(sigma, dtype=torch.float64, device=device)
        if not is_compiling() and not sigma.is_meta and not bool(((sigma >= 0) & sigma.isfinite()).all()):
            raise PositionError("sigma is a width in units of the coordinate: finite, from 0 on; see resolution_width")
        return (-0.5 * (self.spectrum.tensor().to(sigma.device) * sigma[..., None]) ** 2).exp()

    def forward(self, u: Tensor, sigma: Tensor | float = 0.0, centre: Tensor | float = 0.0) -> Tensor:
        """Return (..., 2n), float64.

        Args:
            u: (...) coordinates.
            sigma: σ_u, a number or one for each coordinate.
            centre: u_c, likewise.
        """
        angles = (u.double() - centre)[..., None] * self.spectrum.tensor().to(u.device)
        gate = self.gate(sigma, u.device)
        return torch.cat([gate * angles.sin(), gate * angles.cos()], -1)

    def extra_repr(self) -> str:
        return self.spectrum.origin


class GatedFourierDecoder(nn.Module):
    """f(u) = MLP([latent, φ(u)]): a signal at any coordinate, at the resolution asked for.

    Args:
        latent_size: width of a token's latent.
        features: `ResolutionGatedFourier`, or none of its gates with σ = 0.
        hidden_size: of the MLP.

    Shapes: latent (..., D), u (..., m) around the token, the signal (..., m).
    """

    def __init__(self, latent_size: int, features: ResolutionGatedFourier, hidden_size: int = 128) -> None:
        super().__init__()
        check_positive(latent_size=latent_size, hidden_size=hidden_size)
        self.features = features
        self.latent = nn.Linear(latent_size, hidden_size)
        self.wave = nn.Linear(2 * features.n, hidden_size, bias=False)
        self.out = nn.Sequential(nn.GELU(), nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Linear(hidden_size, 1))

    def forward(self, latent: Tensor, u: Tensor, centre: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        """Return the signal.

        Args:
            latent: (..., D).
            u: (..., m) coordinates.
            centre: (...) of the token.
            sigma: σ_u, a number, or one for each coordinate, (..., m).
        """
        if u.shape[:-1] != latent.shape[:-1] or centre.shape != latent.shape[:-1]:
            raise ShapeError(
                f"latents {tuple(latent.shape)}, coordinates {tuple(u.shape)} and centres {tuple(centre.shape)} do not fit; "
                "expected (..., D), (..., m) and (...)"
            )
        wave = self.features(u, sigma, centre[..., None]).to(latent.dtype)
        return self.out(self.latent(latent)[..., None, :] + self.wave(wave))[..., 0]


def weighted_flux_loss(
    predicted: Tensor, flux: Tensor, asked: Tensor, weight: Tensor | None = None, max_weight: float = math.inf
) -> Tensor:
    """Return Σ w (f̂ − f)² / Σ w over the pixels asked for, w clipped to [0, w_max]; 0 where Σ w is.

    Args:
        predicted: f̂, any shape.
        flux: f.
        asked: True for the pixels that count.
        weight: inverse variances; None: 1 each.
        max_weight: w_max.
    """
    w = asked.to(predicted.dtype)
    if weight is not None:
        w = w * weight.clamp(0, max_weight).to(predicted.dtype)
    total = w.sum()
    error = torch.where(asked, predicted - flux.to(predicted.dtype), 0.0)
    return (w * error**2).sum() / torch.where(total > 0, total, 1.0)
