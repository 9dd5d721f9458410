"""Patches of images, frames of video, cells of any regular grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Positions

FitMode = Literal["axes", "isotropic"]
"""Whether each axis of a grid is scaled by itself, or all by the smallest factor."""


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


# ---- grids larger than the one of training -------------------------------------------------------------------------


def scaled_positions(
    grid: Sequence[int],
    trained_grid: int | Sequence[int],
    mode: FitMode = "axes",
    *,
    num_prefix: int = 0,
    device: torch.device | str | None = None,
) -> Positions:
    """Place the patches of a grid in the range of the one that a model was trained with: position interpolation.

        positions = scaled_positions((64, 48), 32)  # rows half a unit apart, columns two thirds
        out = rw.attend(rw.AxialRoPE(64)(rw.Attention(q, k, v, positions, causal=False)))

    Axis a is scaled by min(1, L_a/n_a): grids up to the trained one stay as they are.

    Args:
        grid: sizes n of each axis.
        trained_grid: L of all axes, or of each.
        mode: "axes", or "isotropic": all axes have the smallest factor.
        num_prefix: tokens before the grid, at the origin.
        device: where the positions live.

    Returns:
        Positions (1, num_prefix + cells, axes), real.

    Raises:
        ConfigError: a grid without its trained size, sizes that are none.
    """
    cells = grid_positions(*grid, num_prefix=num_prefix, device=device).key.position
    trained = check_fit(trained_grid, mode, len(grid))
    sizes = torch.tensor(list(grid), dtype=torch.float64, device=cells.device)
    return Positions(cells * fit_factors(sizes, trained, mode))


def scaled_pair(
    first: Sequence[int], second: Sequence[int], trained_grid: int | Sequence[int], mode: FitMode = "axes"
) -> Positions:
    """Place the patches of two images of any sizes, for attention of the first to the second; see `scaled_positions`."""
    q, k = (scaled_positions(grid, trained_grid, mode) for grid in (first, second))
    return Positions(q=q, k=k)


def fit_factors(sizes: Tensor, trained: Sequence[int], mode: FitMode) -> Tensor:
    """Return min(1, L_a/n_a), or for "isotropic" the smallest of them for all axes: (..., axes) → the same, float64."""
    factors = (torch.tensor(list(trained), dtype=torch.float64, device=sizes.device) / sizes).clamp(max=1)
    return factors if mode == "axes" else factors.amin(-1, keepdim=True).expand_as(factors)


def check_fit(trained: int | Sequence[int] | None, mode: str, axes: int = 2) -> tuple[int, ...]:
    """Return the sizes of the trained grid, one an axis, checked."""
    if mode not in get_args(FitMode):
        raise ConfigError(f"mode is one of {', '.join(get_args(FitMode))}; got {mode!r}")
    if trained is None:
        raise ConfigError("a grid is scaled to that of training, and its size is not known: give trained_grid=")
    each = (trained,) * axes if isinstance(trained, int) else tuple(trained)
    if len(each) != axes:
        raise ConfigError(f"trained_grid {list(each)}: give one size, or one for each of {axes} axes")
    check_positive(**{f"size {axis} of the trained grid": size for axis, size in enumerate(each)})
    return each


def sample_grid(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw tokens of a grid seven columns wide, each row of the batch from another corner."""
    index = torch.arange(seq)
    corner = torch.randint(0, 9, (batch, 1, 2), generator=generator)
    cells: Tensor = torch.stack([index // 7, index % 7], -1)
    return Positions(corner + cells)
