"""Name what a picture shows, at resolutions that training never had.

    . . . . . .
    . . # . . .
    . . # . . .
    . . # . . .      ?  → column
    . . # . . .
    . . . . . .

Cells are pixels in a few grey levels. A larger picture is the same scene with more and smaller cells: what was one step from a
cell to its neighbour is two of them then.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.blocks import Image, Text
from ropewalk.coordinates.grid import check_fit, fit_factors
from ropewalk.coordinates.layout import layout
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, FIRST, Examples, ask, uniform, written
from ropewalk.lab.tasks.pictures import pictures, quantised
from ropewalk.lab.tasks.placed import Placed


class Images(Placed):
    """A picture of n × n cells, row by row, and what it shows.

    Encodings of grids see (row, col), counted from 1; what is no cell is at the origin. Encodings of layouts see a text of one
    token, an image that says its size, and a text.

    Args:
        data: "shapes", drawn anew for each picture, or "digits", which need scikit-learn.
        levels: grey levels; None: 2 of shapes, 4 of digits.
        colours: tokens that mean the same level; which one stands in a cell is drawn, so that pictures rarely repeat.
        trained: cells a side of the largest picture of training. Larger ones are then placed in its range: (row, col) are
            multiplied by trained/n, position interpolation for any encoding of grids. None: they are as they are. Encodings of
            layouts have arguments of their own for that.
    """

    name = "images"
    summary = "what a picture shows, at resolutions that training never had"
    source = "made for this library, after how vision transformers are tested at other resolutions (arXiv 2403.13298)"
    size_name = "cells a side"
    train_size = 8
    eval_sizes = (6, 8, 12, 16)
    encoder_ready = True
    domain = "grid"

    def __init__(
        self, data: str = "shapes", levels: int | None = None, colours: int = 2, trained: int | None = None
    ) -> None:
        check_positive(levels=levels, colours=colours, trained=trained)
        self.pictures = pictures(data)
        levels = self.pictures.levels if levels is None else levels
        most = len(string.ascii_lowercase)
        if levels < 2 or colours > most:
            raise ConfigError(
                f"pictures have 2 grey levels or more, and 1 to {most} colours of each; got {levels} and {colours}"
            )
        self.levels, self.colours = levels, colours
        self.min_size = self.pictures.smallest
        self.trained = None if trained is None else check_fit(trained, "axes")
        self.cell = FIRST + len(self.pictures.classes)
        cells = (f"{level}{colour}" for level in range(levels) for colour in string.ascii_lowercase[:colours])
        self.symbols = ("|", "?", *self.pictures.classes, *cells)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        scenes = self.pictures.scenes(generator, count, test=test)
        level = quantised(self.pictures.render(scenes, size), self.levels).flatten(1)
        cells = self.cell + level * self.colours + uniform(generator, self.colours, count, size * size)
        answer = FIRST + self.pictures.labels(scenes)[:, None]
        return written(torch.cat([cells, ask(count)], 1), answer, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        cells = torch.tensor(list(prompt[1:-1]))
        side = math.isqrt(len(cells))
        return [FIRST + self.pictures.recognise(((cells - self.cell) // self.colours).view(side, side), self.levels)]

    def length(self, size: int) -> int:
        return size * size + 2

    def space(self, size: int) -> int:
        return len(self.pictures.classes) * self.colours ** (size * size)

    def place(self, batch: Batch) -> Batch:
        asked = (batch.tokens == ASK).long().argmax(1, keepdim=True)
        side = (asked - 1).double().sqrt().round().long()
        cell = torch.arange(batch.tokens.shape[1], device=batch.tokens.device) - 1
        position = torch.stack([1 + cell // side, 1 + cell % side], -1)
        inside = (cell >= 0) & (cell < asked - 1)
        position = torch.where(inside[..., None], position, 0)
        if self.trained is not None:
            position = position * fit_factors(side.expand(-1, 2).double(), self.trained, "axes")[:, None]
        return replace(batch, positions=position)

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        return {"layout": self.in_blocks}

    def in_blocks(self, batch: Batch) -> Batch:
        """Return the batch with its pictures as images of a layout."""
        length = batch.tokens.shape[1]
        sides = [math.isqrt(n - 1) for n in (batch.tokens == ASK).long().argmax(1).tolist()]
        samples = [[Text(1), Image(n, n), Text(length - 1 - n * n)] for n in sides]
        where = layout(samples, device=batch.tokens.device).query
        columns = {"block": where.column("block")}
        return replace(batch, positions=where.position, columns=columns, sequence=where.sequence)
