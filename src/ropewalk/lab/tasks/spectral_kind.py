"""What kind of object is it? Spectra of lines at any redshift, on the grids of several instruments.

    u . . L . . . L L . . ? → b

Kinds differ by the ratios of the wavelengths of their two lines, which a redshift leaves alone. Pixels are at equal steps of
wavelength, so that one ratio is another number of pixels at every redshift, and the instrument of scoring was never trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.spectra import log_coordinate
from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, FIRST, Examples, ask, uniform, written
from ropewalk.lab.tasks.placed import Placed

INSTRUMENTS = {"u": (3500.0, 9500.0), "v": (4000.0, 11000.0), "w": (3000.0, 10500.0)}
"""First and last wavelength, in Å; the last instrument is the one of scoring."""

STEP = 250.0
"""Å, about a pixel: the unit of linear wavelengths."""

RATIOS = (1.15, 1.35, 1.6)
"""Of the wavelengths of the two lines of each kind."""


class SpectralKind(Placed):
    """instrument pixel … pixel ? = kind; a pixel holds a line or none.

    Positions are ln λ of the pixels; the instrument and the question are at the first pixel. For encodings of
    plain grids they are λ itself.

    Args:
        unseen: scoring is on an instrument that training never saw.
    """

    name = "spectral_kind"
    summary = "the kind of an object, by the ratio of the wavelengths of its lines"
    source = "made for this library, after the redshifts of OmniSpectra (2026)"
    size_name = "pixels"
    train_size = 48
    eval_sizes = (32, 48, 64)
    min_size = 24
    encoder_ready = True
    domain = "spectra"

    def __init__(self, unseen: bool = True) -> None:
        if not isinstance(unseen, bool):
            raise ConfigError(f"unseen is True or False; got {unseen!r}")
        self.unseen = unseen
        self.symbols = ("|", "?", *"abc"[: len(RATIOS)], *INSTRUMENTS, ".", "L")
        self.instrument = FIRST + len(RATIOS)
        self.dark = self.instrument + len(INSTRUMENTS)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        known = len(INSTRUMENTS) - 1
        which = uniform(generator, known, count)
        if test and self.unseen:
            which = torch.full((count,), known)
        ends = torch.tensor(list(INSTRUMENTS.values()), dtype=torch.float64)[which]
        step = (ends[:, 1] - ends[:, 0]) / (size - 1)
        kind = uniform(generator, len(RATIOS), count)
        ratio = torch.tensor(RATIOS, dtype=torch.float64)[kind]
        # The redder line lies within the grid, wherever the bluer one is.
        blue = ends[:, 0] + (ends[:, 1] / ratio - ends[:, 0]) * torch.rand(
            count, dtype=torch.float64, generator=generator
        )
        pixels = torch.full((count, size), self.dark)
        for wavelength in (blue, blue * ratio):
            place = ((wavelength - ends[:, 0]) / step).round().long().clamp(0, size - 1)
            pixels.scatter_(1, place[:, None], self.dark + 1)
        prompt = torch.cat([self.instrument + which[:, None], pixels, ask(count)], 1)
        return written(prompt, FIRST + kind[:, None], end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        body = list(prompt[1:-1])
        first, last = list(INSTRUMENTS.values())[body[0] - self.instrument]
        lines = [i for i, token in enumerate(body[1:]) if token == self.dark + 1]
        blue, red = (first + (last - first) * i / (len(body) - 2) for i in (lines[0], lines[-1]))
        return [FIRST + min(range(len(RATIOS)), key=lambda n: abs(math.log(red / blue) - math.log(RATIOS[n])))]

    def length(self, size: int) -> int:
        return size + 3

    def space(self, size: int) -> int:
        return (len(INSTRUMENTS) - 1) * len(RATIOS) * size // 8

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        return {"grid": by_wavelength}

    def place(self, batch: Batch) -> Batch:
        tokens = batch.tokens
        asked = (tokens == ASK).long().argmax(1, keepdim=True)
        ends = torch.tensor(list(INSTRUMENTS.values()), dtype=torch.float64, device=tokens.device)
        first, last = ends[tokens[:, 1] - self.instrument].unbind(-1)
        pixel = torch.arange(tokens.shape[1], device=tokens.device) - 2
        inside = (pixel >= 0) & (pixel < asked - 2)
        count = (asked - 2).clamp(min=2)
        wavelength = first[:, None] + (last - first)[:, None] * torch.where(inside, pixel, 0) / (count - 1)
        return replace(batch, positions=log_coordinate(wavelength))


def by_wavelength(batch: Batch) -> Batch:
    """Return the batch at λ on one axis, in `STEP`, instead of ln λ."""
    assert batch.positions is not None
    return replace(batch, positions=(batch.positions.exp() / STEP)[..., None])
