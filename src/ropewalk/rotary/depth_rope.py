"""Depth-aware RoPE (RoPEMover): depth on the axis of frames of an image transformer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.coordinates.depth import DEPTH, DepthMode
from ropewalk.core import rotation
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import check_axes
from ropewalk.core.errors import CannotEdit, ConfigError, PositionError
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_rotary_width
from ropewalk.rotary.axial import AxialRoPE


class DepthRoPE(AxialRoPE):
    """Pair j of axis a turns by p_a · base^(−2j/d_a),  p = (depth, row, column), rows and columns about the middle.

    What is in front shows as a difference of depth, and what has no depth (text, masks) keeps the number of its picture there. An
    object is moved by giving its cells in the source the positions of where it is to be (`ropewalk.warp_rows`): nothing of the
    attention changes. With ``mode="overwrite"``, as released, pair 0 does not turn but is multiplied by depth, in q and in k:
    logit pair 0 is d_i d_j Re(q̄_0 k_0), and the other pairs of the first axis turn by the number of the picture.

    Args:
        head_dim: width d of a head.
        widths: channels of (depth, row, column); None: 2⌊7d/32⌋ for row and column, and the rest for depth: (16, 56, 56) of 128.
        mode: "rotate", or "overwrite" for parity with the released weights.
        base: of the frequencies of each axis.
        pairing: "interleaved" as released.

    Shapes: q (B, H, S, d), k (B, H_kv, S, d); positions (b, S, 3), real: `ropewalk.centered_grid_ids` and `ropewalk.depth_axis`
    of the same mode make them. "overwrite" reads the column "depth" (b, S), 0 for tokens that have none. Units: cells; depth from
    1 to 2.

    Raises:
        ConfigError: channels that three axes cannot share, another mode.
        PositionError: depth that is not finite, positions of other axes, plain ones among them.
        NeedsColumn: "overwrite" without the column "depth".
        CannotEdit: "overwrite", if keys are to be moved.

    Source: İpek Öztaş, Duygu Ceylan, Aybars Buğra Aksoy, Ayşegül Dündar. RoPEMover: Depth-Aware Object Relocation via Positional
    Embeddings. arXiv 2606.27332, 2026.
    """

    def __init__(
        self,
        head_dim: int,
        widths: Sequence[int] | None = None,
        mode: DepthMode = "rotate",
        *,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        if mode not in ("rotate", "overwrite"):
            raise ConfigError(f"mode is 'rotate' or 'overwrite'; got {mode!r}")
        if widths is None:
            check_rotary_width(head_dim)
            side = 7 * head_dim // 32 * 2
            if side == 0:
                raise ConfigError(
                    f"three axes and only {head_dim} channels; each needs a pair, so head_dim is at least 6, or give widths="
                )
            widths = (head_dim - 2 * side, side, side)
        super().__init__(head_dim, 3, widths=widths, base=base, pairing=pairing)
        self.mode = mode
        if mode == "overwrite" and not self.widths[0]:
            raise ConfigError(f"mode='overwrite' needs a pair of channels for depth; got widths {list(self.widths)}")

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        if tokens.axes != 3:
            have = "plain" if tokens.axes is None else f"{tokens.axes} axes each"
            raise PositionError(
                f"{type(self).__name__} turns by (depth, row, column) and these positions are {have}: make them with "
                "rw.depth_axis(rw.centered_grid_ids(sizes), depth)"
            )
        return tokens.coordinates(chain)

    def tables(self, tokens: Tokens, chain: Chain, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.mode == "rotate":
            return super().tables(tokens, chain, dtype)

        def make() -> tuple[Tensor, Tensor]:
            position = self.coordinates(tokens, chain)
            check_axes(self, position, 3)
            depth = tokens.column(DEPTH, 'rw.depth_axis(positions, depth, mode="overwrite")').double()[:, None, :, None]
            cos, sin = rotation.tables(self.angles(position)[:, None], torch.float64)
            rows = max(len(cos), len(depth))
            cos, sin, depth = (t.expand(rows, *t.shape[1:]) for t in (cos, sin, depth))
            first = torch.where(depth > 0, depth, cos[..., :1]), torch.where(depth > 0, 0.0, sin[..., :1])
            return torch.cat([first[0], cos[..., 1:]], -1).to(dtype), torch.cat([first[1], sin[..., 1:]], -1).to(dtype)

        if any(m.learned for m in chain):
            return make()
        return tokens.memo(lambda: ("overwrite", self.key(), tuple(m.key for m in chain), dtype), make)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        if self.mode == "overwrite":
            raise CannotEdit("keys that were multiplied by their depth cannot be brought to another; encode them anew")
        return super().move(problem, tokens)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, {self.widths}, {self.mode!r}, base={self.base}, pairing={self.pairing}"
