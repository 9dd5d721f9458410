"""Name the cell beside the marked one, in a picture of coloured cells.

    c a b
    a # c      → b, one row further down
    c b a

Two steps: a cell learns what stands above it, at a fixed offset in the picture and at none in the row of tokens; the question
then finds the cell that says "marked". It is asked of pictures that are larger than those of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, FIRST, Examples, ask, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed

MARK = FIRST
OFFSETS = {"below": (1, 0), "right": (0, 1), "diagonal": (1, 1)}


class MarkedCell(Placed):
    """An n × n picture, row by row, and the colour of the cell at an offset from the marked one.

    Positions are (row, col), counted from 1; what is no cell is at the origin.

    Args:
        colours: number of them, drawn uniformly and independently.
        offset: "below", "right" or "diagonal" (one down and one to the right).
    """

    name = "marked_cell"
    summary = "the colour of the cell beside the marked one, in a picture"
    source = "made for this library, after the marked objects that vision experiments look for"
    size_name = "cells a side"
    train_size = 6
    eval_sizes = (4, 6, 9, 12)
    min_size = 2
    encoder_ready = True
    domain = "grid"

    def __init__(self, colours: int = 8, offset: str = "below") -> None:
        if offset not in OFFSETS:
            raise ConfigError(f"offset is one of {', '.join(OFFSETS)}; got {offset!r}")
        self.symbols = ("|", "=", "#", *letters(colours))
        self.colours, self.offset = colours, OFFSETS[offset]

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        down, right = self.offset
        cells = MARK + 1 + uniform(generator, self.colours, count, size * size)
        place = size * uniform(generator, size - down, count, 1) + uniform(generator, size - right, count, 1)
        answer = cells.gather(1, place + size * down + right)
        return written(torch.cat([cells.scatter(1, place, MARK), ask(count)], 1), answer, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        cells = list(prompt[1:-1])
        side = math.isqrt(len(cells))
        rows = [cells[side * n : side * (n + 1)] for n in range(side)]
        ((row, column),) = [(r, line.index(MARK)) for r, line in enumerate(rows) if MARK in line]
        return [rows[row + self.offset[0]][column + self.offset[1]]]

    def length(self, size: int) -> int:
        return size * size + 2

    def space(self, size: int) -> int:
        down, right = self.offset
        return self.colours ** (size * size - 1) * (size - down) * (size - right)

    def place(self, batch: Batch) -> Batch:
        asked = (batch.tokens == ASK).long().argmax(1, keepdim=True)
        side = (asked - 1).double().sqrt().round().long()
        cell = torch.arange(batch.tokens.shape[1], device=batch.tokens.device) - 1
        position = torch.stack([1 + cell // side, 1 + cell % side], -1)
        inside = (cell >= 0) & (cell < asked - 1)
        return replace(batch, positions=torch.where(inside[..., None], position, 0))
