"""What queries of a target find in a reference image: the token at their own place, or those that mean the same.

Source: Aryan Mikaeili, Or Patashnik, Andrea Tagliasacchi, Daniel Cohen-Or, Ali Mahdavi-Amiri. Untwisting RoPE: Frequency Control
for Shared Attention in DiTs. arXiv 2602.05013, 2026.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.coordinates.shared_grid import REFERENCE
from ropewalk.core.errors import PositionError, ShapeError
from ropewalk.core.positions import Positions
from ropewalk.core.rotation import Pairing


def band_similarity(inv_freq: Tensor, band: Sequence[int], offsets: Tensor) -> Tensor:
    """C_B(δ) = mean over the pairs of a band of cos(δ θ_d): the score of equal contents δ apart, of those pairs alone.

    Args:
        inv_freq: (P,) θ.
        band: numbers of pairs.
        offsets: δ, any shape.
    """
    _band(band, len(inv_freq))
    return (offsets.double()[..., None] * inv_freq.double()[list(band)]).cos().mean(-1)


def isolate_band(x: Tensor, band: Sequence[int], pairing: Pairing = "interleaved") -> Tensor:
    """Return queries or keys with all channels zero but those of some pairs, for attention by one band.

    Args:
        x: (..., d), all of whose channels are of pairs.
        band: numbers of pairs.
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (i, i + d/2).
    """
    pairs = x.shape[-1] // 2
    _band(band, pairs)
    keep = torch.zeros(pairs, dtype=x.dtype, device=x.device)
    keep[list(band)] = 1
    return x * (keep.repeat_interleave(2) if pairing == "interleaved" else keep.repeat(2))


def aligned_mass(weights: Tensor, positions: Positions) -> Tensor:
    """Return the mean weight that queries give to the reference token at their own coordinate: (..., Q, K) → (...).

    Args:
        weights: of attention.
        positions: of one row, with the column "reference" on the key side; queries at whose place no reference token is are
            left out.
    """
    query, key, referred = _sides(weights, positions)
    same = (query[:, None] == key[None]).all(-1) & referred
    met = same.any(-1)
    if not bool(met.any()):
        raise PositionError("no reference token is at the place of a query")
    return (weights * same).sum(-1)[..., met].mean(-1)


def semantic_mass(weights: Tensor, positions: Positions, query_label: Tensor, key_label: Tensor) -> Tensor:
    """Return the mean weight that queries give to reference tokens with their own label: (..., Q, K) → (...).

    Args:
        weights: of attention.
        positions: see `aligned_mass`.
        query_label: (Q,) such as the numbers of clusters.
        key_label: (K,).
    """
    _, _, referred = _sides(weights, positions)
    if query_label.shape != weights.shape[-2:-1] or key_label.shape != weights.shape[-1:]:
        raise ShapeError(
            f"labels {tuple(query_label.shape)} and {tuple(key_label.shape)} for weights {tuple(weights.shape)}"
        )
    return (weights * ((query_label[:, None] == key_label) & referred)).sum(-1).mean(-1)


def reference_mass(weights: Tensor, positions: Positions) -> Tensor:
    """Return the mean weight that queries give to the reference as a whole: (..., Q, K) → (...)."""
    return (weights * _sides(weights, positions)[2]).sum(-1).mean(-1)


def _sides(weights: Tensor, positions: Positions) -> tuple[Tensor, Tensor, Tensor]:
    query, key = positions.query, positions.key
    if query.batch != 1 or key.batch != 1 or tuple(weights.shape[-2:]) != (query.length, key.length):
        raise ShapeError(
            f"weights {tuple(weights.shape)} for {query.length} queries and {key.length} keys of {key.batch} rows; give one row"
        )
    places = (t.position[0] if t.axes else t.position[0, :, None] for t in (query, key))
    return (*places, key.column(REFERENCE)[0] > 0)  # type: ignore[return-value]


def _band(band: Sequence[int], pairs: int) -> None:
    if not band or not all(0 <= i < pairs for i in band):
        raise ShapeError(f"band {list(band)} of {pairs} pairs, counted from 0; give at least one")
