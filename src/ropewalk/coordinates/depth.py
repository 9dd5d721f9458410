"""Pictures whose cells know how far they are from the camera, and objects in them that are moved by moving their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.core.errors import ConfigError, PositionError, check_positive
from ropewalk.core.positions import Positions, Tokens

IMAGE, DEPTH = "image", "depth"
"""Columns: which picture a token is of (0 target, 1 source, 2 … masks, −1 text), and its depth (0: none)."""

DepthMode = Literal["rotate", "overwrite"]


class ObjectMove(NamedTuple):
    """How the cells of an object are moved, counted in tokens; (dy, dx) pixels are ``token_shift(dy)``, ``token_shift(dx)``."""

    mask: Tensor
    """(H, W) bool, the cells of the object: `token_mask`."""

    dy: float = 0.0
    """Down."""

    dx: float = 0.0
    """To the right."""

    scale: float = 1.0
    """About the middle of the object."""

    angle: float = 0.0
    """Degrees about the middle of the object, counter-clockwise as one looks at it: (u, v) of (row, column) becomes
    (u cos θ − v sin θ, u sin θ + v cos θ)."""


def centered_grid_ids(
    sizes: Sequence[Sequence[int]], text: int = 0, *, device: torch.device | str | None = None
) -> Positions:
    """Place pictures of one sample about their middle: (s, r − ⌈H/2⌉, c − ⌈W/2⌉) for cell (r, c) of picture s.

    Text comes first in the sequence, at max(⌊H/2⌋, ⌊W/2⌋) over all pictures and on, the same on each axis.

    Args:
        sizes: (rows, columns) of each, in tokens: the noisy target, the source, and masks, one an object.
        text: tokens of text.
        device: where the positions live.

    Returns:
        Positions (1, text + cells, 3) with the column "image".

    Example:
        >>> centered_grid_ids([(2, 1), (1, 2)], text=1).query.position.tolist()
        [[[1, 1, 1], [0, -1, -1], [0, 0, -1], [1, -1, -1], [1, -1, 0]]]
    """
    if not len(sizes) or any(len(size) != 2 for size in sizes):
        raise PositionError(f"give (rows, columns) of each picture, at least one; got {[list(s) for s in sizes]}")
    if isinstance(text, bool) or not isinstance(text, int) or text < 0:
        raise ConfigError(f"text is a number of tokens from 0; got {text!r}")
    start = max(n // 2 for size in sizes for n in size)
    made = [(start + torch.arange(text))[:, None].expand(-1, 3)]
    of = [torch.full((text,), -1)]
    for s, (rows, columns) in enumerate(sizes):
        check_positive(rows=rows, columns=columns)
        down, across = (torch.arange(n) - (n - n // 2) for n in (rows, columns))
        made.append(torch.cartesian_prod(torch.tensor([s]), down, across))
        of.append(torch.full((rows * columns,), s))
    positions = Positions(torch.cat(made)[None], columns={IMAGE: torch.cat(of)[None]})
    return positions if device is None else positions.to(device)


def depth_axis(
    positions: Positions, depth: Tensor, source_depth: Tensor | None = None, mode: DepthMode = "rotate"
) -> Positions:
    """Give the cells of target and source their depth.

    Args:
        positions: of `centered_grid_ids`, not yet warped.
        depth: (H, W) or (batch, H, W) of any resolution, of the target; resized bilinearly to its cells.
        source_depth: of the source; None: that of the target, as released.
        mode: "rotate": depth takes the place of the first coordinate, and text and masks keep theirs. "overwrite": depth goes
            into the column "depth", 0 for text and masks, for `ropewalk.DepthRoPE` of the same mode.

    Raises:
        PositionError: depth that is not finite, or not positive for "overwrite"; positions without pictures, or warped ones.
    """
    if mode not in ("rotate", "overwrite"):
        raise ConfigError(f"mode is 'rotate' or 'overwrite'; got {mode!r}")
    tokens = _self(positions)
    image, position = _images(tokens), tokens.position
    maps = [_map(depth, "depth")]
    if bool((image == 1).any()):
        maps.append(maps[0] if source_depth is None else _map(source_depth, "source_depth"))
    elif source_depth is not None:
        raise PositionError("source_depth for a target alone; give centered_grid_ids the size of the source too")
    rows = max(position.shape[0], *(len(m) for m in maps))
    value = torch.zeros(rows, tokens.length, dtype=torch.float64, device=tokens.device)
    for s, given in enumerate(maps):
        if mode == "overwrite" and bool((given <= 0).any()):
            raise PositionError("depth that multiplies a channel pair is above 0; normalise it, to [1, 2] for instance")
        cells = (image == s).nonzero()[:, 0]
        small = functional.interpolate(given[:, None], _grid(position, cells, s), mode="bilinear", align_corners=False)
        value[:, cells] = small.flatten(1).to(value.device)
    there = (image == 0) | (image == 1)
    if mode == "overwrite":
        return positions.map_sides(lambda t: t.with_columns(**{DEPTH: value}))
    first = torch.where(there, value, position[..., 0].double())
    made = torch.cat([first[..., None], position[..., 1:].double().expand(rows, -1, -1)], -1)
    return positions.map_sides(lambda t: t.with_columns(position=made))


def token_mask(mask: Tensor, rows: int, columns: int) -> Tensor:
    """Return which cells are the object's, (rows, columns) bool: the nearest pixel of a mask (H, W) is above 0.5."""
    check_positive(rows=rows, columns=columns)
    if mask.ndim != 2 or not mask.numel():
        raise PositionError(f"a mask has shape (height, width); got {tuple(mask.shape)}")
    return functional.interpolate(mask[None, None].double(), (rows, columns), mode="nearest")[0, 0] > 0.5


def token_shift(pixels: float, patch: int = 16) -> int:
    """Return a displacement in tokens, pixels / patch, halves to even."""
    check_positive(patch=patch)
    if not math.isfinite(pixels):
        raise PositionError(f"a displacement is a number of pixels; got {pixels!r}")
    return round(pixels / patch)


def warp_index(
    mask: Tensor,
    dy: float = 0.0,
    dx: float = 0.0,
    scale: float = 1.0,
    angle: float = 0.0,
    *,
    bug_compatible: bool = False,
) -> Tensor:
    """Return of which cell each cell takes its position, (H·W,): cells of the object of where they come to lie, others their own.

    A translation is (r + dy, c + dx), kept inside the grid. With a scale or an angle (u, v) = scale · ((r, c) − m), m the mean
    cell of the object, is turned, and m + (u, v) + (dy, dx) is kept inside and rounded, halves to even. Several cells may take
    one position.

    Args:
        mask: see `ObjectMove`, as for the others.
        dy: likewise.
        dx: likewise.
        scale: likewise.
        angle: likewise.
        bug_compatible: a scale alone, without displacement or angle, moves nothing, as released.
    """
    if mask.ndim != 2 or mask.dtype != torch.bool or not mask.numel():
        raise PositionError(f"a mask is bool and has shape (rows, columns); got {mask.dtype} and {tuple(mask.shape)}")
    if not all(map(math.isfinite, (dy, dx, scale, angle))) or scale <= 0:
        raise PositionError(f"a move is of finite numbers, its scale above 0; got {dy=}, {dx=}, {scale=}, {angle=}")
    rows, columns = mask.shape
    index = torch.arange(rows * columns, device=mask.device)
    object_ = mask.flatten().nonzero()[:, 0]
    still = bug_compatible and dy == dx == angle == 0
    if not len(object_) or still:
        return index
    cell = torch.stack([object_ // columns, object_ % columns], -1).double()
    by = cell.new_tensor([dy, dx])
    if scale == 1 and angle == 0:
        to = cell + by
    else:
        middle = cell.mean(0)
        turn = math.radians(angle)
        u, v = (scale * (cell - middle)).unbind(-1)
        c, s = math.cos(turn), math.sin(turn)
        to = middle + torch.stack([u * c - v * s, u * s + v * c], -1) + by
    to = to.clamp(min=0).minimum(cell.new_tensor([rows - 1, columns - 1])).round().long()
    return index.scatter(0, object_, to[:, 0] * columns + to[:, 1])


def warp_rows(positions: Positions, moves: Sequence[ObjectMove], *, bug_compatible: bool = False) -> Positions:
    """Let the cells of objects have the positions of where the objects are to be, depth included.

    The source (picture 1) takes all moves, each from the positions as they were; mask j (picture 2 + j) takes move j. Target and
    text stay where they are.

    Args:
        positions: of `centered_grid_ids`, with depth or without.
        moves: of each object; their masks have the cells of the source, and no cell in common.
        bug_compatible: see `warp_index`.

    Raises:
        PositionError: masks of another size than the picture, or that overlap; positions without a source.
    """
    tokens = _self(positions)
    image = _images(tokens)
    source = (image == 1).nonzero()[:, 0]
    if not len(source):
        raise PositionError("no picture to take the object from; give centered_grid_ids the sizes of target and source")
    taken = torch.zeros(len(source), dtype=torch.long, device=tokens.device)
    index = torch.arange(tokens.length, device=tokens.device)
    for j, move in enumerate(moves):
        warp = warp_index(*move, bug_compatible=bug_compatible).to(tokens.device)
        flat = move.mask.flatten().to(tokens.device)
        for s in (1, 2 + j):
            cells = (image == s).nonzero()[:, 0]
            if not len(cells) and s > 1:
                continue  # a sample without mask pictures
            if len(cells) != len(flat) or _grid(tokens.position, cells, s) != tuple(move.mask.shape):
                grid = _grid(tokens.position, cells, s)
                raise PositionError(
                    f"mask {j} has {tuple(move.mask.shape)} cells and picture {s} {grid}; token_mask(mask, *{grid}) resizes it"
                )
            index[cells[flat]] = cells[warp[flat]]
        taken += flat
    if bool((taken > 1).any()):
        raise PositionError("masks of two objects overlap; give each cell to one of them")
    moved = {name: tokens.columns[name][:, index] for name in ("position", DEPTH) if name in tokens.columns}
    return positions.map_sides(lambda t: t.with_columns(**moved))


def warp_until(step: int, warped: Positions, plain: Positions, end: int = 20) -> Positions:
    """Return the positions of a step of denoising, counted from 0: the warped ones before step ``end``, then the plain ones."""
    for name, n in (("step", step), ("end", end)):
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ConfigError(f"{name} is a number of steps from 0; got {n!r}")
    return warped if step < end else plain


def perspective_move(
    point: Sequence[float], depth: float, translation: Sequence[float], intrinsics: Tensor
) -> tuple[float, float, float, float]:
    """Return (row, column, depth, scale) of a point after a move in space: X = d K⁻¹ u,  X' = X + t,  scale d/d'.

    Not in the paper: with it an object that goes away gets smaller.

    Args:
        point: (row, column) in pixels.
        depth: d along the axis of the camera, in the unit of the translation.
        translation: (x, y, z): right, down, away.
        intrinsics: K (3, 3), of pixels (column, row, 1).

    Raises:
        PositionError: a depth that is not finite and positive, before or after the move.
    """
    if tuple(intrinsics.shape) != (3, 3) or len(point) != 2 or len(translation) != 3:
        raise PositionError(
            f"give a point (row, column), a translation (x, y, z) and intrinsics (3, 3); got {list(point)}, {list(translation)} "
            f"and {tuple(intrinsics.shape)}"
        )
    k = intrinsics.double()
    there = torch.tensor([point[1], point[0], 1.0], dtype=torch.float64, device=k.device)
    moved = depth * torch.linalg.solve(k, there) + there.new_tensor(list(translation))
    after = float(moved[2])
    if not (0 < depth < math.inf and 0 < after < math.inf):
        raise PositionError(f"depth is finite and in front of the camera; got {depth!r}, and {after!r} after the move")
    column, row, _ = (k @ moved / after).tolist()
    return row, column, after, depth / after


# ---- checks ----------------------------------------------------------------------------------------------------------


def _self(positions: Positions) -> Tokens:
    if not positions.is_self or positions.query.axes != 3:
        raise PositionError("these are not positions of pictures; make them with centered_grid_ids(sizes, text)")
    return positions.query


def _images(tokens: Tokens) -> Tensor:
    """Return the picture of each token, (S,)."""
    image = tokens.column(IMAGE, "rw.centered_grid_ids(sizes, text)")
    if image.ndim != 2 or bool((image != image[:1]).any()):
        raise PositionError("the pictures of a batch have one layout; make them with centered_grid_ids(sizes, text)")
    return image[0]


def _grid(position: Tensor, cells: Tensor, image: int) -> tuple[int, int]:
    """Return the rows and columns of a picture whose cells are in order."""
    at = position[0, cells, 1:]
    rows, columns = (int(n) + 1 for n in (at.amax(0) - at.amin(0)).tolist())
    whole = rows * columns == len(cells)
    plain = torch.cartesian_prod(*(torch.arange(n, device=at.device, dtype=at.dtype) for n in (rows, columns)))
    if not whole or bool((at - at[0] != plain).any()):
        raise PositionError(
            f"picture {image} is no plain grid any more; give it its depth, and warp it once, before that"
        )
    return rows, columns


def _map(depth: Tensor, name: str) -> Tensor:
    """Check a map of depth, and return it as (batch, H, W) float64."""
    if depth.ndim not in (2, 3) or not depth.numel():
        raise PositionError(
            f"{name} has shape {tuple(depth.shape)}; expected (height, width) or (batch, height, width)"
        )
    made = (depth if depth.ndim == 3 else depth[None]).double()
    if not bool(made.isfinite().all()):
        raise PositionError(f"{name} is NaN or infinite somewhere; fill the holes first (synthesize_target_depth does)")
    return made


# ---- samples for checks ----------------------------------------------------------------------------------------------


def sample_depth(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw pictures of 3 columns, target and source, each row of the batch of its own depth, cut off at ``seq`` tokens."""
    rows = max(1, -(-seq // 6))
    depth = 1 + torch.rand(batch, rows, 3, generator=generator, dtype=torch.float64)
    position = depth_axis(centered_grid_ids([(rows, 3), (rows, 3)]), depth).query.position
    return Positions(position[:, :seq])
