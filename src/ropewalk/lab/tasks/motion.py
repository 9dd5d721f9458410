"""In which direction does it move, or what stands there next? A clip of frames with a marked cell.

    . . #    . . .    . . .                        . # .    . b .    . c .
    . . .    . . #    . . .    ?  → down           . a .    . . a    b . .    ?  → b
    . a .    . . b    c . #                        . . .    c . .    . . a

The other cells are of random colours, anew in every frame, so that a single frame says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError, check_positive, suggest
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, FIRST, Examples, ask, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed

QUESTIONS = ("direction", "next")
DIRECTIONS = ("up", "down", "left", "right")
STEPS = torch.tensor([(-1, 0), (1, 0), (0, -1), (0, 1)])
MARK = FIRST + len(DIRECTIONS)


class Motion(Placed):
    """T frames of rows × columns cells.

    "direction": a marked cell walks one cell a frame, round the edges; up, down, left or right. "next": one cell of one frame
    but the last is marked, and the colour of the same cell in the next frame is asked for.

    Positions are (t, row, col), counted from 1; what is no cell is at the origin.

    Args:
        rows: cells from top to bottom.
        columns: cells from left to right.
        colours: number of them, drawn uniformly and independently.
        question: "direction" or "next".
    """

    name = "motion"
    summary = "the direction in which a marked cell walks, or what follows at its place, in a clip"
    source = "made for this library, after the moving shapes that video encoders are tried on"
    size_name = "frames"
    train_size = 4
    eval_sizes = (2, 4, 6, 8)
    min_size = 2
    encoder_ready = True
    domain = "clip"

    def __init__(self, rows: int = 3, columns: int = 4, colours: int = 4, question: str = "direction") -> None:
        check_positive(rows=rows, columns=columns)
        if question not in QUESTIONS:
            raise ConfigError(
                f"question is one of {', '.join(QUESTIONS)}; got {question!r}.{suggest(question, QUESTIONS)}"
            )
        self.question = question
        self.rows, self.columns = rows, columns
        self.symbols = ("|", "?", *DIRECTIONS, "#", *letters(colours))
        self.colours = colours

    @property
    def cells(self) -> int:
        """Tokens of a frame."""
        return self.rows * self.columns

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        frames = MARK + 1 + uniform(generator, self.colours, count, size, self.cells)
        if self.question == "next":
            frame, cell = uniform(generator, size - 1, count), uniform(generator, self.cells, count)
            row = torch.arange(count)
            answer = frames[row, frame + 1, cell][:, None]
            frames[row, frame, cell] = MARK
            return written(torch.cat([frames.flatten(1), ask(count)], 1), answer, end=False)
        start = torch.stack([uniform(generator, n, count) for n in (self.rows, self.columns)], -1)
        direction = uniform(generator, len(DIRECTIONS), count, 1)
        walked = start[:, None] + torch.arange(size)[:, None] * STEPS[direction]
        row, column = walked[..., 0] % self.rows, walked[..., 1] % self.columns
        frames = frames.scatter(2, (row * self.columns + column)[..., None], MARK)
        return written(torch.cat([frames.flatten(1), ask(count)], 1), FIRST + direction, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        marked = [i - 1 for i, token in enumerate(prompt) if token == MARK]
        if self.question == "next":
            return [prompt[1 + marked[0] + self.cells]]
        first, second = (divmod(n % self.cells, self.columns) for n in marked[:2])
        for n, (down, right) in enumerate(STEPS.tolist()):
            if second == ((first[0] + down) % self.rows, (first[1] + right) % self.columns):
                return [FIRST + n]
        raise AssertionError("nothing walks")

    def length(self, size: int) -> int:
        return size * self.cells + 2

    def space(self, size: int) -> int:
        return self.cells * self.colours ** (size * (self.cells - 1))

    def place(self, batch: Batch) -> Batch:
        asked = (batch.tokens == ASK).long().argmax(1, keepdim=True)
        cell = torch.arange(batch.tokens.shape[1], device=batch.tokens.device) - 1
        frame, within = cell // self.cells, cell % self.cells
        position = torch.stack([1 + frame, 1 + within // self.columns, 1 + within % self.columns], -1)
        inside = (cell >= 0) & (cell < asked - 1)
        return replace(batch, positions=torch.where(inside[..., None], position, 0))
