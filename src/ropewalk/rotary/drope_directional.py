"""DRoPE (directional): headings as angles, so that attention sees their true differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.headings import heading_positions
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, check_rotary_width

Mode = Literal["intra-head", "head-by-head"]


class DirectionalRoPE(Rotary):
    """Pairs of x turn by x·base^(−i/n), pairs of y by y·base^(−i/n), i = 0 … n − 1, and pairs of the heading α all by α.

    Frequencies other than whole numbers break the period of an angle; with one, logits depend on α_q − α_k modulo 2π exactly,
    as A cos + B sin of it. A shift of all places or of all headings leaves logits alone; a turn of the whole scene does not,
    since the axes of x and y are fixed.

    Args:
        head_dim: width d of a head.
        mode: "intra-head": the first ``split`` channels of each head are of x and y, the others of the heading. "head-by-head":
            whole key heads are of one or the other.
        split: channels of x and y, a multiple of 4; None: half of them, rounded down.
        num_kv_heads: key heads, for "head-by-head"; query heads go with theirs.
        heading_heads: which key heads are of the heading, counted from 0; None: the odd ones.
        base: of the frequencies of x and y.
        scale: x and y are multiplied by it; 1 is a radian a metre in the fastest pair.
        pairing: "interleaved" or "half".

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S, 3) of (x, y, α) in metres and radians, real;
    `ropewalk.heading_positions` makes them. Memory grows with the number of tokens, not of pairs of tokens.

    Raises:
        ConfigError: a width or split that cannot be shared out, heads that do not exist, arguments of the other mode.
        PositionError: positions of other axes, plain ones among them.

    Source: Jianbo Zhao, Taiyu Ban, Zhihao Liu, Hangning Zhou, Xiyang Wang, Qibin Zhou, Hailong Qin, Mu Yang, Lei Liu, Bin Li.
    DRoPE: Directional Rotary Position Embedding for Efficient Agent Interaction Modeling. arXiv 2503.15029, 2025.
    """

    axes = 3
    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        mode: Mode = "intra-head",
        *,
        split: int | None = None,
        num_kv_heads: int | None = None,
        heading_heads: Sequence[int] | None = None,
        base: float = 10_000.0,
        scale: float = 1.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(pairing)
        check_base(base)
        check_rotary_width(head_dim)
        check_positive(head_dim=head_dim)
        if not (math.isfinite(scale) and scale > 0):
            raise ConfigError(f"scale is a positive number; got {scale!r}")
        self.head_dim, self.mode, self.base, self.scale = head_dim, mode, float(base), float(scale)
        if mode == "intra-head":
            if heading_heads is not None:
                raise ConfigError(
                    "heading_heads are of mode='head-by-head'; here every head has channels of both kinds"
                )
            rows: tuple[tuple[int, ...], ...] = (_row(head_dim, _split(head_dim, split)),)
        elif mode == "head-by-head":
            if split is not None:
                raise ConfigError("split is of mode='intra-head'; here whole heads are of one kind")
            rows = _rows(head_dim, num_kv_heads, heading_heads)
        else:
            hint = suggest(mode, ("intra-head", "head-by-head"))
            raise ConfigError(f"mode is 'intra-head' or 'head-by-head'; got {mode!r}.{hint}")
        self.allocation = Allocation(rows, ("x", "y", "heading"), "own", (self.base, self.base, 1.0))
        self.derive("inv_freq", self._inverse_frequencies)

    def _inverse_frequencies(self) -> Tensor:
        return self.allocation.frequencies(self.base)

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        if tokens.axes != 3:
            have = "plain" if tokens.axes is None else f"{tokens.axes} axes each"
            raise PositionError(
                f"{type(self).__name__} turns by (x, y, heading) and these positions are {have}: make them with "
                "rw.heading_positions(xy, heading)"
            )
        return tokens.coordinates(chain)

    def angles(self, position: Tensor) -> Tensor:
        scaled = position * position.new_tensor([self.scale, self.scale, 1.0])
        angles = self.allocation.spread(scaled) * self.exact("inv_freq", position.device)[:, None]
        return angles[:, 0] if self.allocation.heads is None else angles

    def extra_repr(self) -> str:
        return f"{self.head_dim}, {self.mode}, base={self.base}, scale={self.scale}, pairing={self.pairing}"


def drope(
    q: Tensor,
    k: Tensor,
    xy: Tensor,
    heading: Tensor,
    mode: Mode = "intra-head",
    split: int | None = None,
    base: float = 10_000.0,
) -> tuple[Tensor, Tensor]:
    """Return q and k turned by `DirectionalRoPE`, for one's own attention call.

    Args:
        q: (B, H, n, d).
        k: (B, H_kv, n, d).
        xy: (n, 2) or (B, n, 2), in metres.
        heading: (n,) or (B, n), in radians.
        mode: see `DirectionalRoPE`.
        split: likewise.
        base: likewise.
    """
    made = DirectionalRoPE(q.shape[-1], mode, split=split, num_kv_heads=k.shape[1], base=base)
    return made.rotate(q, k, heading_positions(xy, heading))


def _split(head_dim: int, split: int | None) -> int:
    """Return the channels of x and y."""
    if split is None:
        split = head_dim // 8 * 4
    if isinstance(split, bool) or not isinstance(split, int) or not 0 <= split <= head_dim or split % 4:
        raise ConfigError(
            f"split={split!r} of {head_dim} channels: give a multiple of 4, pairs for x and as many for y, from 0 to {head_dim}"
        )
    return split


def _row(head_dim: int, place: int) -> tuple[int, ...]:
    return (0,) * (place // 4) + (1,) * (place // 4) + (2,) * ((head_dim - place) // 2)


def _rows(head_dim: int, num_kv_heads: int | None, heading_heads: Sequence[int] | None) -> tuple[tuple[int, ...], ...]:
    check_positive(num_kv_heads=num_kv_heads)
    if num_kv_heads is None:
        raise ConfigError("mode='head-by-head' deals out key heads: give num_kv_heads=")
    if head_dim % 4:
        raise ConfigError(
            f"a head of x and y has a multiple of 4 channels, pairs for each axis; got head_dim {head_dim}"
        )
    own = range(1, num_kv_heads, 2) if heading_heads is None else heading_heads
    wrong = [h for h in own if isinstance(h, bool) or not isinstance(h, int) or not 0 <= h < num_kv_heads]
    if wrong or len(set(own)) != len(own):
        raise ConfigError(
            f"heading_heads {list(own)}: each key head once, counted from 0 to {num_kv_heads - 1}; None takes the odd ones"
        )
    return tuple(_row(head_dim, 0 if h in own else head_dim) for h in range(num_kv_heads))
