"""Grids of which some cells are finer than others: where their tokens are, and what is exchanged along the boundaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.core.encoding import Coordinates
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens

RESOLUTION = "resolution"
"""Column: tokens along a coarse cell, 1 for those of the coarse grid; 0 for tokens of no grid, such as text."""

MIXED = "rw.mixed_resolution_positions(mask, factor)"
"""The call that makes positions with it."""

CONTEXT = "context"
"""Column: True for tokens of an overlap, which others see and whose own output is thrown away."""

Resize = Callable[[Tensor, tuple[int, int]], Tensor]
"""``resize(x, (rows, columns))`` of latents (n, channels, rows, columns)."""


def mixed_resolution_positions(
    mask: Tensor,
    factor: int | None = None,
    *,
    pad: int = 0,
    num_text: int = 0,
    device: torch.device | str | None = None,
) -> Positions:
    """Place the tokens of a grid whose cells are not all divided alike.

    First text, all at the origin; then the coarse tokens, row by row; then those of each finer resolution, row by row of their
    own grid: ``maps = resolution_maps(mask, factor, pad=pad)`` says which of them there are, so that ``latents[..., maps[f]]``
    has them in this order.

    Args:
        mask: (rows, columns) or (frames, rows, columns) of coarse cells. Boolean: True where a cell is divided. Integer: along
            how many tokens each cell is divided, 1 for coarse.
        factor: tokens along a divided cell, of a boolean mask.
        pad: tokens by which each resolution reaches into the others (the column "context" says which they are).
        num_text: tokens of no grid.
        device: where the positions live; None: that of the mask.

    Returns:
        Positions (1, S, axes) in coarse cells (frames are not divided), with the column "resolution".

    Raises:
        PositionError: a mask of another shape or kind, or a factor beside integers.
    """
    if isinstance(num_text, bool) or not isinstance(num_text, int) or num_text < 0:
        raise ConfigError(f"num_text is a whole number, 0 or more; got {num_text!r}")
    factors = _factors(mask, factor)
    maps = resolution_maps(factors, pad=pad)
    own = resolution_maps(factors) if pad else maps
    axes, where = factors.ndim, factors.device if device is None else torch.device(device)
    places = [torch.zeros(num_text, axes, dtype=torch.float64)]
    resolution = [torch.zeros(num_text, dtype=torch.int64)]
    context = [torch.zeros(num_text, dtype=torch.bool)]
    for f, there in maps.items():
        cells = there.nonzero().cpu().double()
        cells[:, -2:] /= f
        places.append(cells)
        resolution.append(torch.full((len(cells),), f))
        context.append(~own[f][there].cpu())
    columns = {RESOLUTION: torch.cat(resolution)[None].to(where)}
    if pad:
        columns[CONTEXT] = torch.cat(context)[None].to(where)
    return Positions(torch.cat(places)[None].to(where), columns=columns)


def resolution_maps(mask: Tensor, factor: int | None = None, *, pad: int = 0) -> dict[int, Tensor]:
    """Return which tokens of each resolution there are, on its own grid: coarse first.

    Args:
        mask: see `mixed_resolution_positions`.
        factor: likewise.
        pad: each resolution reaches so many of its own tokens beyond its cells.
    """
    factors = _factors(mask, factor)
    if isinstance(pad, bool) or not isinstance(pad, int) or pad < 0:
        raise ConfigError(f"pad is a whole number of tokens, 0 or more; got {pad!r}")
    return {int(f): _dilated(_divided(factors == f, int(f)), pad) for f in factors.unique().tolist()}


def exchange_boundary(
    latents: Mapping[int, Tensor],
    mask: Tensor,
    factor: int | None = None,
    *,
    pad: int = 2,
    resize: Resize | None = None,
    renoise: Callable[[Tensor], Tensor] | None = None,
) -> dict[int, Tensor]:
    """Give the tokens of the overlap what the resolution to which their cell belongs says there.

    At each step of a sampler, of its present clean estimate: tokens of a resolution that lie beyond its own cells are
    replaced by the resized estimate of the resolution that those cells have, brought to the noise of the next step. They
    serve as context in attention and are thrown away at the end.

    Args:
        latents: of each resolution f, (B, channels, rows · f, columns · f), or (B, channels, frames, rows · f, columns · f).
        mask: see `mixed_resolution_positions`.
        factor: likewise.
        pad: width of the overlap, in tokens of each resolution.
        resize: a learned resizer; None: bilinear to finer grids, means to coarser ones.
        renoise: noise added to what is exchanged; None: none.

    Raises:
        ShapeError: latents of another size than the mask, or of a resolution that it does not have.

    Source: Haoyu Wu, Jingyi Xu, Qiaomu Miao, Dimitris Samaras, Hieu Le. Phase-Aligned RoPE for Mixed-Resolution Diffusion
    Transformer. arXiv 2511.19778, 2025.
    """
    factors = _factors(mask, factor)
    maps, own = resolution_maps(factors, pad=pad), resolution_maps(factors)
    if set(latents) != set(maps):
        raise ShapeError(
            f"latents are of resolutions {sorted(latents)} and the mask has {sorted(maps)}; give one of each"
        )
    for f, x in latents.items():
        want = (*factors.shape[:-2], factors.shape[-2] * f, factors.shape[-1] * f)
        if x.ndim != 2 + factors.ndim or tuple(x.shape[2:]) != want:
            raise ShapeError(f"latents of resolution {f} have shape {tuple(x.shape)}; the mask asks for (B, C, {want})")
    made = {}
    for f, x in latents.items():
        overlap, size = maps[f] & ~own[f], (int(x.shape[-2]), int(x.shape[-1]))
        for g, other in latents.items():
            taken = overlap & _divided(factors == g, f)
            if g == f or not bool(taken.any()):
                continue
            there = _resized(other, size, resize)
            x = torch.where(taken.to(x.device), there if renoise is None else renoise(there), x)
        made[f] = x
    return made


class OnOneGrid(Coordinates):
    """p → p · resolution on the axes that are divided: position interpolation to one grid, seen by every encoding after it.

    With the resolution of the coarse tokens (1) finer ones have fractions between them (PI-LR); with that of the fine ones,
    coarse tokens stand several steps apart (PI-HR). Tokens of no grid stay.

    Args:
        resolution: of the grid in whose steps positions are counted.
        divided: the axes that are; None: the last two.
    """

    def __init__(self, resolution: float, divided: tuple[int, ...] | None = None) -> None:
        super().__init__()
        if not resolution > 0:
            raise ConfigError(f"resolution is a positive number; got {resolution!r}")
        self.resolution, self.divided = float(resolution), divided

    def remap(self, tokens: Tokens, position: Tensor) -> Tensor:
        return on_grid(tokens, position, self.resolution, self.divided)

    def extra_repr(self) -> str:
        return f"{self.resolution}"


def on_grid(
    tokens: Tokens, position: Tensor, resolution: float | None = None, divided: tuple[int, ...] | None = None
) -> Tensor:
    """Return coordinates (b, S, axes) counted in steps of a resolution; None: each token's own, and tokens of no grid stay."""
    own = tokens.column(RESOLUTION, MIXED).double()
    steps = torch.where(own > 0, own if resolution is None else torch.full_like(own, resolution), 1.0)
    axes = divided_axes(position.shape[-1], divided)
    return torch.stack([x * steps if a in axes else x for a, x in enumerate(position.unbind(-1))], -1)


def divided_axes(axes: int, divided: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes along which cells are divided, checked: the last two unless others are given."""
    check_positive(axes=axes)
    if divided is None:
        return tuple(range(axes))[-2:]
    if not divided or len(set(divided)) != len(divided) or not all(0 <= a < axes for a in divided):
        raise ConfigError(f"divided axes {list(divided)} of {axes}: each once, counted from 0")
    return tuple(divided)


def sample_mixed_resolution(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw cells of a grid seven columns wide, some of them divided in two along each axis."""
    corner = torch.randint(0, 9, (batch, 1, 2), generator=generator)
    index = torch.arange(seq)
    cells = torch.stack([index // 7, index % 7], -1) + corner
    fine = torch.randint(0, 2, (batch, seq), generator=generator)
    half = torch.randint(0, 2, (batch, seq, 2), generator=generator) * fine[..., None]
    return Positions(cells + half / 2, columns={RESOLUTION: 1 + fine})


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _factors(mask: Tensor, factor: int | None) -> Tensor:
    check_positive(factor=factor)
    if mask.ndim not in (2, 3) or mask.numel() == 0 or mask.is_floating_point():
        raise PositionError(
            f"mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; expected (rows, columns) or (frames, rows, columns), "
            "boolean, or integers that say along how many tokens each cell is divided"
        )
    if mask.dtype == torch.bool:
        if factor is None:
            raise PositionError(
                "a boolean mask says which cells are divided, and factor= along how many tokens; give it"
            )
        return torch.where(mask, factor, 1)
    if factor is not None:
        raise PositionError("integers say along how many tokens each cell is divided; leave factor out")
    if bool((mask < 1).any()):
        raise PositionError(f"a cell is divided along at least 1 token; got {int(mask.min())}")
    return mask.long()


def _divided(cells: Tensor, factor: int) -> Tensor:
    return cells.repeat_interleave(factor, -2).repeat_interleave(factor, -1)


def _dilated(there: Tensor, pad: int) -> Tensor:
    if pad == 0:
        return there
    images = there.float().reshape(-1, 1, *there.shape[-2:])
    return F.max_pool2d(images, 2 * pad + 1, 1, pad).reshape(there.shape) > 0


def _resized(x: Tensor, size: tuple[int, int], resize: Resize | None) -> Tensor:
    frames = x.movedim(1, -3).flatten(0, -4)  # frames are resized one by one
    if resize is not None:
        made = resize(frames, size)
    elif size[0] >= x.shape[-2]:
        made = F.interpolate(frames, size, mode="bilinear")
    else:
        made = F.adaptive_avg_pool2d(frames, size)
    return made.reshape(*x.movedim(1, -3).shape[:-2], *size).movedim(-3, 1)
