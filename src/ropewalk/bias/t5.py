"""T5's relative position buckets."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ropewalk.core.encoding import Bias
from ropewalk.core.errors import ConfigError, check_positive


class T5(Bias):
    """s_ij = q_i·k_j · scale + b_h[bucket(i − j)],  one learned number a bucket and head.

    With n buckets (causal: n = num_buckets; bidirectional: half for each side, keys after the query in the second
    half) and e = n/2, a distance d goes to bucket d below e, and above it to e + ⌊ln(d/e) / ln(max_distance/e) · (n − e)⌋,
    at most n − 1. Causal: keys after the query count as distance 0.

    T5 does not divide logits by √d: give ``scale=1.0`` to the problem to follow it. One table serves all layers there:
    hold one encoding at model level and hand it to the layers.

    Args:
        num_heads: query heads H.
        num_buckets: 32 in the paper.
        max_distance: from here on everything shares the last bucket; 128 in the paper.
        bidirectional: give keys after the query buckets of their own.
        hidden_size: width of the model, whose inverse root is the standard deviation of the initial table (T5's rule);
            None: 0.02.

    Shapes: weight (num_buckets, H), laid out as in T5 checkpoints; positions (b, S), in tokens; a fraction of a distance counts
    as its whole part.

    Source: Colin Raffel, Noam Shazeer, Adam Roberts, Katherine Lee, Sharan Narang, Michael Matena, Yanqi Zhou, Wei Li,
    Peter J. Liu. Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. arXiv 1910.10683,
    2019; baseline of arXiv 2305.19466.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
        hidden_size: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, num_buckets=num_buckets, hidden_size=hidden_size)
        exact = num_buckets // (4 if bidirectional else 2)
        if exact < 1 or num_buckets % (4 if bidirectional else 2):
            raise ConfigError(f"num_buckets={num_buckets} is to be a multiple of {4 if bidirectional else 2}")
        if max_distance <= exact:
            raise ConfigError(f"max_distance={max_distance} must exceed the {exact} distances with their own bucket")
        self.num_heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.weight, std=0.02 if hidden_size is None else hidden_size**-0.5)

    def per_head(self, num_heads: int) -> dict[str, Tensor]:
        return {"table": self.weight.t()}

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance i − j."""
        n = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        exact = n // 2
        size = distance.abs() if self.bidirectional else distance.clamp(min=0)
        # Whole powers land on whole buckets, which a rounded logarithm may miss by its last bit.
        far = torch.log(size.clamp(min=exact) / exact) * ((n - exact) / math.log(self.max_distance / exact)) + 1e-6
        index = torch.where(size < exact, size.floor(), (exact + far.floor()).clamp(max=n - 1))
        return torch.where(distance < 0, index + n, index) if self.bidirectional else index

    def bias(self, i: Tensor, j: Tensor, table: Callable[[Tensor], Tensor]) -> Tensor:
        return table(self.bucket(i - j))

    def extra_repr(self) -> str:
        return f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}"
