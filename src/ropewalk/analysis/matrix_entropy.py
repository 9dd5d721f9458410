"""How few directions the keys of a head use, as the entropy of their Gram matrix.

A band that hardly turns over the context adds its keys up in one direction: its share of the spectrum grows with the number
of tokens, and the head attends to whatever lies that way. After Jing Xiong, Liyang Fan, Hui
Shen, Zunhai Su, Min Yang, Lingpeng Kong, Ngai Wong. DoPE: Denoising Rotary Position Embedding. arXiv 2511.09146, 2025. What is
done to the heads chosen here is `ropewalk.DoPE`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.analysis.pairs import planes
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing

Order = Literal["ascending", "descending"]


def band_matrix_entropy(x: Tensor, pairing: Pairing) -> Tensor:
    """−tr Σ̃ ln Σ̃, Σ̃ = XᵀX / tr XᵀX of the two channels of each plane: (..., P) in nats, from 0 to ln 2.

    Args:
        x: (..., N, 2P) turned keys or queries.
        pairing: of the channels.
    """
    z = planes(x.double(), pairing)
    # The eigenvalues of a 2×2 Gram matrix are (tr ± |Σ z²|) / 2.
    trace, off = z.abs().square().sum(-2), (z * z).sum(-2).abs()
    share = (off / trace.clamp(min=torch.finfo(trace.dtype).tiny)).clamp(max=1)
    return _entropy(torch.stack([(1 + share) / 2, (1 - share) / 2], -1))


def gram_spectrum(x: Tensor) -> Tensor:
    """Eigenvalues of XᵀX / tr XᵀX, falling: (..., D) for states (..., N, D), float64."""
    if x.ndim < 2:
        raise ShapeError(f"states are (..., N, D); got shape {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise ConfigError("the states hold NaN or infinity, so they have no spectrum")
    x = x.double()
    values = torch.linalg.eigvalsh(x.mT @ x).clamp(min=0).flip(-1)
    return values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)


def truncated_effective_rank(x: Tensor, r: int | None = None) -> Tensor:
    """ρ^r = exp(−Σ_{i<r} p_i ln p_i), p the r largest eigenvalues of XᵀX scaled to sum 1: (...), from 1 to r.

    Args:
        x: (..., N, D) turned keys or queries.
        r: eigenvalues that count; None, or more than there are: all.
    """
    top = _top(gram_spectrum(x), r)
    return _entropy(top / top.sum(-1, keepdim=True).clamp(min=torch.finfo(top.dtype).tiny)).exp()


def concentration(x: Tensor, r: int | None = None) -> Tensor:
    """What heads are ranked by, small where few directions hold everything: ρ^r, and −λ_1 for r = 1, where ρ is 1 always."""
    return -gram_spectrum(x)[..., 0] if r == 1 else truncated_effective_rank(x, r)


def choose_heads(scores: Tensor, count: int, order: Order = "ascending") -> list[tuple[int, int]]:
    """Return the (layer, head) with the lowest scores (or highest), of all layers together; of equal ones the first.

    Args:
        scores: (layers, heads).
        count: heads to choose.
        order: "ascending" takes the lowest.
    """
    if scores.ndim != 2:
        raise ShapeError(f"scores are (layers, heads); got shape {tuple(scores.shape)}")
    if order not in ("ascending", "descending"):
        raise ConfigError(f"order is 'ascending' or 'descending'; got {order!r}")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= scores.numel():
        raise ConfigError(f"count is a number of heads from 0 to {scores.numel()}; got {count!r}")
    if bool(scores.isnan().any()):
        raise ConfigError("scores hold NaN, which has no rank")
    flat = scores.flatten().argsort(stable=True, descending=order == "descending")[:count]
    return [divmod(int(i), scores.shape[1]) for i in flat]


def constant_key_eigenvalues(frequency: float, length: int) -> tuple[float, float]:
    """(1 ± |D_N|) / 2, D_N = sin Nθ / (N sin θ): the spectrum of a plane that holds the same vector in N tokens."""
    sine = math.sin(frequency)
    if abs(sine) < 1e-300:
        return 1.0, 0.0
    kernel = abs(math.sin(length * frequency) / (length * sine))
    return (1 + kernel) / 2, (1 - kernel) / 2


def sink_mass(weights: Tensor, sinks: int = 1) -> Tensor:
    """Share of attention on the first tokens, (..., ): the mean over queries that see others, for weights (..., Q, K).

    Queries are the last of the keys.
    """
    q, k = weights.shape[-2:] if weights.ndim >= 2 else (1, 0)
    if k < q or not 1 <= sinks < k:
        raise ShapeError(
            f"weights {tuple(weights.shape)} and sinks={sinks}; expected (..., Q, K) with the queries last among the keys, "
            "and fewer sinks than keys"
        )
    return weights[..., max(0, sinks - (k - q)) :, :sinks].sum(-1).mean(-1)


class ConeBounds(NamedTuple):
    """What a plane must do because its states lie in a cone: lower bounds beside what they bound."""

    eigenvalue: Tensor
    """(...) λ_max of KᵀK."""

    eigenvalue_bound: Tensor
    """N min|k|² cos²γ_k."""

    singular_value: Tensor
    """(...) σ_1 of QKᵀ/√d."""

    singular_value_bound: Tensor
    """N min|q| min|k| cos(γ_q + γ_k + ψ) / √d, where the angles leave it positive."""

    largest_logit: Tensor
    """max |A_ij|, at least σ_1 / N."""


def cone_bounds(q: Tensor, k: Tensor, head_dim: int) -> ConeBounds:
    """Return the bounds for one plane: γ is the widest angle from the mean direction, ψ the angle between both directions.

    Args:
        q: (..., N, 2) turned.
        k: (..., N, 2) turned.
        head_dim: d, all channels of the head.
    """
    if q.shape != k.shape or q.ndim < 2 or q.shape[-1] != 2:
        raise ShapeError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)}; expected (..., N, 2) of one plane and as many tokens"
        )
    q, k = q.double(), k.double()
    n = q.shape[-2]
    (axis_q, wide_q), (axis_k, wide_k) = _cone(q), _cone(k)
    between = (axis_q * axis_k).sum(-1).clamp(-1, 1).acos()
    least_q, least_k = (x.norm(dim=-1).amin(-1) for x in (q, k))
    logits = q @ k.mT / head_dim**0.5
    angle = wide_q + wide_k + between
    return ConeBounds(
        torch.linalg.eigvalsh(k.mT @ k)[..., -1],
        n * (least_k * wide_k.clamp(max=math.pi / 2).cos()).square(),
        torch.linalg.svdvals(logits)[..., 0],
        n * least_q * least_k * angle.clamp(max=math.pi / 2).cos() / head_dim**0.5,
        logits.abs().amax((-1, -2)),
    )


def _cone(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean direction of vectors (..., N, 2) and the widest angle from it."""
    unit = torch.nn.functional.normalize(x, dim=-1)
    axis = torch.nn.functional.normalize(unit.sum(-2), dim=-1)
    return axis, (unit * axis[..., None, :]).sum(-1).clamp(-1, 1).acos().amax(-1)


def _top(values: Tensor, r: int | None) -> Tensor:
    if r is not None and (isinstance(r, bool) or not isinstance(r, int) or r < 1):
        raise ConfigError(f"r is a number of eigenvalues, at least 1; got {r!r}")
    return values[..., :r]


def _entropy(p: Tensor) -> Tensor:
    """−Σ p ln p over the last dimension, 0 ln 0 = 0."""
    return -torch.special.xlogy(p, p).sum(-1)
