"""Patches that a vision encoder sees, in the order in which neighbours are merged to one token of the language model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError, check_positive
from ropewalk.core.positions import Positions

THINNEST = 200
"""Longest side of an image in shorter sides, beyond which it is refused."""


def merge_order(rows: int, columns: int, merge: int = 2) -> Tensor:
    """Return which patch, counted row by row, comes when merge × merge neighbours come together, (rows · columns,) int64.

    ``x[:, merge_order(rows, columns)]`` brings patches from rows into this order, and ``argsort`` of it brings them back.

    Args:
        rows: patches from top to bottom, a multiple of ``merge``.
        columns: from left to right, a multiple of ``merge``.
        merge: patches of a side that are merged.

    Raises:
        PositionError: sides that are no multiples of ``merge``.
    """
    check_positive(rows=rows, columns=columns, merge=merge)
    if rows % merge or columns % merge:
        raise PositionError(
            f"{rows} x {columns} patches are not merged {merge} x {merge}; both sides are multiples of {merge}"
        )
    index = torch.arange(rows * columns).reshape(rows // merge, merge, columns // merge, merge)
    return index.transpose(1, 2).flatten()


def patch_positions(
    grids: Sequence[Sequence[int]] | Tensor, merge: int = 2, *, device: torch.device | str | None = None
) -> Positions:
    """Place the patches of images and videos, one after the other, by row and column; each frame is a document.

        positions = patch_positions([(1, 4, 6), (2, 4, 4)])
        tower = rw.AxialRoPE(80, pairing="half")                 # the rotation of Qwen2-VL's vision tower
        out = rw.attend(tower(rw.Attention(q, k, v, positions, causal=False)))

    Time is not in the positions, and frames do not see each other.

    Args:
        grids: (frames, rows, columns) in patches of each, what processors call ``image_grid_thw`` and ``video_grid_thw``.
        merge: patches of a side that are merged: they come together (`merge_order`); 1: row by row.
        device: where the positions live.

    Returns:
        Positions (1, patches, 2).

    Raises:
        PositionError: grids that are not (n, 3), have no frames, or whose sides are no multiples of ``merge``.
    """
    given = grids.tolist() if isinstance(grids, Tensor) else [list(grid) for grid in grids]
    if not given or any(len(grid) != 3 for grid in given):
        raise PositionError(f"grids are (frames, rows, columns) in patches, at least one; got {given}")
    cells, frames, shown = [], [], 0
    for t, rows, columns in given:
        if not isinstance(t, int) or t < 1:
            raise PositionError(f"a grid has a whole number of frames, at least one; got {t!r} in {[t, rows, columns]}")
        order = merge_order(rows, columns, merge)
        cells.append(torch.stack([order // columns, order % columns], -1).repeat(t, 1))
        frames.append(torch.arange(shown, shown + t).repeat_interleave(rows * columns))
        shown += t
    position, document = torch.cat(cells), torch.cat(frames)
    made = Positions(position[None], document_ids=document)
    return made if device is None else made.to(device)


def smart_resize(
    height: int, width: int, factor: int = 28, min_pixels: int = 56 * 56, max_pixels: int = 14 * 14 * 4 * 1280
) -> tuple[int, int]:
    """Return the (height, width) to which an image is resized so that patches and their merging come out even.

    Each side is rounded to a multiple of ``factor``, halves to even. An image of more than ``max_pixels`` is made smaller, one of
    less than ``min_pixels`` larger, with its proportions kept as far as ``factor`` allows; no side is below ``factor``.

    Args:
        height: pixels.
        width: pixels.
        factor: pixels of a patch times the patches of a side that are merged.
        min_pixels: of the result.
        max_pixels: of the result, except where a side is as short as it can be.

    Raises:
        ConfigError: an image more than 200 times as long as wide, bounds that contradict each other.

    Source: Peng Wang et al. Qwen2-VL. arXiv 2409.12191, 2024.
    """
    check_positive(height=height, width=width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
    if max(height, width) > THINNEST * min(height, width):
        raise ConfigError(
            f"an image of {height} x {width} pixels is more than {THINNEST} times as long as wide; cut it first"
        )
    if min_pixels > max_pixels:
        raise ConfigError(f"min_pixels {min_pixels} is more than max_pixels {max_pixels}")
    rows, columns = (max(factor, round(side / factor) * factor) for side in (height, width))
    area = height * width
    if rows * columns > max_pixels:
        shrink = math.sqrt(area / max_pixels)
        rows, columns = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / area)
        rows, columns = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return rows, columns
