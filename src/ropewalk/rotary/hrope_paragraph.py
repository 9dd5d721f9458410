"""hRoPE of paragraphs, sentences and tokens: a channel of pairs for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.core import rotation
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, check_rotary_width
from ropewalk.rotary.axial import spread

NAMES = ("paragraph", "sentence", "token")


class MultiChannelRoPE(Rotary):
    """Pair i of channel c turns by p_c · base_c^(−2i/d_c),  i = 0 … d_c/2 − 1,  c = paragraph, sentence, token.

    What paragraph a token is in is an input, so it can be changed under the same text
    (`ropewalk.coordinates.hierarchy.intervene`); `ropewalk.analysis.paragraph_compression` measures what becomes of attention.

    Args:
        head_dim: width d of a head.
        channel_dims: even widths d_c, d together; a width may be 0. None: a quarter for each of the first two, rounded down to
            even, and the rest for tokens.
        bases: of each channel; small ones where numbers are small.
        pairing: within each channel: "half" (i, i + d_c/2) or "interleaved".

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S, 3), integer or real: `ropewalk.hierarchical_positions` makes
    them, for the new tokens of a decoding step too (it carries a state).

    Raises:
        ConfigError: widths that do not add up, or not as many bases.
        PositionError: positions of other axes, plain ones among them.

    Source: Shuyang Xiang. Paragraph Boundaries Are Not White Space: Compression Depth as the Signature of Hierarchical Structure.
    arXiv 2609.23551, 2026. Widths, bases and whether counters start anew are our reading.
    """

    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        channel_dims: Sequence[int] | None = None,
        bases: Sequence[float] = (100.0, 100.0, 10_000.0),
        *,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(pairing)
        check_rotary_width(head_dim)
        if channel_dims is None:
            share = head_dim // 8 * 2
            channel_dims = (share, share, head_dim - 2 * share)
        for width in channel_dims:
            check_rotary_width(width)
        if len(channel_dims) != 3 or sum(channel_dims) != head_dim:
            raise ConfigError(
                f"channel_dims {list(channel_dims)}: give even widths of the channels of paragraphs, sentences and tokens, "
                f"{head_dim} (head_dim) together"
            )
        if len(bases) != 3:
            raise ConfigError(f"bases {list(bases)}: give one for each of {', '.join(NAMES)}")
        for base in bases:
            check_base(base)
        self.head_dim, self.channel_dims = head_dim, tuple(channel_dims)
        self.bases = tuple(float(base) for base in bases)
        self.axes = 3  # type: ignore[misc]
        if not head_dim:
            raise ConfigError("a head of no channels has none to turn; head_dim is at least 2")
        row = tuple(axis for axis, width in enumerate(self.channel_dims) for _ in range(width // 2))
        self.allocation = Allocation((row,), NAMES, "own", self.bases)
        self.derive("inv_freq", self._inverse_frequencies)

    def _inverse_frequencies(self) -> Tensor:
        return self.allocation.frequencies(1.0)[0]

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        if tokens.axes != 3:
            have = "plain" if tokens.axes is None else f"{tokens.axes} axes each"
            raise PositionError(
                f"{type(self).__name__} turns by (paragraph, sentence, token) and these positions are {have}: make them with "
                "rw.hierarchical_positions(paragraph_ends, sentence_ends)"
            )
        return tokens.coordinates(chain)

    def angles(self, position: Tensor) -> Tensor:
        return spread(position, [width // 2 for width in self.channel_dims]) * self.exact("inv_freq", position.device)

    def turn(self, x: Tensor, tables: tuple[Tensor, Tensor], p: Attention) -> Tensor:
        """Turn each channel by itself, so that its halves are its own."""
        pairs = [width // 2 for width in self.channel_dims]
        cos, sin = (t.split(pairs, -1) for t in tables)
        parts = x.split(self.channel_dims, -1)
        turned = [
            rotation.rotate(part, c, s, self.pairing)
            for part, c, s in zip(parts, cos, sin, strict=True)
            if part.shape[-1]
        ]
        return torch.cat(turned, -1)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, channel_dims={self.channel_dims}, bases={self.bases}, pairing={self.pairing}"
