"""Patches of images, frames of video, cells of any regular grid."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Positions


def grid_positions(
    *sizes: int,
    start: int = 0,
    num_prefix: int = 0,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> Positions:
    """Place the tokens of a grid, row-major: (row, col) for two sizes, (t, row, col) for three.

    Args:
        sizes: number of cells along each axis.
        start: coordinate of the first cell on every axis; 1 leaves the origin to the prefix.
        num_prefix: tokens before the grid (CLS, registers), all at the origin.
        normalise: divide by the largest coordinate of each axis, so that all lie in [0, 1].
        device: where the positions live.

    Returns:
        Positions (1, num_prefix + cells, axes).
    """
    check_positive(**{f"size {axis}": size for axis, size in enumerate(sizes)})
    if not sizes or num_prefix < 0:
        raise ConfigError(f"a grid has one size an axis and num_prefix of 0 or more; got {sizes} and {num_prefix}")
    cells = torch.stack(
        torch.meshgrid(*(torch.arange(start, start + size, device=device) for size in sizes), indexing="ij"), -1
    ).flatten(0, -2)
    position = torch.cat([cells.new_zeros(num_prefix, len(sizes)), cells])
    if normalise:
        position = position.double() / cells.amax(0).clamp(min=1)
    return Positions(position[None])


def reduced_grid_positions(
    rows: int, columns: int, ratio: int, *, device: torch.device | str | None = None
) -> Positions:
    """Place the patches of an image, and keys that stand for ratio × ratio patches each, in the middle of them.

    The positions of attention with spatial reduction, as in pyramid vision transformers: queries at (r, c), keys at
    (ratio · i + ⌊ratio/2⌋, ratio · j + ⌊ratio/2⌋).

    Args:
        rows: patches from top to bottom, a multiple of ``ratio``.
        columns: patches from left to right, likewise.
        ratio: patches of a side that are reduced to one key.
        device: where the positions live.

    Raises:
        ConfigError: sides that are no multiples of ``ratio``.
    """
    check_positive(rows=rows, columns=columns, ratio=ratio)
    if rows % ratio or columns % ratio:
        raise ConfigError(
            f"{rows} x {columns} patches are not reduced {ratio} x {ratio}; both sides are multiples of it"
        )
    cells = grid_positions(rows // ratio, columns // ratio, device=device).key.position
    return Positions(q=grid_positions(rows, columns, device=device), k=Positions(cells * ratio + ratio // 2))


def sample_grid(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw tokens of a grid seven columns wide, each row of the batch from another corner."""
    index = torch.arange(seq)
    corner = torch.randint(0, 9, (batch, 1, 2), generator=generator)
    cells: Tensor = torch.stack([index // 7, index % 7], -1)
    return Positions(corner + cells)
