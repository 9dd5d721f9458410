"""Patches of images taken by posed cameras."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.errors import PositionError
from ropewalk.core.positions import Positions, Tokens


def view_positions(coordinates: Tensor, extrinsics: Tensor) -> Positions:
    """Place the tokens of several views: one coordinate pair a token, one camera a view.

    Args:
        coordinates: (b, views · patches, 2), the (row, column) of each patch in [0, 1), tokens in view-major order.
        extrinsics: (b, views, 4, 4) or (b, views · patches, 4, 4), world to camera, last row (0, 0, 0, 1).

    Raises:
        PositionError: shapes that do not fit, or matrices that are no rigid or affine transforms.
    """
    if coordinates.ndim != 3 or coordinates.shape[-1] != 2:
        raise PositionError(f"coordinates have shape {tuple(coordinates.shape)}; expected (batch, tokens, 2)")
    if extrinsics.ndim != 4 or extrinsics.shape[-2:] != (4, 4) or not extrinsics.is_floating_point():
        raise PositionError(
            f"extrinsics have shape {tuple(extrinsics.shape)} and dtype {extrinsics.dtype}; expected real "
            "(batch, views, 4, 4)"
        )
    tokens, views = coordinates.shape[1], extrinsics.shape[1]
    if views == 0 or tokens % views:
        raise PositionError(f"{tokens} tokens cannot be dealt out evenly to {views} views")
    if not is_compiling() and not extrinsics.is_meta:
        last = extrinsics.new_tensor([0.0, 0.0, 0.0, 1.0])
        if not bool(extrinsics.isfinite().all()) or not bool((extrinsics[..., 3, :] == last).all()):
            raise PositionError(
                "extrinsics must be finite with last row (0, 0, 0, 1), as world-to-camera matrices; transpose them if "
                "yours hold the translation in the last row"
            )
    matrices = extrinsics.double().repeat_interleave(tokens // views, 1)
    return Positions(Tokens.of(coordinates, columns={"extrinsics": matrices}))


def patch_grid(height: int, width: int, *, stride: int = 1) -> Tensor:
    """(row / height, column / width) at every ``stride``-th pixel from ``stride // 2`` on: (patches, 2), row-major."""
    rows = torch.arange(stride // 2, height, stride, dtype=torch.float64) / height
    columns = torch.arange(stride // 2, width, stride, dtype=torch.float64) / width
    return torch.cartesian_prod(rows, columns).reshape(-1, 2)


def sample_views(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw tokens with cameras of their own: random rotations, translations and patch coordinates."""
    random = torch.randn(batch, seq, 3, 3, dtype=torch.float64, generator=generator)
    rotation, upper = torch.linalg.qr(random)
    rotation = rotation * upper.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    rotation = rotation * torch.linalg.det(rotation)[..., None, None]
    extrinsics = torch.eye(4, dtype=torch.float64).repeat(batch, seq, 1, 1)
    extrinsics[..., :3, :3] = rotation
    extrinsics[..., :3, 3] = torch.randn(batch, seq, 3, dtype=torch.float64, generator=generator)
    coordinates = torch.rand(batch, seq, 2, dtype=torch.float64, generator=generator)
    return view_positions(coordinates, extrinsics)
