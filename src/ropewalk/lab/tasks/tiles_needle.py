"""Find a needle in an image that is cut into tiles, behind ever more text.

    four tiles of 2 x 2 cells · their thumbnail of 2 x 2 · . . . . (n words) · ?  K  → 7

A tile is an image of its own, with a key and below it a value in one of them. The thumbnail is the whole image once more, of
which only colours are left.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.blocks import Text, Tiles
from ropewalk.coordinates.layout import layout
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import DIGITS, FIRST, Examples, ask, distinct, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed


class TilesNeedle(Placed):
    """Four tiles with colours, a key with its value or two, a thumbnail, n words, and the value that stands below a key.

    Blocks: a text of one token, the tiles and their thumbnail, a text with the words and the question.

    Args:
        rows: cells of a tile from top to bottom, an even number.
        columns: cells of a tile from left to right, an even number.
        colours: number of them, drawn uniformly and independently.
        keys: number of different keys.
        distractor: whether there is a second key with a value; without it any value is the right one.
    """

    name = "tiles_needle"
    summary = "the value below a key in a tile of an image, behind text"
    source = "made for this library, after images in tiles (arXiv 2506.06279)"
    size_name = "words"
    train_size = 16
    eval_sizes = (8, 16, 32, 64)
    encoder_ready = True
    domain = "layout"

    def __init__(
        self, rows: int = 2, columns: int = 2, colours: int = 4, keys: int = 4, distractor: bool = True
    ) -> None:
        check_positive(rows=rows, columns=columns, keys=keys)
        if not isinstance(distractor, bool):
            raise ConfigError(f"distractor is True or False; got {distractor!r}")
        self.distractor = distractor
        if rows % 2 or columns % 2:
            raise ConfigError(f"a thumbnail has half of the cells a side: even numbers; got {rows} x {columns}")
        self.rows, self.columns, self.colours, self.keys = rows, columns, colours, keys
        self.symbols = ("|", "?", *letters(colours), *DIGITS, *string.ascii_uppercase[:keys], ".")
        self.value = FIRST + colours
        self.key = self.value + len(DIGITS)
        self.word = self.key + keys

    @property
    def image(self) -> Tiles:
        """The image."""
        return Tiles(2, 2, self.rows, self.columns)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        tile = self.rows * self.columns
        cells = FIRST + uniform(generator, self.colours, count, 4, self.rows, self.columns)
        # A thumbnail shows every second cell of every second row of the whole image.
        whole = cells.view(count, 2, 2, self.rows, self.columns).permute(0, 1, 3, 2, 4)
        thumbnail = whole.reshape(count, 2 * self.rows, 2 * self.columns)[:, ::2, ::2].flatten(1)
        flat = cells.flatten(1)
        in_tiles = distinct(generator, count, 4, 2)
        cell = uniform(generator, tile - self.columns, count, 2)
        key, value = (
            first + distinct(generator, count, n, 2) for first, n in ((self.key, self.keys), (self.value, len(DIGITS)))
        )
        at = in_tiles * tile + cell
        if not self.distractor:
            at, key, value = at[:, :1], key[:, :1], value[:, :1]
        flat = flat.scatter(1, at, key).scatter(1, at + self.columns, value)
        words = torch.full((count, size), self.word)
        return written(torch.cat([flat, thumbnail, words, ask(count), key[:, :1]], 1), value[:, :1], end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        return [prompt[list(prompt).index(prompt[-1]) + self.columns]]

    def length(self, size: int) -> int:
        return self.image.length + size + 3

    def space(self, size: int) -> int:
        return self.colours ** (4 * self.rows * self.columns - 4) * self.keys * len(DIGITS)

    def place(self, batch: Batch) -> Batch:
        length = batch.tokens.shape[1]
        sample = [Text(1), self.image, Text(length - 1 - self.image.length)]
        where = layout([sample] * len(batch.tokens), device=batch.tokens.device).query
        columns = {"block": where.column("block")}
        return replace(batch, positions=where.position, columns=columns, sequence=where.sequence)
