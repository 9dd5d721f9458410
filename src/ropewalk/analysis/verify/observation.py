"""Tensors before and after a rotation, checked and brought to one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.analysis.verify import rounding
from ropewalk.core.errors import PositionError, ShapeError

NAMES = ("q", "k", "q_rot", "k_rot", "positions")

TOKENS, HEADS, ROWS = 4096, 8, 4
"""How much is looked at: more of the same says nothing more."""


@dataclass(frozen=True, eq=False)
class Side:
    """One tensor before and after.

    Args:
        name: "q" or "k".
        before: (batch, heads, seq, head_dim), float64.
        after: likewise.
        given: dtypes as they came, before and after.
    """

    name: str
    before: Tensor
    after: Tensor
    given: tuple[torch.dtype, torch.dtype]

    def heads(self, which: list[int]) -> Side:
        """Return some of the heads."""
        return replace(self, before=self.before[:, which], after=self.after[:, which])

    def swapped(self) -> Side:
        """Return heads as tokens and tokens as heads."""
        return replace(self, before=self.before.transpose(1, 2), after=self.after.transpose(1, 2))


@dataclass(frozen=True, eq=False)
class Observation:
    """What a rotation did to some tokens.

    Args:
        sides: q, or q and k.
        positions: (batch, seq, axes), float64.
        index: (seq,) place of each token in its sequence.
        dtype: the narrowest that holds all numbers.
        rows: the rows of the batch that are here.
    """

    sides: tuple[Side, ...]
    positions: Tensor
    index: Tensor
    dtype: torch.dtype
    rows: tuple[int, ...]

    @property
    def unit(self) -> float:
        """The relative error of rounding once."""
        return rounding.unit(self.dtype)

    @property
    def head_dim(self) -> int:
        return self.sides[0].before.shape[-1]

    @property
    def axes(self) -> int:
        return self.positions.shape[-1]


def observe(tensors: Mapping[str, Any], layout: str | None = None) -> Observation:
    """Return the observation that named tensors are.

    Args:
        tensors: q, q_rot and positions, and k, k_rot where there are. q (batch, heads, seq, head_dim) or without batch;
            positions (seq,), (batch, seq), (batch, seq, axes), (seq, axes) or (axes, batch, seq). Without positions they are
            0, 1, 2, ...
        layout: "bhsd" or "bshd"; None: the one whose length is that of the positions, "bhsd" if both are.

    Raises:
        ShapeError: a name that is missing, shapes that do not fit.
        PositionError: NaN, infinite, or in a dtype that cannot hold them.
    """
    given = {name: _tensor(name, value) for name, value in tensors.items() if name in NAMES and value is not None}
    sides = [name for name in ("q", "k") if name in given]
    if not sides:
        raise ShapeError(f"there is neither q nor k among {sorted(tensors)}; wanted are {', '.join(NAMES)}")
    for name in sides:
        if f"{name}_rot" not in given:
            raise ShapeError(f"there is {name} and no {name}_rot, which is {name} after the rotation")
    shapes = [given[name].shape for name in sides]
    layout = _layout(layout, shapes, given.get("positions"))
    brought = []
    for name in sides:
        before, after = given[name], given[f"{name}_rot"]
        if before.shape != after.shape:
            raise ShapeError(
                f"{name} is {tuple(before.shape)} and {name}_rot {tuple(after.shape)}; a rotation keeps the shape. Were the "
                "axes exchanged, or heads repeated, in between? Save both at the same place"
            )
        brought.append((name, _four(name, before, layout), _four(name, after, layout), (before.dtype, after.dtype)))
    batch, seq = brought[0][1].shape[0], brought[0][1].shape[2]
    for name, before, *_ in brought[1:]:
        first = brought[0][1]
        if (before.shape[0], before.shape[2], before.shape[3]) != (batch, seq, first.shape[3]):
            raise ShapeError(
                f"q is {tuple(first.shape)} and {name} {tuple(before.shape)} as (batch, heads, seq, head_dim); batch, seq and "
                "head_dim are one. Save q and k of the same tokens (in decoding: of the new token, not the cache)"
            )
    positions = _positions(given.get("positions"), batch, seq)
    rows = tuple(range(batch)) if batch <= ROWS else (0, 1, batch // 2, batch - 1)
    tokens = _tokens(seq)
    made = []
    for name, before, after, dtypes in brought:
        heads = _spread(before.shape[1], HEADS)
        cut = [t[list(rows)][:, heads][:, :, tokens].double() for t in (before, after)]
        if not bool(torch.isfinite(cut[0]).all()):
            raise ShapeError(f"{name} holds NaN or infinity before the rotation; give finite inputs")
        made.append(Side(name, cut[0], cut[1], dtypes))
    dtype = rounding.narrowest(*(t for side in made for t in (side.before, side.after.nan_to_num())))
    stored = min((d for side in made for d in side.given), key=lambda d: -rounding.UNITS[d])
    dtype = max((dtype, stored), key=lambda d: rounding.UNITS[d])
    return Observation(tuple(made), positions[list(rows)][:, tokens], tokens, dtype, rows)


def _tensor(name: str, value: Any) -> Tensor:
    tensor = torch.as_tensor(value).detach().cpu()
    if name == "positions":
        if tensor.dtype == torch.bool or tensor.is_complex():
            raise PositionError(
                f"positions come in {tensor.dtype}; give integers, or real numbers in float32 or float64"
            )
        if not bool(torch.isfinite(tensor.double()).all()):
            raise PositionError("positions hold NaN or infinity")
        return tensor
    if tensor.dtype not in rounding.UNITS:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in rounding.UNITS)
        raise ShapeError(f"{name} comes in {str(tensor.dtype).removeprefix('torch.')}; allowed are {allowed}")
    if tensor.ndim not in (3, 4) or 0 in tensor.shape:
        raise ShapeError(
            f"{name} is {tuple(tensor.shape)}; give (batch, heads, seq, head_dim), or (heads, seq, head_dim). Split a width of "
            "heads · head_dim with unflatten(-1, (heads, head_dim)) first"
        )
    return tensor


def _layout(layout: str | None, shapes: list[torch.Size], positions: Tensor | None) -> str:
    if layout not in (None, "bhsd", "bshd"):
        raise ShapeError(f"layout {layout!r} is unknown; allowed are 'bhsd' (batch, heads, seq, head_dim) and 'bshd'")
    if layout is not None or positions is None:
        return layout or "bhsd"
    fits = [
        name for name, axis in (("bhsd", -2), ("bshd", -3)) if all(shape[axis] in positions.shape for shape in shapes)
    ]
    if not fits:
        raise ShapeError(
            f"positions are {tuple(positions.shape)} and the tensors {[tuple(s) for s in shapes]}: no axis of the tensors is as "
            "long as the positions. Give one position a token"
        )
    return fits[0]


def _four(name: str, tensor: Tensor, layout: str) -> Tensor:
    four = tensor if tensor.ndim == 4 else tensor[None]
    return four if layout == "bhsd" else four.transpose(1, 2)


def _positions(positions: Tensor | None, batch: int, seq: int) -> Tensor:
    if positions is None:
        return torch.arange(seq, dtype=torch.float64)[None, :, None].expand(batch, seq, 1)
    shape, wide = tuple(positions.shape), positions.double()
    if wide.ndim == 1 and shape == (seq,):
        wide = wide[None, :, None]
    elif wide.ndim == 2 and shape in ((batch, seq), (1, seq)):
        wide = wide[..., None]
    elif wide.ndim == 2 and shape[0] == seq and shape[1] <= 4:
        wide = wide[None]
    elif wide.ndim == 3 and shape[:2] in ((batch, seq), (1, seq)):
        pass
    elif wide.ndim == 3 and shape[1:] in ((batch, seq), (1, seq)):  # as transformers has them
        wide = wide.permute(1, 2, 0)
    else:
        raise PositionError(
            f"positions are {shape} for {batch} rows of {seq} tokens; allowed are (seq,), (batch, seq), (batch, seq, axes) and "
            "(axes, batch, seq). Is the layout (batch, seq, heads, head_dim)? Say so with layout='bshd'"
        )
    return wide.expand(batch, seq, wide.shape[-1])


def _tokens(seq: int) -> Tensor:
    """Return the tokens to look at: all, or the first, the last and runs in between, since neighbours show frequencies."""
    if seq <= TOKENS:
        return torch.arange(seq)
    run, edge = 16, TOKENS // 4
    starts = torch.linspace(edge, seq - edge - run, (TOKENS - 2 * edge) // run).long()
    middle = (starts[:, None] + torch.arange(run)).flatten()
    return torch.cat((torch.arange(edge), middle, torch.arange(seq - edge, seq))).unique()


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many of 0 ... count − 1, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
