"""Spectra: pixels at wavelengths, on the grid of whatever instrument took them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.errors import PositionError, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens


def log_coordinate(wavelength: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return u = ln λ, float64; 0 where a pixel is not valid.

    A redshift multiplies all wavelengths by 1 + z, and so adds ln(1 + z) to every u; another unit shifts u too.

    Args:
        wavelength: λ, any shape, any unit of length.
        valid: False for pixels that say nothing, whatever their wavelength.

    Raises:
        PositionError: λ of a valid pixel that is zero, negative, NaN or infinite.
    """
    wide = wavelength.double()
    good = (wide > 0) & wide.isfinite()
    if valid is not None:
        if valid.dtype != torch.bool:
            raise PositionError(f"valid is True or False for each pixel; got {valid.dtype}")
        wide = torch.where(valid, wide, 1.0)
        good = good | ~valid
    if not is_compiling() and not wide.is_meta and not bool(good.all()):
        wrong = wavelength[~good].flatten()[:3].tolist()
        raise PositionError(
            f"a wavelength is a positive number; got {', '.join(f'{w:g}' for w in wrong)}. Mark pixels without one as not valid"
        )
    return wide.log()


class Patches(NamedTuple):
    """Runs of pixels, P a row, of up to p pixels each.

    Attributes:
        centre: (b, P) mean of ln λ over the pixels, float64.
        width: (b, P) largest ln λ less the smallest, float64.
        valid: (b, P) whether there is a patch: rows have different numbers of them.
        coordinate: (b, P, p) ln λ of each pixel, float64; the centre where there is none.
        flux: (b, P, p), 0 where there is no pixel.
        weight: (b, P, p) inverse variance; None: not known.
        real: (b, P, p) whether there is a pixel.
    """

    centre: Tensor
    width: Tensor
    valid: Tensor
    coordinate: Tensor
    flux: Tensor
    weight: Tensor | None
    real: Tensor

    @property
    def positions(self) -> Positions:
        """The patches as tokens at their centres."""
        return _placed(self.centre, self.width, self.valid)


def patch_spectrum(
    wavelength: Tensor, flux: Tensor, patch: int = 1, *, weight: Tensor | None = None, valid: Tensor | None = None
) -> Patches:
    """Leave out pixels that are not valid, and cut the others, in order, into runs of ``patch``; the last may be shorter.

    Args:
        wavelength: (L,) or (b, L).
        flux: likewise.
        patch: pixels of a run.
        weight: inverse variance of each flux.
        valid: False for pixels that say nothing.

    Raises:
        PositionError: wavelengths that are not positive.
        ShapeError: tensors of other shapes.
    """
    check_positive(patch=patch)
    rows = flux if flux.ndim == 2 else flux[None]
    if rows.ndim != 2:
        raise ShapeError(f"flux has shape {tuple(flux.shape)}; expected (pixels,) or (batch, pixels)")
    b, n = rows.shape
    sides = {}
    for name, given in (("wavelength", wavelength), ("weight", weight), ("valid", valid)):
        if given is None:
            continue
        if given.shape[-1] != n or given.ndim > 2 or (given.ndim == 2 and len(given) not in (1, b)):
            raise ShapeError(
                f"{name} has shape {tuple(given.shape)} and flux {tuple(flux.shape)}; give one for each pixel"
            )
        sides[name] = given.expand(b, n)
    keep = sides.get("valid", torch.ones(b, n, dtype=torch.bool, device=flux.device))
    u = log_coordinate(sides["wavelength"], keep)
    # Pixels to the front of their row, in order, and then cut.
    order = keep.int().argsort(dim=1, descending=True, stable=True)
    count = int(keep.sum(1).max()) if n else 0
    total = -(-count // patch)

    def cut(t: Tensor) -> Tensor:
        front = t.gather(1, order)[:, : total * patch]
        return torch.nn.functional.pad(front, (0, total * patch - front.shape[1])).unflatten(1, (total, patch))

    real = cut(keep)
    u = torch.where(real, cut(u), 0.0)
    pixels = real.sum(-1)
    centre = u.sum(-1) / pixels.clamp(min=1)
    top = torch.where(real, u, -torch.inf).amax(-1) - torch.where(real, u, torch.inf).amin(-1)
    there = pixels > 0
    return Patches(
        centre,
        torch.where(there, top, 0.0),
        there,
        torch.where(real, u, centre[..., None]),
        torch.where(real, cut(rows), 0.0),
        None if weight is None else torch.where(real, cut(sides["weight"]), 0.0),
        real,
    )


def spectrum_positions(wavelength: Tensor, valid: Tensor | None = None) -> Positions:
    """Place each pixel at u = ln λ.

    Args:
        wavelength: (L,) or (b, L), in any unit.
        valid: likewise, False for pixels that say nothing; nobody attends to them.

    Raises:
        PositionError: wavelengths that are not positive.
    """
    u = log_coordinate(wavelength, valid)
    return Positions(u if u.ndim == 2 else u[None], valid=valid)


def _placed(centre: Tensor, width: Tensor, valid: Tensor) -> Positions:
    return Positions(Tokens.of(centre, valid=valid, columns={"width": width}))


def sample_spectra(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw spectra of visible light, each on a grid of its own."""
    wavelength = 3600 + 6000 * torch.rand(batch, seq, dtype=torch.float64, generator=generator)
    return spectrum_positions(wavelength.sort(1).values)
