"""Spectra of galaxies that are made up, and a small masked autoencoder for spectra of any instrument.

    instruments = [Instrument(3600, 9800, 200, 900.0), Instrument(3800, 7000, 140, 2000.0)]
    spectra = synthetic_spectra(64, instruments[0], torch.Generator().manual_seed(0))
    patches = rw.patch_spectrum(spectra.wavelength, spectra.flux, 5)
    model = SpectrumMAE(patch=5)
    loss = model.loss(patches, random_mask(patches.valid, 0.6), sigma=resolution_width(900.0))

After the abstract of OmniSpectra (see `ropewalk.rotary.wavelength_rope.WavelengthRoPE`); the sizes are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

import ropewalk as rw
from ropewalk.coordinates.spectra import Patches
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.embedding.gated_fourier import (
    GatedFourierDecoder,
    ResolutionGatedFourier,
    resolution_width,
    weighted_flux_loss,
)
from ropewalk.lab.model import Block, ModelConfig, RMSNorm

LINES = (3727.0, 4102.0, 4341.0, 4861.0, 4959.0, 5007.0, 6548.0, 6563.0, 6584.0, 6717.0, 6731.0)
"""Wavelengths at rest of bright lines of galaxies, in Å: oxygen, hydrogen, nitrogen, sulphur."""

KINDS = torch.tensor(
    [
        [1.0, 0.3, 0.5, 1.0, 0.3, 0.9, 0.1, 2.8, 0.3, 0.4, 0.3],  # young stars
        [0.8, 0.1, 0.2, 0.4, 1.0, 3.0, 0.6, 1.3, 1.8, 0.5, 0.5],  # an active nucleus
        [0.3, -0.5, -0.4, -0.3, 0.1, 0.2, 0.2, 0.3, 0.6, 0.2, 0.2],  # old stars: hydrogen is missing light
    ]
)
"""Strength of each line in each kind of galaxy."""


@dataclass(frozen=True)
class Instrument:
    """A grid of pixels at equal steps of wavelength.

    Attributes:
        first: wavelength of the first pixel, in Å.
        last: of the last one.
        pixels: how many.
        power: resolving power λ/Δλ.
    """

    first: float
    last: float
    pixels: int
    power: float

    def __post_init__(self) -> None:
        check_positive(pixels=self.pixels)
        if not 0 < self.first < self.last or not self.power > 0:
            raise ConfigError(
                f"an instrument sees from {self.first} to {self.last} Å at power {self.power}; give a range that rises from "
                "above 0 and a positive power"
            )

    def wavelengths(self) -> Tensor:
        """Return the grid, float64."""
        return torch.linspace(self.first, self.last, self.pixels, dtype=torch.float64)


class Spectra(NamedTuple):
    """What an instrument saw: wavelength (L,), flux and weight (n, L), kind and redshift (n,) of each galaxy."""

    wavelength: Tensor
    flux: Tensor
    weight: Tensor
    kind: Tensor
    redshift: Tensor


def synthetic_spectra(
    n: int,
    instrument: Instrument,
    generator: Generator,
    *,
    redshift: tuple[float, float] = (0.0, 0.3),
    noise: float = 0.02,
) -> Spectra:
    """Draw spectra: a smooth continuum and the lines of a kind of galaxy, redshifted and seen by an instrument.

    Args:
        n: galaxies.
        instrument: which sees them.
        generator: of everything random.
        redshift: smallest and largest z.
        noise: standard deviation of a pixel, over the mean flux.
    """
    check_positive(n=n)
    if not -1 < redshift[0] <= redshift[1]:
        raise ConfigError(f"redshifts from {redshift[0]} to {redshift[1]}; they are above −1, the smaller one first")
    u = instrument.wavelengths().log()
    z = redshift[0] + (redshift[1] - redshift[0]) * torch.rand(n, dtype=torch.float64, generator=generator)
    kind = torch.randint(len(KINDS), (n,), generator=generator)
    at_rest = u - (1 + z).log()[:, None]
    slope = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    continuum = (slope * (at_rest - 8.5)).exp()
    lines = torch.tensor(LINES, dtype=torch.float64).log()
    width = 4e-4**2 + float(resolution_width(instrument.power)) ** 2  # 120 km/s, and the instrument
    shapes = (-0.5 * (at_rest[..., None] - lines) ** 2 / width).exp()
    # A line has as much light however wide it is seen.
    light = KINDS.double()[kind] * (4e-4 / width**0.5)
    flux = continuum * (1 + (shapes * light[:, None]).sum(-1))
    flux = flux / flux.mean(1, keepdim=True)
    flux = flux + noise * torch.randn(flux.shape, dtype=torch.float64, generator=generator)
    weight = torch.full_like(flux, 1 / max(noise, 1e-3) ** 2)
    return Spectra(instrument.wavelengths(), flux, weight, kind, z)


def random_mask(valid: Tensor, ratio: float, generator: Generator | None = None) -> Tensor:
    """Return which patches are hidden: the share ``ratio`` of each row's real ones, rounded down, at least 1 of them seen."""
    if not 0 <= ratio < 1:
        raise ConfigError(f"ratio is the share of patches that are hidden, from 0 to below 1; got {ratio!r}")
    noise = torch.rand(valid.shape, generator=generator).to(valid.device).masked_fill(~valid, 2.0)
    rank = noise.argsort(1).argsort(1)
    count = valid.sum(1, keepdim=True)
    return (rank < torch.minimum((ratio * count).floor(), (count - 1).clamp(min=0))) & valid


class SpectrumMAE(nn.Module):
    """Sees some patches of a spectrum and predicts the flux of the others, at any coordinates and resolution.

    Args:
        patch: pixels of a patch.
        hidden_size: width.
        num_layers: blocks of the encoder.
        num_heads: heads.
        encoding: of the catalog, by name.
        coordinate: "log": patches at ln λ; "linear": at λ over its mean; "index": counted.
        frequencies: of the decoder's features.
        periods: shortest and longest of them, in ln λ.
        gated: whether they are gated by the resolution.
    """

    def __init__(
        self,
        patch: int,
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        *,
        encoding: str = "wavelength_rope",
        coordinate: Literal["log", "linear", "index"] = "log",
        frequencies: int = 16,
        periods: tuple[float, float] = (1e-3, 0.1),
        gated: bool = True,
    ) -> None:
        super().__init__()
        check_positive(patch=patch)
        if coordinate not in ("log", "linear", "index"):
            raise ConfigError(f"coordinate is 'log', 'linear' or 'index'; got {coordinate!r}")
        config = ModelConfig(1, hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, causal=False)

        def block() -> Block:
            return Block(
                config, rw.build(encoding, head_dim=config.width, num_heads=num_heads, hidden_size=hidden_size)
            )

        self.patch, self.coordinate, self.gated = patch, coordinate, gated
        self.embed = nn.Linear(2 * patch + 2, hidden_size)
        self.hidden = nn.Parameter(torch.randn(hidden_size) / hidden_size**0.5)
        self.encoder = nn.ModuleList(block() for _ in range(num_layers))
        self.decoder = block()
        self.norms = nn.ModuleList([RMSNorm(hidden_size), RMSNorm(hidden_size)])
        self.flux = GatedFourierDecoder(hidden_size, ResolutionGatedFourier(frequencies, *periods), hidden_size)

    def positions(self, patches: Patches) -> rw.Positions:
        """Return where the patches are, in the coordinate of the model."""
        if self.coordinate == "log":
            return patches.positions
        if self.coordinate == "index":
            return rw.Positions.arange(patches.valid.shape[1], valid=patches.valid, device=patches.valid.device)
        wavelength = patches.centre.exp()
        real = torch.where(patches.valid, wavelength, 0.0)
        mean = real.sum(1, keepdim=True) / patches.valid.sum(1, keepdim=True).clamp(min=1)
        return rw.Positions(wavelength / mean, valid=patches.valid)

    def latents(self, patches: Patches, masked: Tensor | None = None) -> Tensor:
        """Return the encoder's output (b, P, D); hidden patches are seen by nobody."""
        if patches.flux.shape[-1] != self.patch:
            raise ShapeError(
                f"the model was made for patches of {self.patch} pixels and these have {patches.flux.shape[-1]}"
            )
        seen = patches.valid if masked is None else patches.valid & ~masked
        real = patches.real & seen[..., None]
        squares = torch.where(real, patches.flux**2, 0.0).sum((1, 2), keepdim=True)
        scale = (squares / real.sum((1, 2), keepdim=True).clamp(min=1)).sqrt().clamp(min=1e-6)
        facts = [
            patches.flux / scale,
            patches.real,
            scale.log().expand_as(patches.flux)[..., :1],
            patches.width[..., None],
        ]
        x = self.embed(torch.cat([f.to(self.hidden.dtype) for f in facts], -1))
        where = self.positions(patches)
        where = where.map_sides(lambda t: t.with_columns(valid=seen))
        for layer in self.encoder:
            x = layer(x, where)
        return self.norms[0](x)

    def forward(
        self, patches: Patches, masked: Tensor, sigma: Tensor | float = 0.0, coordinate: Tensor | None = None
    ) -> Tensor:
        """Return the flux over the scale of the seen pixels, (b, P, m).

        Args:
            patches: of the spectra.
            masked: (b, P), True for hidden patches.
            sigma: width of the instrument in ln λ (`resolution_width`), a number or (b, P, m).
            coordinate: (b, P, m), ln λ to predict at; None: the pixels.
        """
        x = torch.where(masked[..., None], self.hidden, self.latents(patches, masked))
        x = self.norms[1](self.decoder(x, self.positions(patches)))
        at = patches.coordinate if coordinate is None else coordinate
        return self.flux(x, at, patches.centre, sigma if self.gated else 0.0)

    def loss(
        self, patches: Patches, masked: Tensor, sigma: Tensor | float = 0.0, max_weight: float = float("inf")
    ) -> Tensor:
        """Return the error on hidden pixels, weighted by their inverse variances."""
        asked = patches.real & masked[..., None]
        return weighted_flux_loss(self(patches, masked, sigma), patches.flux, asked, patches.weight, max_weight)
