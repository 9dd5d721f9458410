"""Look at a picture, read a question in words, and answer it.

    c a b e          ?  2 1  → a       place: row 2, column 1, counted from 0
    a # c b          ?       → a       below: the colour below the marked cell
    b a d e          ?  d    → yes     presence: is there such a cell?

What vision-language models are asked, as small as it gets: the picture is a block of tokens on a grid, the question is text after
it, and encodings differ in where they say that the cells and the words are.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.blocks import Image, Text
from ropewalk.coordinates.layout import layout
from ropewalk.core.errors import ConfigError, check_positive, suggest
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, DIGITS, FIRST, Examples, ask, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed

QUESTIONS = ("place", "below", "presence")
NO, YES = FIRST, FIRST + 1
MARK = FIRST + 2
CELLS = MARK + 1


class PictureQuestion(Placed):
    """A picture of n × (n + 1) cells, and a question about it.

    "presence" shows a colour in one object, a square of cells, or in half of the pictures in none; where it is is drawn
    uniformly, so that a model that cannot see a corner is wrong there (`with_object`). The other cells are drawn uniformly and
    independently from the other colours.

    Blocks: a text of one token, the picture, a text with words that mean nothing and the question.

    Args:
        question: "place", "below" or "presence".
        colours: number of them.
        words: tokens of text between picture and question.
        largest_object: cells a side of the largest object of "presence"; sizes from 1 on are drawn uniformly.
    """

    name = "picture_question"
    summary = "a question in words about a picture before it"
    source = "made for this library, after the toy experiments that papers of vision-language models describe"
    size_name = "rows"
    train_size = 5
    eval_sizes = (3, 5, 7, 9)
    min_size = 2
    largest = 9
    encoder_ready = True
    domain = "layout"

    def __init__(self, question: str = "place", colours: int = 8, words: int = 0, largest_object: int = 1) -> None:
        if question not in QUESTIONS:
            raise ConfigError(
                f"question is one of {', '.join(QUESTIONS)}; got {question!r}.{suggest(question, QUESTIONS)}"
            )
        if isinstance(words, bool) or not isinstance(words, int) or words < 0:
            raise ConfigError(f"words is a whole number of tokens from 0 on; got {words!r}")
        check_positive(largest_object=largest_object)
        if largest_object > 1 and question != "presence":
            raise ConfigError(f"objects of several cells are asked for by 'presence'; the question is {question!r}")
        self.largest_object = largest_object
        self.object: tuple[int, int, int] | None = None  # row, column and side, where it is always there
        self.symbols = ("|", "?", "no", "yes", "#", *letters(colours), *DIGITS, ".")
        self.question, self.colours, self.words = question, colours, words
        self.digit = CELLS + colours
        self.word = self.digit + len(DIGITS)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        across = size + 1
        cells = CELLS + uniform(generator, self.colours, count, size * across)
        if self.question == "place":
            place = uniform(generator, size * across, count, 1)
            asked = self.digit + torch.cat([place // across, place % across], 1)
            answer = cells.gather(1, place)
        elif self.question == "below":
            place = uniform(generator, (size - 1) * across, count, 1)
            asked = torch.empty(count, 0, dtype=torch.int64)
            answer = cells.gather(1, place + across)
            cells = cells.scatter(1, place, MARK)
        else:
            asked = CELLS + uniform(generator, self.colours, count, 1)
            others = (asked - CELLS + 1 + uniform(generator, self.colours - 1, *cells.shape)) % self.colours + CELLS
            inside = self._objects(generator, size, count)
            there = torch.ones_like(asked, dtype=torch.bool)
            if self.object is None:
                there = uniform(generator, 2, count, 1).bool()
            cells = torch.where(there & inside, asked, others)
            answer = torch.where(there, YES, NO)
        words = torch.full((count, self.words), self.word)
        return written(torch.cat([cells, words, ask(count), asked], 1), answer, end=False)

    def _objects(self, generator: Generator, size: int, count: int) -> Tensor:
        """(N, cells) which cells are of the object."""
        grid = torch.cartesian_prod(torch.arange(size), torch.arange(size + 1))
        if self.object is not None:
            row, column, side = self.object
            corner, sides = torch.tensor([[row, column]] * count), torch.full((count,), side)
        else:
            sides = torch.ones(count, dtype=torch.int64)
            if self.largest_object > 1:
                sides = 1 + uniform(generator, min(self.largest_object, size), count)
            corner = torch.empty(count, 2, dtype=torch.int64)
            for side in sides.unique().tolist():
                mine = sides == side
                across = size + 2 - side
                place = uniform(generator, (size + 1 - side) * across, int(mine.sum()))
                corner[mine] = torch.stack([place // across, place % across], -1)
        offset = grid - corner[:, None]
        return ((offset >= 0) & (offset < sides[:, None, None])).all(-1)

    def with_object(self, row: int, column: int, side: int = 1) -> PictureQuestion:
        """Return the same task with the object of "presence" always there: ``side`` cells a side, from this cell on."""
        if self.question != "presence":
            raise ConfigError(f"objects are asked for by 'presence'; the question is {self.question!r}")
        check_positive(side=side)
        if row < 0 or column < 0:
            raise ConfigError(f"cells are counted from 0; got row {row!r} and column {column!r}")
        made = copy(self)
        made.object, made.min_size = (row, column, side), max(self.min_size, row + side, column + side - 1)
        return made

    def solve(self, prompt: Sequence[int]) -> list[int]:
        end = prompt.index(ASK)
        asked = list(prompt[end + 1 :])
        size = next(n for n in range(2, self.largest + 1) if n * (n + 1) == end - 1 - self.words)
        rows = [list(prompt[1 + r * (size + 1) : 1 + (r + 1) * (size + 1)]) for r in range(size)]
        if self.question == "place":
            row, column = (token - self.digit for token in asked)
            return [rows[row][column]]
        if self.question == "below":
            ((row, column),) = [(r, line.index(MARK)) for r, line in enumerate(rows) if MARK in line]
            return [rows[row + 1][column]]
        return [YES if any(asked[0] in line for line in rows) else NO]

    def length(self, size: int) -> int:
        return size * (size + 1) + self.words + {"place": 4, "below": 2, "presence": 3}[self.question]

    def space(self, size: int) -> int:
        side = self.largest_object if self.object is None else self.object[2]
        return (self.colours - 1) ** (size * (size + 1) - min(side, size) ** 2)

    def place(self, batch: Batch) -> Batch:
        asked = (batch.tokens == ASK).long().argmax(1)
        rows = self._rows(asked - 1 - self.words)
        length = batch.tokens.shape[1]
        samples = [[Text(1), Image(n, n + 1), Text(length - 1 - n * (n + 1))] for n in rows.tolist()]
        where = layout(samples, device=batch.tokens.device).query
        columns = {"block": where.column("block")}
        return replace(batch, positions=where.position, columns=columns, sequence=where.sequence)

    def _rows(self, cells: Tensor) -> Tensor:
        """Rows of pictures of n (n + 1) cells."""
        return cells.double().sqrt().floor().long()
