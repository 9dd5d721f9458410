"""Schemes of videos that are denoised as a whole, with what they depend on beside them in the sequence."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.coordinates.blocks import IMAGE, VIDEO, Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.errors import PositionError
from ropewalk.core.positions import Tokens


class WholeVideo(Scheme):
    """A scheme of samples that are one video and its conditions, all of them grids; text is read by cross-attention.

    What has no place in such a sample raises a `PositionError`; in a compiled graph an asynchronous assertion does.
    """

    @abstractmethod
    def check(self, table: Table) -> None:
        """Demand what the scheme wants of a sample."""

    def __call__(self, tokens: Tokens, coordinates: Tensor) -> Tensor:
        """Return the coordinates of tokens of a layout that has a video and its conditions."""
        self._knows(tokens)
        cells = Cells.of(tokens, coordinates, self)
        valid = tokens.columns.get("valid")
        placed = cells.visual if valid is None else cells.visual | ~valid
        name = type(self).__name__
        demand(
            placed.all(),
            f"{name} places a video and the images and tracks beside it, and some of these tokens are text: let the video read "
            "text by cross-attention",
        )
        table = cells.table
        demand((table["across"] == 0).all(), f"{name} places whole images; give Image(rows, columns) instead of Tiles")
        demand((table["depth"] <= 1).all(), f"{name} has no third axis of space; give videos of depth 1")
        self.check(table)
        return self.at(cells)

    def advance(self, table: Table) -> Tensor:
        return table["tokens"]  # nothing is placed by the cursor

    def follows(self, tokens: Tokens) -> None:
        return None

    def cursor(self, tokens: Tokens) -> Tensor:
        """Refuse: a video that is denoised as a whole is not continued."""
        raise PositionError(f"{type(self).__name__} places whole samples; no token follows a video and its conditions")


def demand(holds: Tensor, message: str) -> None:
    """Raise a `PositionError` unless something holds; in a compiled graph an asynchronous assertion does that."""
    if is_compiling():
        torch._assert_async(holds, message)
    elif not holds.is_meta and not bool(holds):
        raise PositionError(message)


def videos(table: Table) -> Tensor:
    """Which blocks are videos, (b, N)."""
    return table["kind"] == VIDEO


def images(table: Table) -> Tensor:
    """Which blocks are images, (b, N)."""
    return table["kind"] == IMAGE


def together(table: Table) -> Tensor:
    """Which blocks are of one sample, (b, N, N)."""
    same = table["first"][..., :, None] == table["first"][..., None, :]
    return same & table.real[..., :, None] & table.real[..., None, :]


def number_of(there: Tensor, same: Tensor) -> Tensor:
    """Return for each block how many of those ``there`` (b, N) are of its sample; ``same`` is `together`."""
    return (same & there[..., None, :]).sum(-1)


def value_of(value: Tensor, there: Tensor, same: Tensor) -> Tensor:
    """Return for each block the value (b, N) of the only one of its sample that is ``there``."""
    return (torch.where(there, value, 0.0)[..., None, :] * same).sum(-1)
