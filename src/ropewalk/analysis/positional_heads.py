"""Positional heads: heads in which slow rotary planes take over the score as tokens lie further apart.

After Xiangyu Hong, Che Jiang, Biqing Qi, Fandong Meng, Mo Yu, Bowen Zhou, Jie Zhou. On the token distance modeling ability of
higher RoPE attention dimension. arXiv 2410.08703, 2024. Which pairs of tokens are sampled, and what is measured of a head's
reach, is our completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.analysis.pairs import planes
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum

Rank = Literal["pearson", "spearman"]


def plane_scores(q: Tensor, k: Tensor, pairing: Pairing, scale: float | None = None) -> Tensor:
    """g_i = σ Re(q_i k̄_i), (..., P): what each plane adds to the logit of a query and a key. They sum to it.

    Args:
        q: (..., 2P) turned queries; leading dimensions are broadcast.
        k: (..., 2P) turned keys.
        pairing: of the channels.
        scale: σ; None: 1/√(2P). Give 1/√d where only a part of d channels turns.
    """
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"q has {q.shape[-1]} channels and k {k.shape[-1]}")
    a, b = planes(q, pairing), planes(k, pairing)
    return (a.real * b.real + a.imag * b.imag) * (q.shape[-1] ** -0.5 if scale is None else scale)


def expected_plane(scores: Tensor) -> Tensor:
    """D = Σ i c_i, c = softmax(g) over the planes: the plane that dominates, as a number that changes smoothly."""
    weights = scores.softmax(-1)
    return weights @ torch.arange(scores.shape[-1], device=scores.device, dtype=weights.dtype)


class Pairs(NamedTuple):
    """Queries and keys by index, (H, n) or (n,)."""

    query: Tensor
    key: Tensor


def attended_pairs(
    weights: Tensor, count: int | None = 10, *, mass: float | None = None, skip_first: bool = False, start: int = 0
) -> list[Pairs]:
    """Return, for each head, every query with the keys it attends to most.

    Args:
        weights: (H, Q, K), causal.
        count: keys of a query; all it sees where those are fewer. Of equal ones the nearer to the beginning.
        mass: instead, as many as hold this share of the attention.
        skip_first: leave out the first token, which is often a sink.
        start: index of the first of the queries.
    """
    if weights.ndim != 3:
        raise ShapeError(f"weights of one text are (H, Q, K); got shape {tuple(weights.shape)}")
    if (count is None) == (mass is None):
        raise ConfigError("give one of count and mass")
    check_positive(count=count)
    if mass is not None and not 0 < mass <= 1:
        raise ConfigError(f"mass is a share of the attention, above 0 and at most 1; got {mass!r}")
    _, n, length = weights.shape
    query = torch.arange(start, start + n, device=weights.device)
    seen = torch.arange(length, device=weights.device) <= query[:, None]
    if skip_first:
        seen = seen & (torch.arange(length, device=weights.device) > 0)
    ranked = torch.where(seen, weights, -1.0).sort(dim=-1, descending=True, stable=True)
    real = ranked.values >= 0
    if count is not None:
        keep = torch.arange(length, device=weights.device) < count
    else:
        held = ranked.values.clamp(min=0)
        assert mass is not None
        keep = held.cumsum(-1) - held < mass * held.sum(-1, keepdim=True) * (1 - 1e-12)
    chosen = keep & real
    return [
        Pairs(query[:, None].expand(-1, length)[one], order[one])
        for one, order in zip(chosen.unbind(0), ranked.indices.unbind(0), strict=True)
    ]


def random_pairs(length: int, count: int | None = None, seed: int = 0) -> Pairs:
    """Return pairs at random: a key anywhere, and a query at or after it.

    Args:
        length: tokens.
        count: pairs; None: 100 a token.
        seed: of the draw.
    """
    check_positive(length=length, count=count)
    generator = torch.Generator().manual_seed(seed)
    n = 100 * length if count is None else count
    key = torch.randint(length, (n,), generator=generator)
    return Pairs(key + (torch.rand(n, generator=generator) * (length - key)).long().clamp(max=length - 1), key)


class Correlation:
    """Pearson correlation from sums, so that texts and blocks can be added one by one: Σ over pairs, then r.

    Zero variance on either side is defined as r = 0.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(0, dtype=torch.float64)
        self.count = 0

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add pairs of numbers: x (n,) and y (..., n)."""
        x, y = x.double(), y.double()
        if x.shape[-1] != y.shape[-1]:
            raise ShapeError(f"{x.shape[-1]} and {y.shape[-1]} numbers make no pairs")
        parts = (x.expand(y.shape), y, x.square().expand(y.shape), y.square(), x * y)
        sums = torch.stack([t.sum(-1) for t in parts])
        self._sums = sums if self.count == 0 else self._sums + sums
        self.count += x.shape[-1]

    def value(self) -> Tensor | None:
        """Return r, (...); None for an empty sample."""
        if self.count == 0:
            return None
        x, y, xx, yy, xy = self._sums / self.count
        within, spread_x, spread_y = xy - x * y, xx - x * x, yy - y * y
        # What rounding leaves of a constant is no variance.
        flat = (spread_x <= 1e-12 * xx) | (spread_y <= 1e-12 * yy)
        return torch.where(flat, 0.0, within / torch.where(flat, 1.0, spread_x * spread_y).sqrt()).clamp(-1, 1)


def correlation(x: Tensor, y: Tensor, rank: Rank = "pearson") -> float | None:
    """Pearson's r of two samples (n,), or of their ranks; 0 where one does not vary, None where there is nothing."""
    if x.shape != y.shape or x.ndim != 1:
        raise ShapeError(f"x {tuple(x.shape)} and y {tuple(y.shape)}; expected two samples (n,)")
    if rank not in ("pearson", "spearman"):
        raise ConfigError(f"rank is 'pearson' or 'spearman'; got {rank!r}")
    if rank == "spearman":
        x, y = ranks(x), ranks(y)
    # Centred first: what is correlated may be large numbers close together.
    sums = Correlation()
    if len(x):
        sums.add(x.double() - x.double().mean(), y.double() - y.double().mean())
    value = sums.value()
    return None if value is None else float(value)


def ranks(x: Tensor) -> Tensor:
    """Return the ranks of a sample (n,), from 1; equal numbers share the mean of theirs."""
    order = x.argsort(stable=True)
    _, inverse, counts = x[order].unique_consecutive(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    mean = last - (counts - 1) / 2
    out = torch.empty(len(x), dtype=torch.float64, device=x.device)
    out[order] = mean[inverse]
    return out


def distance_correlation(
    q: Tensor,
    k: Tensor,
    pairing: Pairing,
    *,
    count: int | None = 10,
    mass: float | None = None,
    skip_first: bool = False,
    scale: float | None = None,
    block: int = 256,
) -> Tensor:
    """corr(|m − n|, D(m, n)) over attended pairs of one text, (H,).

    Args:
        q: (H, S, d) turned.
        k: (H_kv, S, d) turned; the key heads are repeated for their queries.
        pairing: of the channels.
        count: see `attended_pairs`, as `mass` and `skip_first`.
        mass: see there.
        skip_first: see there.
        scale: of the logits; None: 1/√d.
        block: queries at once.
    """
    if q.ndim != 3 or k.ndim != 3 or q.shape[1:] != k.shape[1:] or q.shape[0] % k.shape[0]:
        raise ShapeError(f"q {tuple(q.shape)} and k {tuple(k.shape)}; expected (H, S, d) and (H_kv, S, d) of one text")
    k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    sums = [Correlation() for _ in range(q.shape[0])]
    sigma = q.shape[-1] ** -0.5 if scale is None else scale
    keys = torch.arange(k.shape[1], device=q.device)
    for start in range(0, q.shape[1], block):
        part = q[:, start : start + block]
        future = keys > torch.arange(start, start + part.shape[1], device=q.device)[:, None]
        weights = (part @ k.mT * sigma).masked_fill(future, -torch.inf).softmax(-1)
        for h, pairs in enumerate(attended_pairs(weights, count, mass=mass, skip_first=skip_first, start=start)):
            if len(pairs.query):
                d = expected_plane(plane_scores(q[h, pairs.query], k[h, pairs.key], pairing, sigma))
                sums[h].add(pairs.query - pairs.key, d)
    values = [s.value() for s in sums]
    return torch.stack([torch.zeros((), dtype=torch.float64, device=q.device) if v is None else v for v in values])


def plane_correlations(q: Tensor, k: Tensor, pairs: Pairs, pairing: Pairing, scale: float | None = None) -> Tensor:
    """corr(|m − n|, c_i) for each plane, (H, P): the map of one layer, over pairs (n,) of one text.

    Args:
        q: (H, S, 2P) turned.
        k: (H, S, 2P) turned.
        pairs: as `random_pairs` gives them.
        pairing: of the channels.
        scale: of the logits.
    """
    weights = plane_scores(q[:, pairs.query], k[:, pairs.key], pairing, scale).softmax(-1)
    sums = Correlation()
    sums.add(pairs.query - pairs.key, weights.mT)
    value = sums.value()
    if value is None:
        raise ConfigError("there are no pairs of tokens")
    return value


def plane_contributions(q: Tensor, k: Tensor, pairs: Pairs, pairing: Pairing) -> Tensor:
    """Σ over pairs of q_i·k_i, (H, P), not scaled: what others rank planes by."""
    return plane_scores(q[:, pairs.query], k[:, pairs.key], pairing, 1.0).sum(1)


class PositionalHeads(NamedTuple):
    """The heads by three rules, as (layer, head), and how many are in all of them."""

    top_tenth: list[tuple[int, int]]
    top_twentieth: list[tuple[int, int]]
    above_half: list[tuple[int, int]]

    @property
    def overlap(self) -> int:
        """Heads that every rule names."""
        return len(set(self.top_tenth) & set(self.top_twentieth) & set(self.above_half))


def positional_heads(correlations: Tensor) -> PositionalHeads:
    """Return the heads with the highest correlation, of all layers together; of equal ones the first.

    Args:
        correlations: (layers, heads).
    """
    if correlations.ndim != 2 or not correlations.numel():
        raise ShapeError(f"correlations are (layers, heads); got shape {tuple(correlations.shape)}")
    if bool(correlations.isnan().any()):
        raise ConfigError("correlations hold NaN, which has no rank")
    order = correlations.flatten().argsort(descending=True, stable=True).tolist()
    heads = [divmod(i, correlations.shape[1]) for i in order]
    tenth, twentieth = (max(1, round(share * len(heads))) for share in (0.1, 0.05))
    half = [head for head in heads if float(correlations[head]) > 0.5]
    return PositionalHeads(heads[:tenth], heads[:twentieth], half)


class Reach(NamedTuple):
    """How far heads look, averaged over queries, (...)."""

    mean_distance: Tensor
    """Σ_n a_mn (m − n), in tokens."""

    far: Tensor
    """Share of attention at distances above L/2."""


def reach(weights: Tensor, start: int | None = None, length: int | None = None) -> Reach:
    """Return how far attention (..., Q, K) goes.

    Args:
        weights: of queries that follow each other.
        start: index of the first query; None: the queries are the last of the keys.
        length: L; None: the number of keys.
    """
    if weights.ndim < 2:
        raise ShapeError(f"weights are (..., Q, K); got shape {tuple(weights.shape)}")
    q, k = weights.shape[-2:]
    first = k - q if start is None else start
    device = weights.device
    distance = torch.arange(first, first + q, device=device)[:, None] - torch.arange(k, device=device)
    far = distance > (k if length is None else length) / 2
    return Reach((weights * distance.clamp(min=0)).sum(-1).mean(-1), (weights * far).sum(-1).mean(-1))


def first_unturned_plane(spectrum: Spectrum, train_length: float) -> int:
    """i_0: the first plane whose period is longer than the training context; 0 if there is none."""
    return next((i for i, period in enumerate(spectrum.wavelengths()) if period > train_length), 0)


def slow_allocation(
    q: Tensor, k: Tensor, weights: Tensor, first: int, pairing: Pairing, scale: float | None = None
) -> Tensor:
    """mean_m Σ_n a_mn Σ_{i ≥ i_0} c_i(m, n), (H,): how much of the attended scores slow planes make.

    Args:
        q: (H, Q, 2P) turned.
        k: (H, K, 2P) turned.
        weights: (H, Q, K).
        first: i_0, of the frequencies before any extension (`first_unturned_plane`).
        pairing: of the channels.
        scale: of the logits.
    """
    if weights.shape != (*q.shape[:2], k.shape[1]):
        raise ShapeError(f"weights {tuple(weights.shape)} of q {tuple(q.shape)} and k {tuple(k.shape)}")
    total = torch.zeros(q.shape[0], dtype=torch.float64, device=q.device)
    # One query at a time in memory: all pairs with all planes would be Q · K · P numbers a head.
    for m in range(q.shape[1]):
        share = plane_scores(q[:, m, None], k, pairing, scale).softmax(-1)[..., first:].sum(-1)
        total += (share * weights[:, m]).sum(-1).double()
    return total / q.shape[1]


def matched_heads(heads: Sequence[tuple[int, int]], num_heads: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return as many other heads at random, from the same layers: the control of an ablation.

    Layers that are taken whole give what others they have.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen: list[tuple[int, int]] = []
    for layer in sorted({layer for layer, _ in heads}):
        taken = {h for other, h in heads if other == layer}
        free = [h for h in range(num_heads) if h not in taken]
        picked = torch.randperm(len(free), generator=generator)[: len(taken)].tolist()
        chosen += [(layer, free[i]) for i in sorted(picked)]
    return chosen
