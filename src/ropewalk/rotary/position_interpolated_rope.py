"""Position-interpolated RoPE in the plane (Dens3R): larger grids are drawn together to the one of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.grid import FitMode, check_fit, fit_factors
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.attention import Attention
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.multi_axis import MultiAxisRoPE


@dataclass(frozen=True)
class FittedGrid(Scheme):
    """(row · f_h, column · f_w) in a grid of H × W,  f_h = min(1, L_h/H), f_w = min(1, L_w/W); all other tokens at the origin.

    Each image and each frame has the coordinates that it would have alone.

    Args:
        trained: (L_h, L_w), the grid of training.
        mode: "axes", or "isotropic": both axes have the smaller of the two factors.
    """

    trained: tuple[int, int]
    mode: FitMode = "axes"

    def __post_init__(self) -> None:
        check_fit(self.trained, self.mode)

    @property
    def axes(self) -> tuple[str, ...]:
        return ("h", "w")

    def advance(self, table: Table) -> Tensor:
        return table["tokens"]

    def place(self, cells: Cells) -> Tensor:
        sizes = torch.stack([cells["rows"], cells["columns"]], -1).clamp(min=1)
        return torch.stack([cells.row, cells.column], -1) * fit_factors(sizes, self.trained, self.mode)

    def at(self, cells: Cells) -> Tensor:
        return torch.where(cells.visual[..., None], self.place(cells), 0.0)


class PositionInterpolatedRoPE(MultiAxisRoPE):
    """Pair j of the channels of an axis turns by m · min(1, L/L′) · base^(−4j/d),  m the row or column of a patch.

    RoPE beyond the trained grid turns by angles that were never seen. Here the L′ patches of a longer side take the place of
    the L of training, as position interpolation does for text; grids up to the trained one are as they were.

    Args:
        head_dim: width d of a head, a multiple of 4: the first half turns by rows, the second by columns.
        trained_grid: L of both axes, or (rows, columns); 32 are 512 pixels in patches of 16. Models that were trained on grids
            of several shapes take the longer side.
        mode: "axes": each axis has a factor of its own; "isotropic": both have the smaller one, which keeps proportions.
        base: of the frequencies.
        pairing: within the channels of each axis, "half" as in CroCo and DUSt3R.

    Shapes: positions of a layout, whose images say how large they are: ``rw.layout([rw.Image(64, 48)])``. In cross-attention each
    side has its own, ``rw.Positions(q=rw.layout(...), k=rw.layout(...))``, and its own factors. Tokens that are no patches (CLS,
    registers) do not turn; frames of a video share coordinates. Positions (b, S, 2) are taken as they are; `scaled_positions`
    makes scaled ones, for any encoding of two axes.

    Raises:
        ConfigError: a width that is no multiple of 4, a trained grid that is none.
        PositionError: plain positions, which do not say how large the grid is.

    Source: Xianze Fang, Jingnan Gao, Zhe Wang, Zhuo Chen, Xingyu Ren, Jiangjing Lyu, Qiaomu Ren, Zhonglei Yang, Xiaokang Yang,
    Yichao Yan, Chengfei Lyu. Dens3R: A Foundation Model for 3D Geometry Prediction. arXiv 2507.16290, 2025. The paper has one
    length; a factor an axis, and the trained length, are our reading.
    """

    def __init__(
        self,
        head_dim: int,
        trained_grid: int | Sequence[int] = 32,
        mode: FitMode = "axes",
        base: float = 100.0,
        *,
        pairing: Pairing = "half",
    ) -> None:
        check_positive(head_dim=head_dim)
        if head_dim % 4:
            raise ConfigError(f"head_dim is a multiple of 4, pairs of channels of two axes; got {head_dim}")
        allocation = Allocation.contiguous((head_dim // 4,) * 2, ("h", "w"), "own")
        rows, columns = check_fit(trained_grid, mode)
        scheme = FittedGrid((rows, columns), mode)
        super().__init__(head_dim, allocation, scheme, base=base, pairing=pairing)

    def turn(self, x: Tensor, tables: tuple[Tensor, Tensor], p: Attention) -> Tensor:
        """Turn the channels of each axis like a head of their own, so that pairs are made within them."""
        of_axes = zip(x.chunk(2, -1), tables[0].chunk(2, -1), tables[1].chunk(2, -1), strict=True)
        return torch.cat([super(PositionInterpolatedRoPE, self).turn(y, (c, s), p) for y, c, s in of_axes], -1)
