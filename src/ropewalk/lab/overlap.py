"""Which of two shapes is seen where they overlap? The nearer one.

background, depth 2  a b a c    shape, depth 1    d c    →  a d c c
                     b b c a                      a d       b a d a
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.grid import grid_positions
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.filled import Filled
from ropewalk.lab.tasks.examples import letters, uniform

BLANK = 0
SHAPE = 2
"""Rows and columns of the shape."""

DEPTHS = (1.0, 2.0)
PICTURE = "picture"
"""Column: 0 for the blanks that are to be filled, 1 for the background, 2 for the shape."""


class Overlap(Filled):
    """A background and a shape of random colours, one nearer than the other, and blanks that are to show what is seen.

    Positions are (depth, row, column), of a blank those of what it shows; for encodings of plain grids the number of the picture
    takes the place of depth. In training the shape never reaches the last column, and in scoring it always has been moved there:
    its tokens have the positions of the cells in which it is to be seen. Scored are the cells where both are.
    Drawn: "corner" (B, 2), the upper left cell of the shape where it is to be seen; "nearer" (B,), whether it is before the rest.

    Args:
        train_size: columns, 3 or more.
        eval_sizes: likewise.
        examples: see `Filled`.
        encoder: likewise.
        rows: 2 or more.
        colours: number of them.
    """

    name = "overlap"
    domain = "depth"
    summary = "the colour that is seen where two shapes overlap"
    source = "made for this library, after the depth of RoPEMover (arXiv 2606.27332)"
    size_name = "columns"
    train_size = 5
    eval_sizes = (5,)
    min_size = SHAPE + 1

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        rows: int = 3,
        colours: int = 6,
    ) -> None:
        check_positive(rows=rows)
        if rows < SHAPE:
            raise ConfigError(f"rows are {SHAPE} or more, those of the shape; got {rows}")
        self.rows, self.colours = rows, colours
        self.symbols = ("_", *letters(colours))
        super().__init__(train_size, eval_sizes, examples, encoder)

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        return {"grid": by_picture}

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        cells = self.rows * size
        place = grid_positions(self.rows, size).query.position[0].double()
        corner = torch.stack(
            [uniform(generator, self.rows - SHAPE + 1, count), uniform(generator, size - SHAPE, count)], -1
        )
        if test:
            corner[:, 1] = size - SHAPE
        inside = grid_positions(SHAPE, SHAPE).query.position[0] + corner[:, None]
        covered = inside[..., 0] * size + inside[..., 1]  # (count, cells of the shape)
        back, front = (1 + uniform(generator, self.colours, count, n) for n in (cells, SHAPE**2))
        before = uniform(generator, 2, count, 1)  # whether the shape is the nearer one
        far = torch.tensor(DEPTHS)[before].double(), torch.tensor(DEPTHS)[1 - before].double()
        seen = torch.where(before == 1, back.scatter(1, covered, front), back)
        depth = far[0].expand(-1, cells)
        shown = torch.where(before == 1, depth.scatter(1, covered, far[1].expand(-1, SHAPE**2)), depth)
        asked = torch.full_like(seen, IGNORE).scatter(1, covered, seen.gather(1, covered)) if test else seen
        first = torch.cat([shown, depth, far[1].expand(-1, SHAPE**2)], 1)
        rest = torch.cat([place.expand(count, -1, -1), place.expand(count, -1, -1), inside.double()], 1)
        tokens = torch.cat([torch.full_like(back, BLANK), back, front], 1)
        picture = torch.tensor([0] * cells + [1] * cells + [2] * SHAPE**2).expand(count, -1)
        return Batch(
            tokens,
            torch.cat([asked, torch.full_like(torch.cat([back, front], 1), IGNORE)], 1),
            positions=torch.cat([first[..., None], rest], -1),
            columns={PICTURE: picture},
            drawn={"corner": corner, "nearer": before[:, 0] == 1},
        )


def by_picture(batch: Batch) -> Batch:
    """Return the batch with the number of its picture in the place of the depth of a token."""
    assert batch.positions is not None and batch.columns is not None
    number = batch.columns[PICTURE].double()
    return replace(batch, positions=torch.cat([number[..., None], batch.positions[..., 1:]], -1))
