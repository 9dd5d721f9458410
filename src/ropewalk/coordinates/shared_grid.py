"""A target image that attends to itself and to reference images, all on grids with one origin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Positions

REFERENCE = "reference"
"""Column: number of the reference image that a token is of, from 1; 0 for the target and its text."""

Grid = tuple[int, int]


def shared_grid_positions(
    target: Grid,
    references: Sequence[Grid],
    *,
    num_text: int = 0,
    index_axis: bool = True,
    shifted: bool = False,
    device: torch.device | str | None = None,
) -> Positions:
    """Place a target on the query side, and the target and its references, image tokens alone, on the key side.

    Args:
        target: (rows, columns).
        references: of each reference image.
        num_text: text tokens of the target, before its image, all at the origin.
        index_axis: positions are (0, row, column), as FLUX has them; without it (row, column).
        shifted: references stand to the right of the target and of each other instead of on top of it (AlignedGen's ShiftPE), the
            baseline of what changes frequencies.
        device: where the positions live.

    Returns:
        Positions of cross-attention, with the column "reference" on the key side.
    """
    if isinstance(num_text, bool) or not isinstance(num_text, int) or num_text < 0:
        raise ConfigError(f"num_text is a whole number, 0 or more; got {num_text!r}")
    if not references:
        raise ConfigError("shared attention has a reference image; give the (rows, columns) of at least one")
    own = torch.cat([torch.zeros(num_text, 3, dtype=torch.int64), _cells(target)])
    parts, numbers, column = [own], [torch.zeros(len(own), dtype=torch.int64)], target[1]
    for number, grid in enumerate(references, 1):
        cells = _cells(grid)
        if shifted:
            cells = cells + torch.tensor([0, 0, column])
            column += grid[1]
        parts.append(cells)
        numbers.append(torch.full((len(cells),), number))
    query, key = own, torch.cat(parts)
    if not index_axis:
        query, key = query[:, 1:], key[:, 1:]
    columns = {REFERENCE: torch.cat(numbers)[None].to(device)}
    return Positions(q=Positions(query[None].to(device)), k=Positions(key[None].to(device), columns=columns))


def sample_shared_grid(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw cells of a grid seven columns wide, some of them of a reference that lies on the target."""
    index = torch.arange(seq)
    corner = torch.randint(0, 9, (batch, 1, 2), generator=generator)
    number = torch.randint(0, 2, (batch, seq), generator=generator)
    return Positions(corner + torch.stack([index // 7, index % 7], -1), columns={REFERENCE: number})


def _cells(grid: Grid) -> Tensor:
    rows, columns = grid
    check_positive(rows=rows, columns=columns)
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([torch.zeros_like(row), row, column], -1).flatten(0, 1)
