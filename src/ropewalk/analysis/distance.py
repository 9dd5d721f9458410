"""What an encoding makes of one query and one key, the further they are apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.backends import attend, dense
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import CannotCompose, ShapeError
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
