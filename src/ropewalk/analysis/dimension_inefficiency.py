"""Rotary planes that turn too fast go unused where the distance to what is looked for varies.

After Ting-Rui Chiang, Dani Yogatama. The Rotary Position Embedding May Cause Dimension Inefficiency in Attention Heads for
Long-Distance Retrieval. arXiv 2502.11276, 2025. Optimiser, steps and initial values of the masks are ours.

Planes are counted from the fastest, and "channels" are two a plane, wherever they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.analysis.pairs import planes
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing, check_pairing, rotate, tables
from ropewalk.frequencies.spectrum import Spectrum, geometric

End = Literal["first", "last"]
RETRIEVAL = 0.5
"""Heads with a score above it are retrieval heads."""


def pair_magnitudes(q: Tensor, k: Tensor, pairing: Pairing) -> Tensor:
    """mean_n |q_ni| + mean_n |k_ni|, (P,), of tables (n, 2P)."""
    return planes(q, pairing).abs().mean(0) + planes(k, pairing).abs().mean(0)


def planes_by_frequency(spectrum: Spectrum, end: End, count: int) -> list[int]:
    """Return the fastest planes ("first") or the slowest ("last"), in ascending order of index; of equal ones the first.

    Args:
        spectrum: P frequencies, in any order.
        end: which.
        count: planes.
    """
    n = len(spectrum.inv_freq)
    if end not in ("first", "last"):
        raise ConfigError(f"end is 'first' (fastest) or 'last' (slowest); got {end!r}")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= n:
        raise ConfigError(f"count is a number of planes from 0 to {n}; got {count!r}")
    order = sorted(range(n), key=lambda i: -abs(spectrum.inv_freq[i]))
    return sorted(order[:count] if end == "first" else order[n - count :])


def ablate_pairs(x: Tensor, chosen: Sequence[int], pairing: Pairing) -> Tensor:
    """Return x (..., 2P) with these planes zero: their terms leave the logits and nothing else changes."""
    return x * pair_mask(x.shape[-1] // 2, chosen, pairing).to(x)


def pair_mask(count: int, without: Sequence[int], pairing: Pairing) -> Tensor:
    """Return 1 for the channels of planes that stay and 0 for the others, (2P,)."""
    beyond = sorted(i for i in without if not 0 <= i < count)
    if beyond:
        raise ConfigError(f"planes {beyond} of {count}; they are counted from 0")
    keep = torch.ones(count)
    keep[list(without)] = 0.0
    return keep.repeat(2) if check_pairing(pairing) == "half" else keep.repeat_interleave(2)


# ---- a head that retrieves, trained by itself -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ToyRetrieval:
    """What a head learned that looks one of n things up, whose distance is random.

    Attributes:
        loss: with all planes.
        q: (n, D).
        k: (n, D).
        magnitudes: (P,), see `pair_magnitudes`.
        without_fast: loss without the fastest quarter of the planes of q.
        without_slow: loss without the slowest quarter.
    """

    loss: float
    q: Tensor
    k: Tensor
    magnitudes: Tensor
    without_fast: float
    without_slow: float

    @property
    def slow_to_fast(self) -> float:
        """Magnitude of the slowest quarter over that of the fastest."""
        quarter = len(self.magnitudes) // 4
        return float(self.magnitudes[-quarter:].mean() / self.magnitudes[:quarter].mean())


def toy_retrieval(
    use_rope: bool,
    *,
    items: int = 200,
    shown: int = 64,
    head_dim: int = 64,
    max_position: int = 2048,
    steps: int = 1500,
    batch: int = 64,
    lr: float = 3e-3,
    base: float = 10_000.0,
    init: float = 0.1,
    seed: int = 0,
) -> ToyRetrieval:
    """Train tables q, k, v (n, D): a = softmax(q_i K'ᵀ/√D) V, loss −ln softmax(a·v)_i over all n; K' = R(positions) k.

    Each sample shows some of the n keys at random positions; the query of one of them stands at position 0.

    Args:
        use_rope: whether keys are turned.
        items: n.
        shown: keys of a sample.
        head_dim: D.
        max_position: positions are below it.
        steps: of Adam.
        batch: samples a step.
        lr: of Adam.
        base: of the frequencies.
        init: standard deviation of the tables at first. With 1 the unused planes would keep that size.
        seed: of everything random.
    """
    check_positive(items=items, shown=shown, head_dim=head_dim, max_position=max_position, steps=steps, batch=batch)
    if shown > items:
        raise ConfigError(f"a sample shows {shown} of {items} items; show fewer")
    generator = torch.Generator().manual_seed(seed)
    spectrum = geometric(head_dim, base)
    tables_ = [(init * torch.randn(items, head_dim, generator=generator)).requires_grad_() for _ in range(3)]
    q, k, v = tables_
    optimiser = torch.optim.Adam(tables_, lr=lr)

    def loss(generator: torch.Generator, samples: int, keep: Tensor | None = None) -> Tensor:
        chosen = torch.rand(samples, items, generator=generator).argsort(-1)[:, :shown]
        target = chosen[:, 0]  # the order is random, so any place is as good
        keys = k[chosen]
        if use_rope:
            where = torch.randint(max_position, (samples, shown), generator=generator).double()
            keys = rotate(keys, *tables(where[..., None] * spectrum.tensor(), keys.dtype), "half")
        query = q[target] if keep is None else q[target] * keep
        weights = ((keys @ query[..., None])[..., 0] / math.sqrt(head_dim)).softmax(-1)
        out = (weights[:, None] @ v[chosen])[:, 0]
        return functional.cross_entropy(out @ v.mT, target)

    for _ in range(steps):
        optimiser.zero_grad()
        loss(generator, batch).backward()
        optimiser.step()
    quarter = head_dim // 8
    with torch.no_grad():
        found = []
        for end, count in (("first", 0), ("first", quarter), ("last", quarter)):
            without = planes_by_frequency(spectrum, end, count)  # type: ignore[arg-type]
            keep = pair_mask(head_dim // 2, without, "half")
            found.append(float(loss(torch.Generator().manual_seed(seed + 1), 16 * batch, keep)))
    q, k = q.detach(), k.detach()
    return ToyRetrieval(found[0], q, k, pair_magnitudes(q, k, "half"), found[1], found[2])


# ---- utility of the channels of a head --------------------------------------------------------------------------------------


class HeadInputs(NamedTuple):
    """One head of one text: q (Q, D), k (K, D) and v (K, D_v), turned unless the tables are given, without a causal mask.

    ``query`` and ``key`` are tables (cos, sin) for a mask that acts before the rotation.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    allowed: Tensor | None = None
    """(Q, K) or None: every key is seen."""

    query: tuple[Tensor, Tensor] | None = None
    key: tuple[Tensor, Tensor] | None = None
    pairing: Pairing = "half"
    scale: float | None = None

    def attend(self, mask: Tensor | None = None) -> Tensor:
        """softmax(rot(q ⊙ u) rot(K)ᵀ / √D) V, (Q, D_v)."""
        q = self.q if mask is None else self.q * mask
        if self.query is not None and self.key is not None:
            q, k = rotate(q, *self.query, self.pairing), rotate(self.k, *self.key, self.pairing)
        else:
            k = self.k
        logits = q @ k.mT * (self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)
        if self.allowed is not None:
            logits = logits.masked_fill(~self.allowed, -torch.inf)
        return logits.softmax(-1) @ self.v


def mask_objective(head: HeadInputs, mask: Tensor, alpha: float | None = None, wanted: Tensor | None = None) -> Tensor:
    """mean_q ‖Attn(q) − Attn(q ⊙ u)‖² + α ‖u‖_1: what a mask of the query's channels costs.

    Args:
        head: the head.
        mask: u (D,).
        alpha: α; None: 1/D.
        wanted: attention without a mask, if it is known.
    """
    weight = 1 / head.q.shape[-1] if alpha is None else alpha
    target = head.attend() if wanted is None else wanted
    return (target - head.attend(mask)).square().sum(-1).mean() + weight * mask.abs().sum()


def learn_query_mask(
    head: HeadInputs,
    alpha: float | None = None,
    *,
    by_pair: bool = False,
    steps: int = 300,
    lr: float = 0.1,
) -> Tensor:
    """Return the u in [0, 1]^D that minimises `mask_objective`, (D,): how much each channel of the query is used.

    u = sigmoid(w), with w = 4 at first, by Adam.

    Args:
        head: the head.
        alpha: price of a channel; None: 1/D.
        by_pair: one number a plane, so that it does not matter whether the mask or the rotation comes first.
        steps: of Adam.
        lr: of Adam.
    """
    check_positive(steps=steps)
    width = head.q.shape[-1]
    free = width // 2 if by_pair else width
    w = torch.full((free,), 4.0, dtype=head.q.dtype, device=head.q.device, requires_grad=True)
    optimiser = torch.optim.Adam([w], lr=lr)

    def mask() -> Tensor:
        u = w.sigmoid()
        if not by_pair:
            return u
        return u.repeat(2) if head.pairing == "half" else u.repeat_interleave(2)

    with torch.enable_grad():
        wanted = head.attend().detach()
        for _ in range(steps):
            optimiser.zero_grad()
            mask_objective(head, mask(), alpha, wanted).backward()
            optimiser.step()
    return mask().detach()


def query_sizes(q: Tensor) -> Tensor:
    """Σ over queries of |q_d|, (..., D): what the utility costs nothing to guess by. A sum, not a mean."""
    return q.abs().sum(-2)


def retrieval_score(weights: Tensor, context: Tensor, queries: Tensor) -> Tensor:
    """Share of the attention of some tokens that goes to the context, averaged over them: (..., ) for weights (..., T, T).

    Args:
        weights: after the softmax.
        context: (T,), True for tokens of documents and instructions, without the first token.
        queries: (T,), True for tokens of question and answer.
    """
    length = weights.shape[-1]
    if context.shape != (length,) or queries.shape != (weights.shape[-2],):
        raise ShapeError(
            f"weights {tuple(weights.shape)}, context {tuple(context.shape)} and queries {tuple(queries.shape)}; expected "
            "(..., T, T), (T,) and (T,)"
        )
    if not bool(queries.any()):
        raise ConfigError("no token asks: queries are all False")
    return weights[..., queries, :][..., context].sum(-1).mean(-1)


def mean_cosine(frequency: float, length: int) -> float:
    """sin(Mθ/2) cos((M − 1)θ/2) / (M sin(θ/2)): the mean of cos mθ, m < M, what a plane adds over all distances alike."""
    check_positive(length=length)
    half = math.sin(frequency / 2)
    if abs(half) < 1e-300:
        return 1.0
    return math.sin(length * frequency / 2) * math.cos((length - 1) * frequency / 2) / (length * half)
