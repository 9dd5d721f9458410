"""ALiBi."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ropewalk.bias.slopes import alibi_slopes
from ropewalk.core.attention import Pair
from ropewalk.core.encoding import Bias
from ropewalk.core.errors import ConfigError, check_positive


class ALiBi(Bias):
    """s_ij = q_i·k_j / √d − m_h (i − j),  m_h = 2^(−8h/H).

    Attention to a key falls linearly with its distance, at a rate of its own in each head. In bidirectional attention
    the distance is |i − j|.

    Args:
        num_heads: query heads H of the layer; None: as many as the problem has.
        bidirectional: penalise |i − j| rather than i − j. The causal form is a sum of products and runs on fused
            kernels without an S x S bias; this one is not.
        slopes: other slopes, one a head, instead of the published ones.
        learned: learn the logarithms of the slopes, from these values on.
        past_discount: taken off the distance of keys before the query, bidirectional only, so that a head can tell left
            from right (0.5 in arXiv 2305.16843).
        future_discount: the same for keys after the query.

    Shapes: positions (b, S), integer or real, in tokens. Numbers: distances in float64.

    Raises:
        ShapeError: made for another number of heads than the problem has.

    Source: Ofir Press, Noah A. Smith, Mike Lewis. Train Short, Test Long: Attention with Linear Biases Enables Input
    Length Extrapolation. arXiv 2108.12409, 2021.
    """

    slope: Tensor

    def __init__(
        self,
        num_heads: int | None = None,
        *,
        bidirectional: bool = False,
        slopes: Sequence[float] | None = None,
        learned: bool = False,
        past_discount: float = 0.0,
        future_discount: float = 0.0,
    ) -> None:
        super().__init__()
        if (past_discount or future_discount) and not bidirectional:
            raise ConfigError("discounts tell left from right in bidirectional attention; give bidirectional=True")
        if slopes is not None:
            if num_heads is not None and len(slopes) != num_heads:
                raise ConfigError(f"{len(slopes)} slopes for num_heads={num_heads}")
            num_heads = len(slopes)
        check_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.bidirectional = bidirectional
        self.slopes = None if slopes is None else tuple(float(s) for s in slopes)
        self.log_slope: nn.Parameter | None = None
        if learned:
            if num_heads is None or min(self._slope()) <= 0:
                raise ConfigError("learned slopes are positive, one a head: give num_heads, or positive slopes")
            self.log_slope = nn.Parameter(self._slope().log().float())
        elif num_heads is not None:
            self.derive("slope", self._slope)
        self.past_discount, self.future_discount = float(past_discount), float(future_discount)

    @property
    def factored(self) -> bool:
        return not self.bidirectional  # |i - j| is no sum of products

    def _slope(self) -> Tensor:
        if self.slopes is not None:
            return torch.tensor(self.slopes, dtype=torch.float64, device="cpu")
        assert self.num_heads is not None
        return alibi_slopes(self.num_heads)

    def per_head(self, num_heads: int) -> dict[str, Tensor]:
        if self.log_slope is not None:
            return {"slope": self.log_slope.double().exp()}
        return {"slope": alibi_slopes(num_heads) if self.num_heads is None else self.exact("slope", self.slope.device)}

    def bias(self, i: Tensor, j: Tensor, slope: Tensor) -> Tensor:
        if not self.bidirectional:
            return -slope * (i - j)
        return -slope * lopsided(i - j, self.past_discount, self.future_discount)

    def factors(self, i: Tensor, j: Tensor, slope: Tensor) -> Sequence[Pair]:
        return (-slope * i, 1.0), (slope, j)

    def extra_repr(self) -> str:
        shown = [] if self.num_heads is None else [str(self.num_heads)]
        return ", ".join(shown + (["bidirectional"] if self.bidirectional else []))


def lopsided(distance: Tensor, past: float, future: float) -> Tensor:
    """|distance|, less a discount on the side of the past (distance > 0) or of the future."""
    size = distance.abs()
    if past:
        size = torch.where(distance > 0, size - past, size)
    return torch.where(distance < 0, size - future, size) if future else size
