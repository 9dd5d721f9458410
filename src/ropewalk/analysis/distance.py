"""What an encoding makes of one query and one key, the further they are apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.backends import attend, dense
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import CannotCompose, ConfigError, ShapeError
from ropewalk.core.positions import Positions


class DistanceCurve(NamedTuple):
    """By head and distance, averaged over contents."""

    logit: Tensor
    """(H, n) scaled logits."""

    weight: Tensor
    """(H, n) attention among keys of the same content at all these distances."""


def distance_curve(encoding: Encoding, distances: Tensor, q: Tensor, k: Tensor) -> DistanceCurve:
    """Return logit and attention against distance, for contents of your choice: fixed, or drawn and averaged.

    Args:
        encoding: of plain positions, whose scores need no layer's input.
        distances: (n,) from 0, rising.
        q: (draws, H, d) contents of the query.
        k: (draws, H_kv, d) contents of the keys, the same at every distance.

    Raises:
        ShapeError: contents of other shapes.
        CannotCompose: an encoding that splits heads into several problems.
    """
    if q.ndim != 3 or k.ndim != 3 or distances.ndim != 1 or not len(distances):
        raise ShapeError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and distances {tuple(distances.shape)}; expected (draws, H, d), "
            "(draws, H_kv, d) and (n,)"
        )
    last = distances.max()
    keys = k[:, :, None].expand(-1, -1, len(distances), -1)
    where = Positions(
        q=last[None], k=(last - distances).flip(0)
    )  # in the order of the sequence: the nearest comes last
    p = encoding(Attention(q[:, :, None], keys, keys, where))
    if not isinstance(p, Attention):
        raise CannotCompose(f"{type(encoding).__name__} splits the heads; give it head by head")
    _, weights = attend(p, "dense", return_weights=True)
    logits = dense.logits(p, dense.allowed(p), torch.float64)
    return DistanceCurve(*(t[:, :, 0].flip(-1).double().mean(0) for t in (logits, weights)))


def distance_edges(length: int) -> list[int]:
    """Return where buckets of distances begin, 0, 1, 2, 4, 8, …, and the end of the last, ``length``."""
    edges = [0]
    step = 1
    while step < length:
        edges.append(step)
        step *= 2
    return [*edges, length]


def attention_by_distance(weights: Tensor, edges: Sequence[int], start: int | None = None) -> Tensor:
    """Share of attention at each range of distances, averaged over queries: (..., n) for weights (..., Q, K).

    Queries near the beginning have no far keys. The shares add up to 1 where the edges cover all distances.

    Args:
        weights: causal, of queries that follow each other.
        edges: whole numbers that rise: where ranges begin, and the end of the last.
        start: index of the first query; None: the queries are the last of the keys.
    """
    if weights.ndim < 2:
        raise ShapeError(f"weights are (..., Q, K); got shape {tuple(weights.shape)}")
    if len(edges) < 2 or edges[0] < 0 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise ConfigError(f"edges are two or more rising whole numbers from 0; got {list(edges)!r}")
    q, k = weights.shape[-2:]
    first = k - q if start is None else start
    query = torch.arange(first, first + q, device=weights.device)[:, None]
    distance = query - torch.arange(k, device=weights.device)
    bounds = torch.tensor(list(edges), device=weights.device)
    bucket = torch.bucketize(distance, bounds, right=True)  # 0 lies before the first edge, len(edges) after the last
    flat = weights.new_zeros(*weights.shape[:-2], len(edges) + 1)
    flat.index_add_(-1, bucket.flatten(), weights.flatten(-2))
    return flat[..., 1:-1] / q


def mean_attention_distance(weights: Tensor, positions: Positions) -> Tensor:
    """Mean over queries of Σ_j a_ij ‖x_i − x_j‖, (B, H): how far heads look, in units of the coordinates.

    Args:
        weights: attention (B, H, Q, K).
        positions: of its queries and keys, plain or of several axes; padding is left out.

    Raises:
        ShapeError: positions of other tokens.
    """
    q, k = positions.query, positions.key
    if weights.ndim != 4 or weights.shape[-2:] != (q.length, k.length):
        raise ShapeError(
            f"weights {tuple(weights.shape)} and positions of {q.length} queries and {k.length} keys; expected (B, H, Q, K)"
        )
    x, y = (t.coordinates() if t.axes else t.coordinates()[..., None] for t in (q, k))
    apart = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    reach = (weights.double() * apart[:, None]).sum(-1)
    real = q.columns.get("valid")
    if real is None:
        return reach.mean(-1)
    real = real[:, None].double()
    return (reach * real).sum(-1) / real.sum(-1).clamp(min=1)
