"""Change a colour in a picture: the picture, the colour to change and the new one, and then the picture once more.

    c a b e                      c d b e
    a a c b     ?  a d   →       d d c b
    b a d e                      b d d e

The cells of the answer are blank when they are read, as noise is in an editing diffusion model, and all are answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.layout import layout
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.tasks.examples import ASK, EDGE, FIRST, Examples, ask, distinct, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed
from ropewalk.rotary.modality_rope import Segment, prose


class PictureEdit(Placed):
    """A picture of n × (n + 1) cells and the same with one colour for another.

    Segments: the source between its markers, a text of three tokens, the target (noise) between its markers. A model that knows
    which cell of the source a cell of the target stands for has only to look there.

    Args:
        colours: number of them, drawn uniformly and independently.
    """

    name = "picture_edit"
    summary = "a picture with one colour changed, all cells at once"
    source = "made for this library, after the editing of images (arXiv 2605.18678)"
    size_name = "rows"
    train_size = 4
    eval_sizes = (3, 4, 5, 6)
    min_size = 2
    largest = 12
    domain = "layout"

    def __init__(self, colours: int = 8) -> None:
        self.symbols = ("|", "?", *letters(colours), "<", ">", "_")
        self.colours = colours
        self.open, self.close, self.blank = (FIRST + colours + n for n in range(3))

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        cells = FIRST + uniform(generator, self.colours, count, size * (size + 1))
        change = FIRST + distinct(generator, count, self.colours, 2)
        answer = torch.where(cells == change[:, :1], change[:, 1:], cells)
        left, right = (torch.full((count, 1), token) for token in (self.open, self.close))
        return written(torch.cat([left, cells, right, ask(count), change, left], 1), torch.cat([answer, right], 1))

    def solve(self, prompt: Sequence[int]) -> list[int]:
        end = prompt.index(ASK)
        old, new = prompt[end + 1 : end + 3]
        return [*(new if cell == old else cell for cell in prompt[2 : end - 1]), self.close, EDGE]

    def length(self, size: int) -> int:
        return 2 * size * (size + 1) + 8

    def space(self, size: int) -> int:
        return self.colours ** (size * (size + 1))

    def place(self, batch: Batch) -> Batch:
        """Return the batch with blanks for answers; a blank's target is its own cell, and not that of the one after it."""
        b, length = batch.tokens.shape
        asked = (batch.tokens == ASK).long().argmax(1)
        cells = asked - 3
        first = asked[:, None] + 4
        at = torch.arange(length, device=batch.tokens.device)
        noise = (at >= first) & (at < first + cells[:, None])
        tokens = torch.where(noise, self.blank, batch.tokens)
        before = torch.cat([torch.full((b, 1), IGNORE, device=tokens.device), batch.targets[:, :-1]], 1)
        targets = torch.where(noise, before, IGNORE)
        samples = []
        for n in cells.double().sqrt().floor().long().tolist():
            source, target = (Segment(kind, 1, n, n + 1) for kind in ("ref_source", "noise"))
            rest = length - 4 - source.length - target.length
            after = [prose("text", rest)] if rest else []
            samples.append([prose("text", 1), source, prose("text", 3), target, *after])
        where = layout(samples, device=tokens.device).query
        columns = {"block": where.column("block")}
        return replace(
            batch, tokens=tokens, targets=targets, positions=where.position, columns=columns, sequence=where.sequence
        )
