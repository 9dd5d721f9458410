"""VRoPE: distances from the four corners of a frame, on one line with the text."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation, Row
from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.errors import ConfigError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import rotary_pairs
from ropewalk.rotary.multi_axis import MultiAxisRoPE

SPACE = ("rows", "columns", "depth")


@dataclass(frozen=True)
class CornerIds(Scheme):
    """P_k = s + fN + p_k,  p_k the distance of a cell from corner k of its frame, N = Σ sizes − axes + 1; the cursor moves FN.

    Args:
        dims: axes of space, of which there are 2^dims corners, the first axis slowest and forward before mirrored. Cells along
            further axes share their coordinates.
        time: with a last axis s + fN + ⌊N/2⌋, the same in a whole frame.
    """

    dims: int = 2
    time: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        corners = tuple(f"{i}" for i in range(2**self.dims))
        return (*corners, "t") if self.time else corners

    def _line(self, block: Table | Cells) -> Tensor:
        """Coordinates that a frame uses up."""
        sizes = [block[name] for name in SPACE[: self.dims]]
        return torch.stack(sizes).sum(0) - self.dims + 1

    def advance(self, table: Table) -> Tensor:
        return table["frames"] * self._line(table)

    def place(self, cells: Cells) -> Tensor:
        line = self._line(cells)
        start = cells.cursor + cells.frame * line
        ways = [
            (cell, cells[name] - 1 - cell)
            for cell, name in zip((cells.row, cells.column, cells.layer), SPACE[: self.dims], strict=False)
        ]
        corners = [start + torch.stack(way).sum(0) for way in itertools.product(*ways)]
        return torch.stack([*corners, start + (line / 2).floor()] if self.time else corners, -1)


class VRoPE(MultiAxisRoPE):
    """Pair j turns by P_{j mod 4} ω_j,  P_k = s + tN + p_k,  N = H + W − 1.

    p_0 … p_3 are the steps from the four corners of the frame: h + w, h + (W−1−w), (H−1−h) + w, (H−1−h) + (W−1−w). Their mean
    is the same for all cells, so that no corner is nearer to the text; a frame uses N coordinates, and frames and text lie on
    one line without gaps. Text is RoPE's.

    Args:
        head_dim: width d of a head.
        base: of the frequencies.
        order: which corner pair j mod 4 has: "code" 0, 1, 2, 3; "paper" 0, 2, 3, 1.
        time_pairs: first pairs that turn by time alone, t = s + fN + ⌊N/2⌋; none as released.
        dims: axes of space, 1 to 3; 2^dims corners.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`. The time between frames is not used.

    Source: Zikang Liu, Longteng Guo, Yepeng Tang, Tongtian Yue, Junxian Cai, Kai Ma, Qingbin Liu, Xi Chen, Jing Liu. VRoPE:
    Rotary Position Embedding for Video Large Language Models. arXiv 2502.11664, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        *,
        order: Literal["code", "paper"] = "code",
        time_pairs: int = 0,
        dims: int = 2,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        if dims not in (1, 2, 3):
            raise ConfigError(f"dims is 1, 2 or 3 axes of space; got {dims!r}")
        if order not in ("code", "paper") or (order == "paper" and dims != 2):
            raise ConfigError(f"order is 'code', or 'paper' for two axes of space; got {order!r} for {dims}")
        if isinstance(time_pairs, bool) or not isinstance(time_pairs, int) or not 0 <= time_pairs <= pairs:
            raise ConfigError(f"time_pairs is a number of pairs from 0 to {pairs}; got {time_pairs!r}")
        if pairs - time_pairs < 2**dims and time_pairs < pairs:
            raise ConfigError(f"{2**dims} corners and only {pairs - time_pairs} pairs for them; each needs one")
        corners = (0, 2, 3, 1) if order == "paper" else tuple(range(2**dims))
        row: Row = (*(2**dims,) * time_pairs, *(corners[j % len(corners)] for j in range(pairs - time_pairs)))
        scheme = CornerIds(dims, time_pairs > 0)
        super().__init__(
            head_dim, Allocation((row,), scheme.axes), scheme, base=base, pairing=pairing, spectrum=spectrum
        )
