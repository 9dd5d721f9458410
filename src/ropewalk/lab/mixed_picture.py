"""Pictures of waves with unknown cells: models that were trained on grids of one resolution see grids of two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.grid import grid_positions
from ropewalk.coordinates.mixed_resolution import RESOLUTION, mixed_resolution_positions
from ropewalk.core.errors import check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.filled import Filled
from ropewalk.lab.rounds import UNKNOWN

FINER = 2
"""Tokens along a divided cell."""

SHORTEST = 4.0
"""Cells of the shortest wave, in training in its own cells and in scoring in coarse ones."""


class MixedPicture(Filled):
    """Brightness of unknown cells of a picture; in scoring the cells in the middle are divided in two along each axis.

    Waves are `SHORTEST` to twice as many coarse cells long in scoring, and so twice that in fine cells; in training pictures have
    waves of all these lengths, so that steps of either size are known, each on a grid of its own. Drawn: "level" of each cell,
    (B, S), hidden ones too.

    Args:
        train_size: rows and columns of coarse cells.
        eval_sizes: likewise.
        examples: see `Filled`.
        encoder: likewise.
        levels: of brightness.
        waves: that are added up.
    """

    name = "mixed_picture"
    domain = "mixed_resolution"
    summary = "unknown cells of a picture, part of which is finer"
    source = "made for this library, after the mixed resolutions of PMA (arXiv 2511.19778)"
    size_name = "rows and columns"
    train_size = 6
    eval_sizes = (6,)
    min_size = 4

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        levels: int = 6,
        waves: int = 2,
    ) -> None:
        check_positive(levels=levels, waves=waves)
        self.levels, self.waves = levels, waves
        self.symbols = ("?", *map(str, range(levels)))
        super().__init__(train_size, eval_sizes, examples, encoder)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        position, resolution = self._grid(size, test)
        stretched = torch.ones(count, 1, 1, 1, dtype=torch.float64)
        if not test:
            stretched = 1 + torch.rand(stretched.shape, dtype=torch.float64, generator=generator)
        cells = 1 + self._levels(position, stretched, generator)
        share = 0.5 if test else torch.rand(count, 1, generator=generator)
        hidden = torch.rand(cells.shape, generator=generator) <= share
        hidden[:, 0] |= ~hidden.any(1)
        return Batch(
            torch.where(hidden, UNKNOWN, cells),
            torch.where(hidden, cells, IGNORE),
            positions=position.expand(count, -1, -1),
            columns={RESOLUTION: resolution.expand(count, -1)},
            drawn={"level": cells - 1},
        )

    def _grid(self, size: int, mixed: bool) -> tuple[Tensor, Tensor]:
        """Return where the tokens are, (1, S, 2) in coarse cells, and of which resolution, (1, S)."""
        if not mixed:
            plain = grid_positions(size, size).query.position.double()
            return plain, torch.ones(1, plain.shape[1], dtype=torch.int64)
        mask = torch.zeros(size, size, dtype=torch.bool)
        middle = slice(size // 4, size - size // 4)
        mask[middle, middle] = True
        tokens = mixed_resolution_positions(mask, FINER).query
        return tokens.position, tokens.column(RESOLUTION)

    def _levels(self, position: Tensor, stretched: Tensor, generator: Generator) -> Tensor:
        """Draw brightness at (1, S, 2), (count, S); waves are longer by a factor (count, 1, 1, 1)."""
        count = len(stretched)

        def drawn(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(count, self.waves, 1, dtype=torch.float64, generator=generator)

        length, direction, phase = drawn(SHORTEST, 2 * SHORTEST), drawn(0, 2 * math.pi), drawn(0, 2 * math.pi)
        length = length * stretched[..., 0]
        along = direction.cos() * position[..., 0][:, None] + direction.sin() * position[..., 1][:, None]
        light = (2 * math.pi * along / length + phase).sin().sum(1) / math.sqrt(self.waves)
        return ((light / 2 + 0.5) * self.levels).floor().long().clamp(0, self.levels - 1)
