"""Patches of a clip: (t, row, column), scaled to the grid and the length that a model was trained with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ropewalk.coordinates.grid import grid_positions
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Positions


def clip_positions(
    frames: int,
    rows: int,
    columns: int,
    *,
    reference: Sequence[int] | None = None,
    original_frames: int | None = None,
    num_prefix: int = 1,
    device: torch.device | str | None = None,
) -> Positions:
    """Place the tokens of a clip: prefix tokens at the origin, then frames, rows, columns.

    Args:
        frames: T.
        rows: H.
        columns: W.
        reference: (H_ref, W_ref) of the pretrained images: h = row · H_ref/H, w = column · W_ref/W. None: as they are.
        original_frames: clip length of pretraining: t = frame · T_orig/T. None: as they are.
        num_prefix: CLS and registers.
        device: where the positions live.

    Returns:
        Positions (1, num_prefix + T·H·W, 3).
    """
    check_positive(frames=frames, rows=rows, columns=columns, original_frames=original_frames)
    if reference is not None and (len(reference) != 2 or any(n < 1 for n in reference)):
        raise ConfigError(f"reference is (rows, columns) of the pretrained grid; got {reference!r}")
    cells = grid_positions(frames, rows, columns, num_prefix=num_prefix, device=device).query.position.double()
    had = (frames, rows, columns)
    wanted = (original_frames or frames, *(had[1:] if reference is None else reference))
    ratio = [w / h for w, h in zip(wanted, had, strict=True)]
    return Positions(cells * torch.tensor(ratio, dtype=torch.float64, device=cells.device))


def sample_clip(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw tokens of a clip of 2 × 3 cells a frame, each row of the batch from another corner."""
    index = torch.arange(seq)
    corner = torch.randint(0, 9, (batch, 1, 3), generator=generator)
    return Positions(corner + torch.stack([index // 6, index % 6 // 3, index % 3], -1))
