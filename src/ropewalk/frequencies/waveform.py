"""How the frequencies of a rotary encoding add up over distance."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core.errors import ShapeError
from ropewalk.frequencies.spectrum import Spectrum


def waveform(spectrum: Spectrum, distance: Tensor) -> Tensor:
    """g(m) = Σ_i cos(m ω_i), float64: the logit at distance m of a query and key that are alike in every plane.

    Planes of frequency 0 add 1 each. Divided by the number of planes it starts at 1.

    Args:
        spectrum: P frequencies.
        distance: any shape, in tokens.

    Source: the expectation of Jianlin Su and others, arXiv 2104.09864, 2021, under several names since.
    """
    angles = distance.double()[..., None] * spectrum.tensor().to(distance.device)
    return angles.cos().sum(-1)


def extrema(wave: Tensor) -> tuple[Tensor, Tensor]:
    """Return where a curve (L,) has strict local maxima and minima inside 1 ... L − 2: (peaks, valleys), whole numbers."""
    if wave.ndim != 1:
        raise ShapeError(f"extrema of a curve (length,); got shape {tuple(wave.shape)}")
    left, here, right = wave[:-2], wave[1:-1], wave[2:]
    peaks = torch.nonzero((here > left) & (here > right))[:, 0] + 1
    valleys = torch.nonzero((here < left) & (here < right))[:, 0] + 1
    return peaks, valleys
