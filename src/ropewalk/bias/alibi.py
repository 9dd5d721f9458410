"""ALiBi."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.bias.slopes import alibi_slopes
from ropewalk.core.attention import Pair
from ropewalk.core.encoding import Bias
from ropewalk.core.errors import ConfigError


class ALiBi(Bias):
    """s_ij = q_i·k_j / √d − m_h (i − j),  m_h = 2^(−8h/H).

    Attention to a key falls linearly with its distance, at a rate of its own in each head. In bidirectional attention
    the distance is |i − j|.

    Args:
        num_heads: query heads H of the layer; None: as many as the problem has.
        bidirectional: penalise |i − j| rather than i − j. The causal form is a sum of products and runs on fused
            kernels without an S x S bias; this one is not.
        slopes: other slopes, one a head, instead of the published ones.

    Shapes: positions (b, S), integer or real, in tokens. Numbers: distances in float64.

    Raises:
        ShapeError: made for another number of heads than the problem has.

    Source: Ofir Press, Noah A. Smith, Mike Lewis. Train Short, Test Long: Attention with Linear Biases Enables Input
    Length Extrapolation. arXiv 2108.12409, 2021.
    """

    def __init__(
        self,
        num_heads: int | None = None,
        *,
        bidirectional: bool = False,
        slopes: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if slopes is not None:
            if num_heads is not None and len(slopes) != num_heads:
                raise ConfigError(f"{len(slopes)} slopes for num_heads={num_heads}")
            num_heads = len(slopes)
        if num_heads is not None and (isinstance(num_heads, bool) or num_heads < 1):
            raise ConfigError(f"num_heads is at least 1; got {num_heads!r}")
        self.num_heads = num_heads
        self.bidirectional = bidirectional
        self.slopes = None if slopes is None else tuple(float(s) for s in slopes)
        if bidirectional:
            self.factors = None

    def per_head(self, num_heads: int) -> dict[str, Tensor]:
        if self.slopes is not None:
            return {"slope": torch.tensor(self.slopes, dtype=torch.float64)}
        return {"slope": alibi_slopes(self.num_heads or num_heads)}

    def bias(self, i: Tensor, j: Tensor, slope: Tensor) -> Tensor:
        distance = i - j
        return -slope * (distance.abs() if self.bidirectional else distance)

    def factors(self, i: Tensor, j: Tensor, slope: Tensor) -> Sequence[Pair]:  # type: ignore[override]
        return (-slope * i, 1.0), (slope, j)

    def extra_repr(self) -> str:
        shown = [] if self.num_heads is None else [str(self.num_heads)]
        return ", ".join(shown + (["bidirectional"] if self.bidirectional else []))
