"""Road users and pieces of road: places on a plane, and the direction in which each of them looks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.errors import PositionError
from ropewalk.core.positions import Positions, Tokens


def heading_positions(
    xy: Tensor, heading: Tensor, *, directed: Tensor | None = None, valid: Tensor | None = None
) -> Positions:
    """Place tokens at (x, y, heading).

    Args:
        xy: (n, 2) or (b, n, 2), in metres, on axes that do not turn with anybody.
        heading: (n,) or (b, n), in radians; turns of 2π are the same direction.
        directed: (n,) or (b, n), False for tokens that look nowhere, such as points of a map without a lane; their heading is 0.
            None: all tokens have a direction.
        valid: (n,) or (b, n), False for padding.

    Returns:
        Positions (b, n, 3), with the column "directed" if that was given.

    Raises:
        PositionError: shapes that do not fit, a heading without an agent, numbers that are NaN or infinite.
    """
    if xy.ndim not in (2, 3) or xy.shape[-1] != 2:
        raise PositionError(f"xy has shape {tuple(xy.shape)}; expected (agents, 2) or (batch, agents, 2)")
    rows = xy if xy.ndim == 3 else xy[None]
    angles = _row_of(heading, "heading", rows)
    columns = {}
    if directed is not None:
        looks = _row_of(directed, "directed", rows)
        if looks.dtype != torch.bool:
            raise PositionError(f"directed is True or False for each token; got {looks.dtype}")
        if not is_compiling() and not looks.is_meta and bool((angles[~looks.expand_as(angles)] != 0).any()):
            raise PositionError("a heading other than 0 without an agent: directed says that the token looks nowhere")
        columns["directed"] = looks
    b = max(len(rows), len(angles))
    place = torch.cat([rows.double().expand(b, -1, -1), angles.double().expand(b, -1)[..., None]], -1)
    return Positions(Tokens.of(place, valid=valid, columns=columns))


def _row_of(column: Tensor, name: str, rows: Tensor) -> Tensor:
    column = column if column.ndim == 2 else column[None]
    fits = column.ndim == 2 and column.shape[1] == rows.shape[1]
    if not fits or (len(rows) != len(column) and 1 not in (len(rows), len(column))):
        raise PositionError(
            f"{name} has shape {tuple(column.shape)} and there are {tuple(rows.shape[:2])} agents; give one for each agent: a "
            f"{name} without an agent, or an agent without a {name}, has no meaning"
        )
    return column


def sample_headings(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw agents within some tens of metres that look anywhere."""
    xy = 30 * torch.randn(batch, seq, 2, dtype=torch.float64, generator=generator)
    heading = math.pi * (2 * torch.rand(batch, seq, dtype=torch.float64, generator=generator) - 1)
    return heading_positions(xy, heading)
