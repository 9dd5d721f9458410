"""Axes made of what blocks say by name: the plain scheme, for blocks that no published one places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.errors import ConfigError


@dataclass(frozen=True)
class ColumnIds(Scheme):
    """(p, c_1, …, c_n) = (s + i, s + a_1 x_1, …, s + a_n x_n) for token i of a block at cursor s, which moves by its tokens.

    x are numbers that the tokens have by name: those of a grid (frame, row, column, layer, seconds, reference), and whatever
    blocks say of each token (`ropewalk.coordinates.signals`). A token without one has s + i there, as text has on every axis: so
    text is RoPE's, and blocks of several kinds share the axes whose names they share.

    Args:
        names: of the numbers.
        scales: a of each, coordinates a unit; None: 1.

    Raises:
        NeedsColumn: blocks that say numbers of their tokens, and none of them one of these names.
    """

    names: tuple[str, ...]
    scales: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _listed(self.names))
        if not self.names or len(set(self.names)) != len(self.names):
            raise ConfigError(f"names are different, at least one; got {list(self.names)}")
        if self.scales is None:
            return
        object.__setattr__(self, "scales", tuple(float(a) for a in self.scales))
        if len(self.scales) != len(self.names) or not all(math.isfinite(a) for a in self.scales):
            raise ConfigError(f"scales {list(self.scales)}: give a finite number for each of {', '.join(self.names)}")

    @property
    def axes(self) -> tuple[str, ...]:
        return ("p", *self.names)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.names

    def advance(self, table: Table) -> Tensor:
        return table["tokens"]

    def place(self, cells: Cells) -> Tensor:
        order = cells.cursor + cells.offset
        scales = (1.0,) * len(self.names) if self.scales is None else self.scales
        made = [order]
        for name, scale in zip(self.names, scales, strict=True):
            value = cells.named(name)
            made.append(torch.where(value.isnan(), order, cells.cursor + scale * value))
        return torch.stack(made, -1)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
