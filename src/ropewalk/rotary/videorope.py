"""VideoRoPE: time on the slow pairs, space laid out diagonally around time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation, check_sections, share_out
from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.core.positions import Positions
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import rotary_pairs
from ropewalk.rotary.multi_axis import MultiAxisRoPE

SCALES = "time_scale"
"""Fact of the sequence: (b, N) scales of time, one a block, instead of the scheme's own."""


@dataclass(frozen=True)
class DiagonalIds(Scheme):
    """(t, h, w) = (s + δf, t + y − ⌊(H − 1)/2⌋, t + x − ⌊(W − 1)/2⌋),  s the cursor, then s + δ(F − 1) + 1.

    Args:
        scale: δ; None: it must come with the positions, block by block (`with_time_scales`).
        centre: "code": as above. "paper": H/2 and W/2 instead of the floors.
        after: "code": as above. "paper": text goes on at s + δF.
    """

    scale: float | None = 2.0
    centre: Literal["code", "paper"] = "code"
    after: Literal["code", "paper"] = "code"

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_scale(self.scale)
        for name, value in (("centre", self.centre), ("after", self.after)):
            if value not in ("code", "paper"):
                raise ConfigError(f"{name} is 'code' or 'paper'; got {value!r}")

    def advance(self, table: Table) -> Tensor:
        scale = self._scales(table)
        if self.after == "paper":
            return scale * table["frames"]
        return scale * (table["frames"] - 1) + 1

    def place(self, cells: Cells) -> Tensor:
        time = cells.cursor + cells.take(self._scales(cells.table)) * cells.frame
        row, column = (
            cell - (size / 2 if self.centre == "paper" else ((size - 1) / 2).floor())
            for cell, size in ((cells.row, cells["rows"]), (cells.column, cells["columns"]))
        )
        return torch.stack([time, time + row, time + column], -1)

    def _scales(self, table: Table) -> Tensor:
        given = table.facts.get(SCALES)
        if given is not None:
            return given.expand(table.numbers.shape[:2])
        if self.scale is None:
            raise ConfigError(
                "the scale of time is not set: give it to the encoding (0.75 for retrieval, 1.5 for understanding, say), or "
                "draw it in training (encoding.draw(positions))"
            )
        return torch.full_like(table["kind"], self.scale)


def with_time_scales(positions: Positions, scales: Tensor) -> Positions:
    """Give each block of a layout its own scale of time.

    Args:
        positions: of a layout.
        scales: (N,) or (batch, N), one a block of the layout, positive.
    """
    blocks = positions.key.sequence.get("blocks")
    scales = torch.as_tensor(scales, dtype=torch.float64)
    scales = scales[None] if scales.ndim == 1 else scales
    if blocks is None or scales.ndim != 2 or scales.shape[1] != blocks.shape[1]:
        have = "none" if blocks is None else f"{blocks.shape[1]}"
        raise PositionError(f"scales have shape {tuple(scales.shape)} and these positions have {have} blocks a row")
    if not bool((scales.isfinite() & (scales > 0)).all()):
        raise PositionError(f"scales of time are positive numbers; got {scales.tolist()}")
    return positions.map_sides(lambda t: t.with_sequence(**{SCALES: scales.to(t.device)}))


def check_scale(scale: float) -> None:
    """Check a scale of time."""
    if not 0 < scale < math.inf:
        raise ConfigError(f"the scale of time is a positive number; got {scale!r}")


class VideoRoPE(MultiAxisRoPE):
    """Pair i turns by h ω_i (i even) or w ω_i (i odd) for i < s_h + s_w, and by t ω_i after that,  ω_i = base^(−2i/d).

    Frame f of a block at cursor s has t = s + δf, and its cells lie around it: h = t + y − ⌊(H−1)/2⌋, w = t + x − ⌊(W−1)/2⌋.
    Text has t = h = w and is RoPE's. Time owns the slowest pairs, which do not come round within any video.

    Args:
        head_dim: width of a head.
        sections: pairs (s_t, s_h, s_w), of h and w the sum alone; None: the published proportion, (16, 24, 24) for 128 channels.
        base: of the frequencies; 1e6 in Qwen2-VL.
        scale: δ, how far frames are apart; 2 in the paper.
        centre: "code" (default) or "paper": whether halves of even grids are rounded.
        after: "code" (default) or "paper": where text goes on.
        row_first: h on the even pairs, as released.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies, such as `extend_time` makes.

    Shapes, errors: see `MultiAxisRoPE`. Coordinates may be negative and real.

    Source: Xilin Wei, Xiaoran Liu, Yuhang Zang, Xiaoyi Dong, Pan Zhang, Yuhang Cao, Jian Tong, Haodong Duan, Qipeng Guo, Jiaqi
    Wang, Xipeng Qiu, Dahua Lin. VideoRoPE: What Makes for Good Video Rotary Position Embedding? arXiv 2502.05173, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int] | None = None,
        base: float = 1e6,
        scale: float = 2.0,
        *,
        centre: Literal["code", "paper"] = "code",
        after: Literal["code", "paper"] = "code",
        row_first: bool = True,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        sections = check_sections(share_out(pairs) if sections is None else sections, 3, pairs)
        super().__init__(
            head_dim,
            Allocation.time_last(sections, row_first=row_first),
            DiagonalIds(scale, centre, after),
            base=base,
            pairing=pairing,
            spectrum=spectrum,
        )


def extend_time(spectrum: Spectrum, allocation: Allocation, factor: float, original: int) -> Spectrum:
    """Slow the pairs of time down for a context ``factor`` times as long; the pairs of space stay (VideoRoPE++).

    base' = base · ((factor · L − 1)/(L − 1))^(D/(D − 2)), and pair i of time turns by base'^(−2i/D).

    Args:
        spectrum: geometric frequencies, D/2 of them.
        allocation: which pairs are time's: axis 0.
        factor: at least 1.
        original: L, the trained context.
    """
    base, pairs = spectrum.base, len(spectrum.inv_freq)
    if base is None or pairs != allocation.pairs or allocation.heads is not None:
        raise ConfigError(
            "time is slowed down in a geometric ladder with as many pairs as the allocation, the same for all heads"
        )
    if not 1 <= factor < math.inf or original < 2:
        raise ConfigError(
            f"factor is a number from 1 and original a context of 2 or more; got {factor!r}, {original!r}"
        )
    slower = base * ((factor * original - 1) / (original - 1)) ** (pairs / (pairs - 1))
    mine = set(allocation.of(0))
    made = (slower ** (-i / pairs) if i in mine else w for i, w in enumerate(spectrum.inv_freq))
    return spectrum.then(made, f"extend_time(factor={factor!r}, original={original})")
