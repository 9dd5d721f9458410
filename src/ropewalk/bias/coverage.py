"""Coverage: attention that keeps off what was read before, without the steps that read nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ropewalk.core.errors import ShapeError, check_positive


class CoverageRefinement(nn.Module):
    """a_t = softmax(e_t − N(W_2 relu(W_1 * C_t))),  C_t = Σ_{s<t} m_s [a⁰_s, softmax(e_s)],  m_s = 0 at tokens without ink.

    e are logits of a decoder layer to the cells of an image, a⁰ the refined attention of the layer before it, W_1 a convolution
    over the grid and N a batch norm over its real cells. Tokens that draw nothing (``{``, ``^``, ``_``) look somewhere all the
    same; what they looked at is not read yet, so they do not count.

    Args:
        num_heads: heads.
        hidden_size: channels between the two convolutions.
        kernel_size: of the first one, odd.

    Shapes: logits and attention (B, H, T, h·w).

    Source: Tongkun Guan, Chengyu Lin, Wei Shen, Xiaokang Yang. PosFormer: Recognizing Complex Handwritten Mathematical
    Expression with Position Forest Transformer. arXiv 2407.07764, 2024. Without m it is CoMER's: Wenqi Zhao, Liangcai Gao.
    arXiv 2207.04410, 2022.
    """

    def __init__(self, num_heads: int, hidden_size: int = 32, kernel_size: int = 5) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, hidden_size=hidden_size, kernel_size=kernel_size)
        if kernel_size % 2 == 0:
            raise ShapeError(f"kernel_size is odd, so that a cell stays where it is; got {kernel_size}")
        self.num_heads = num_heads
        self.spread = nn.Conv2d(2 * num_heads, hidden_size, kernel_size, padding=kernel_size // 2)
        self.mix = nn.Conv2d(hidden_size, num_heads, 1, bias=False)
        self.norm = nn.BatchNorm1d(num_heads)

    def forward(
        self,
        logits: Tensor,
        previous: Tensor,
        size: tuple[int, int],
        *,
        skip: Tensor | None = None,
        valid: Tensor | None = None,
        state: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the refined attention and the running sum after the last step, to go on from.

        Args:
            logits: e, scaled.
            previous: a⁰.
            size: (h, w) of the grid.
            skip: (B, T), True where the input token has no ink (`ropewalk.coordinates.formulas.STRUCTURE`).
            valid: (B, h·w), False for cells that are padding.
            state: what the call for the steps before these returned; None: they are the first.

        Raises:
            ShapeError: tensors of other sizes: a grid or a mask of another image.
        """
        b, heads, steps, cells = logits.shape if logits.ndim == 4 else (0, 0, 0, -1)
        if heads != self.num_heads or previous.shape != logits.shape or cells != size[0] * size[1]:
            raise ShapeError(
                f"logits {tuple(logits.shape)} and attention {tuple(previous.shape)} of {self.num_heads} heads to a grid of "
                f"{size}: expected (B, heads, T, h·w) of both"
            )
        for name, given, shape in (("skip", skip, (b, steps)), ("valid", valid, (b, cells))):
            if given is not None and given.shape != shape:
                raise ShapeError(f"{name} has shape {tuple(given.shape)}; expected {shape}")
        real = torch.ones(b, cells, dtype=torch.bool, device=logits.device) if valid is None else valid
        shown = logits.masked_fill(~real[:, None, None], -torch.inf)
        looked = torch.cat([previous, shown.softmax(-1)], 1)
        if skip is not None:
            looked = torch.where(skip[:, None, :, None], 0.0, looked)
        # Sums of many steps in float64, so that one step at a time gives what all at once give.
        total = looked.double().cumsum(2)
        if state is not None:
            total = total + state[:, :, None]
        before = (total - looked.double()).to(logits.dtype)
        images = before.transpose(1, 2).reshape(b * steps, 2 * heads, *size)
        found = self.spread(images).relu() * real.view(b, 1, 1, *size).expand(-1, steps, -1, -1, -1).flatten(0, 1)
        off = self.mix(found).view(b, steps, heads, cells)
        there = real[:, None].expand(b, steps, cells)
        off = off.permute(0, 1, 3, 2)
        off = torch.zeros_like(off).masked_scatter(there[..., None], self.norm(off[there]))
        refined = (shown - off.permute(0, 3, 1, 2)).softmax(-1)
        return refined, total[:, :, -1]
