"""How far attention of one sequence to another lies from the diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core.errors import ShapeError


def diagonality(weights: Tensor, query_lengths: Tensor | None = None, key_lengths: Tensor | None = None) -> Tensor:
    """Return mean_m |argmax_n a_mn / L_k − m / L_q|, (...): 0 for attention along the diagonal; ties go to the lowest index.

    Args:
        weights: (B, ..., L_q, L_k), after the softmax or before it.
        query_lengths: (B,) real queries of each row, the first ones; None: all.
        key_lengths: (B,) real keys; None: all.

    Example:
        >>> diagonality(torch.eye(4)[None]).item()
        0.0
    """
    if weights.ndim < 3:
        raise ShapeError(f"weights have shape {tuple(weights.shape)}; expected (batch, ..., queries, keys)")
    b, (queries, keys) = len(weights), weights.shape[-2:]
    sizes = []
    for name, given, size in (("query_lengths", query_lengths, queries), ("key_lengths", key_lengths, keys)):
        count = torch.full((b,), size, device=weights.device) if given is None else given.to(weights.device)
        if count.shape != (b,) or bool((count < 1).any()) or bool((count > size).any()):
            raise ShapeError(f"{name} {count.tolist()}: give one for each of {b} rows, from 1 to {size}")
        sizes.append(count.view(b, *[1] * (weights.ndim - 2)))
    m = torch.arange(queries, device=weights.device)
    n = torch.arange(keys, device=weights.device)
    seen = weights.masked_fill(n >= sizes[1][..., None], -torch.inf)
    peak = (seen == seen.amax(-1, keepdim=True)).int().argmax(-1)
    apart = (peak / sizes[1].double() - m / sizes[0].double()).abs()
    real = m < sizes[0]
    return torch.where(real, apart, 0.0).sum(-1) / real.sum(-1)
