"""How spread out attention is, along the sequence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.bias.gape import attention_entropy
from ropewalk.core.errors import ConfigError, ShapeError


def entropy_by_position(weights: Tensor, edges: Sequence[int]) -> Tensor:
    """−Σ_j a_ij ln a_ij in nats, averaged over rows and the queries e_n ≤ i < e_(n+1): (H, n).

    Of a trained model it grows with the context, except in the first layers; `ropewalk.LogLengthScale` keeps it where it was.

    Args:
        weights: attention of one layer (B, H, Q, K), queries numbered from 0.
        edges: e, rising: where buckets begin, and the end of the last.

    Raises:
        ConfigError: edges that do not rise, or a bucket beyond the queries.
    """
    if weights.ndim != 4:
        raise ShapeError(f"attention weights are (B, H, Q, K); got shape {tuple(weights.shape)}")
    rising = all(a < b for a, b in itertools.pairwise(edges))
    if len(edges) < 2 or not rising or edges[0] < 0 or edges[-1] > weights.shape[2]:
        raise ConfigError(
            f"edges are two or more rising whole numbers from 0 to {weights.shape[2]}; got {list(edges)!r}"
        )
    entropy = attention_entropy(weights).mean(0)
    return torch.stack([entropy[:, a:b].mean(-1) for a, b in itertools.pairwise(edges)], -1)
