"""HoPE, hyperbolic rotary position encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ropewalk.backends import attend, dense
from ropewalk.core.attention import Attention, Problem, Product
from ropewalk.core.encoding import Rotary, check_axes, full_precision, table_dtype
from ropewalk.core.errors import CannotCompose, ConfigError, NotCausal, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, check_rotary_width, geometric

_MARGIN = 1e-4  # of θ' above the largest θ, so that the slowest channel fades too


class HyperbolicRoPE(Rotary):
    """s_mn = e^(−(m−n)θ') Σ_i (q_a k_a + q_b k_b) cosh (m−n)θ_i + (q_a k_b + q_b k_a) sinh (m−n)θ_i,  times 1/√d.

    Each pair (a, b) of a query at m is boosted by a Lorentz transformation of rapidity mθ_i, of a key at n by −nθ_i, and
    damped by e^(−mθ') and e^(nθ') with θ' > θ_i: where RoPE oscillates, this fades. In light-cone coordinates
    u = (a + b)/√2, w = (a − b)/√2 it is plain: channels that fade at their own rates,

        s_mn = Σ_i q_u k_u e^(−(m−n)(θ'−θ_i)) + q_w k_w e^(−(m−n)(θ'+θ_i)).

    This is how it is computed, block by block about a position between the queries and the keys, so that every exponent
    that matters is negative; boosted keys overflow after some hundred tokens (`transform_separable`). A cache keeps keys in
    light-cone coordinates. What fades is the logit: a far key comes down to logit 0 and not to weight 0.

    Args:
        head_dim: width d of a head, even.
        rapidity: θ_i ≥ 0, one a pair; None: ``rapidity_scale`` times RoPE's base^(−2i/d).
        damping: θ', fixed, above every θ_i. None: learned, θ' = max θ · (1 + softplus(ρ)) + 0.0001 with ρ from 0.
        base: of the default θ_i.
        rapidity_scale: of the default θ_i. The paper does not say; RoPE's own ladder (1.0) fades within a few tokens.
        learn_rapidity: learn ln θ_i too; needs a θ' that is learned, so that it stays above.
        damping_heads: key heads with a θ' of their own; None: one for all.
        pairing: "interleaved" (channels 2i, 2i+1) or "half".
        bidirectional: fade with |m − n|, also towards later keys; otherwise it is causal only.
        kind: "rope" has imaginary rapidities and θ' = 0: RoPE with frequencies θ_i, queries and keys both turned forwards.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens. Where a visible key lies at a
    later position (ids that run backwards), it fades with |m − n|.

    Raises:
        ConfigError: an odd width, θ_i < 0, θ' that is not above every θ_i.
        NotCausal: the problem is not causal, without ``bidirectional``.
        CannotCompose: after an encoding whose scores are not one dot product.

    Source: Chang Dai, Hongyu Shan, Mingyang Song, Di Liang. HoPE: Hyperbolic Rotary Positional Encoding for Stable
    Long-Range Dependency Modeling in Large Language Models. arXiv 2509.05218, 2025.
    """

    fixed_rapidity: Tensor

    def __init__(
        self,
        head_dim: int,
        rapidity: Sequence[float] | None = None,
        damping: float | None = None,
        *,
        base: float = 10_000.0,
        rapidity_scale: float = 0.1,
        learn_rapidity: bool = False,
        damping_heads: int | None = None,
        pairing: Pairing = "interleaved",
        bidirectional: bool = False,
        kind: Literal["hyperbolic", "rope"] = "hyperbolic",
    ) -> None:
        super().__init__(pairing)
        check_rotary_width(head_dim)
        check_base(base)
        check_positive(damping_heads=damping_heads)
        if kind not in ("hyperbolic", "rope"):
            raise ConfigError(f"kind is 'hyperbolic' or 'rope'; got {kind!r}")
        if not 0 <= rapidity_scale < math.inf:
            raise ConfigError(f"rapidity_scale is a number from 0; got {rapidity_scale!r}")
        values = (
            [rapidity_scale * w for w in geometric(head_dim, base).inv_freq] if rapidity is None else list(rapidity)
        )
        if len(values) != head_dim // 2 or not all(0 <= t < math.inf for t in values):
            raise ConfigError(
                f"rapidity has {head_dim // 2} rates from 0 upwards, one a pair of channels; got {values}"
            )
        self.head_dim, self.bidirectional, self.kind = head_dim, bidirectional, kind
        self.rapidities = tuple(float(t) for t in values)
        self.fixed_damping = damping
        self.derive("fixed_rapidity", self._rapidities)
        self.log_rapidity: nn.Parameter | None = None
        self.rho: nn.Parameter | None = None
        self._check_rates(learn_rapidity, damping_heads)
        if learn_rapidity:
            self.log_rapidity = nn.Parameter(torch.tensor(self.rapidities).log())
        if damping is None and kind == "hyperbolic":
            self.rho = nn.Parameter(torch.zeros(damping_heads or 1))

    def _rapidities(self) -> Tensor:
        return torch.tensor(self.rapidities, dtype=torch.float64, device="cpu")

    def _check_rates(self, learn_rapidity: bool, damping_heads: int | None) -> None:
        largest, given = max(self.rapidities, default=0.0), self.fixed_damping
        if self.kind == "rope":
            if given not in (None, 0, 0.0) or damping_heads is not None or self.bidirectional:
                raise ConfigError("kind='rope' does not fade: damping, damping_heads and bidirectional have no meaning")
        elif given is not None:
            if not largest < given < math.inf:
                raise ConfigError(
                    f"damping={given!r} must be above every rapidity, {largest} at most, or logits would grow with distance"
                )
            if learn_rapidity or damping_heads is not None:
                raise ConfigError("learn_rapidity and damping_heads need a damping that is learned: leave damping out")
        elif largest == 0:
            raise ConfigError(
                "the damping is learned as a multiple of the largest rapidity, and that is 0; give damping"
            )
        if learn_rapidity and min(self.rapidities, default=1.0) == 0:
            raise ConfigError("rapidity is learned by its logarithm, so it starts above 0")

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"HyperbolicRoPE was made for head_dim {self.head_dim} and the problem has {head_dim}")

    # ---- rates ------------------------------------------------------------------------------------------------

    def rapidity(self) -> Tensor:
        """Return θ_i, (d/2,) float64."""
        if self.log_rapidity is not None:
            return self.log_rapidity.double().exp()
        return self.exact("fixed_rapidity", self.fixed_rapidity.device)

    def damping(self) -> Tensor:
        """Return θ', (1 or key heads,) float64."""
        rapidity = self.rapidity()
        if self.rho is not None:
            return rapidity.amax() * (1 + softplus(self.rho.double())) + _MARGIN
        return rapidity.new_full((1,), 0.0 if self.fixed_damping is None else self.fixed_damping)

    def rates(self) -> Tensor:
        """Return how fast each light-cone channel fades a token, θ' − θ_i and θ' + θ_i: (1 or key heads, d) float64."""
        rapidity, damping = self.rapidity(), self.damping()[:, None]
        return _as_pairs(damping - rapidity, damping + rapidity, self.pairing)

    def angles(self, position: Tensor) -> Tensor:
        """Return the rapidity of each pair; for kind="rope" an angle."""
        return position[..., None] * self.rapidity().to(position.device)

    # ---- the encoding -----------------------------------------------------------------------------------------

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        self.fit(p.q.shape[-1])
        check_axes(self, p.where.query.coordinates(p.at), self.axes)
        if self.kind == "rope":
            return super().rewrite(p)
        if p.branches or p.product is not None or p.kernel is not None:
            raise CannotCompose("HyperbolicRoPE fades the channels of one dot product under a softmax")
        if not p.causal and not self.bidirectional:
            raise NotCausal(
                "logits fade towards earlier keys and would grow towards later ones; for attention both ways give "
                "HyperbolicRoPE(..., bidirectional=True), which fades with the distance"
            )
        rates = self.rates().to(p.q.device)
        if len(rates) > 1:
            rates = p.kv_head_slice(rates).repeat_interleave(p.num_heads // p.num_kv_heads, 0)
        p = p.map_queries(self._light_cone).map_keys(self._light_cone)
        p = p.with_features(q={"rates": rates[None, :, None]})
        place = p.coordinate()
        return p.replace(product=Product(_fading(p.logit_scale), (place, p.own("rates")), (place,)))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Change nothing, since coordinates are read when scores are computed; turn on for kind="rope"."""
        return super().move(problem, tokens) if self.kind == "rope" else problem

    def _light_cone(self, x: Tensor) -> Tensor:
        a, b = _split_pairs(x.to(table_dtype(x)), self.pairing)
        half = math.sqrt(0.5)
        return _as_pairs(half * (a + b), half * (a - b), self.pairing).to(x.dtype)

    # ---- by itself --------------------------------------------------------------------------------------------

    def scores(self, q: Tensor, k: Tensor, positions: Positions | Tensor | None = None) -> Tensor:
        """Return the scores without 1/√d, (B, H, Q, K), at all pairs; those of later keys fade with |m − n|."""
        p = self(Attention(q, k, k, _positions(positions), scale=1.0))
        return dense.logits(p, None, table_dtype(q))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, positions: Positions | Tensor | None = None, causal: bool = True
    ) -> Tensor:
        """Return the attention of one layer."""
        return attend(self(Attention(q, k, v, _positions(positions), causal=causal)))

    def transform_separable(
        self, q: Tensor, k: Tensor, positions: Positions | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the boosted and damped q and k, whose dot products are the scores, for short sequences.

        The two channels of a boosted pair are nearly the same number, so that 2 max(θ) p / ln 10 digits are lost at position p.

        Raises:
            PositionError: positions so far from 0 that keys leave the range of the dtype.
        """
        p = Attention(q, k, k, _positions(positions)).located()
        self.fit(q.shape[-1])
        if self.kind == "rope":
            return self.rotate(q, k, p.where)
        bound = {torch.float16: 10.0, torch.float64: 700.0}.get(q.dtype, 80.0)
        boosted = []
        rates, group = self.rates().to(q.device), q.shape[1] // k.shape[1]
        for x, tokens, sign in ((q, p.where.query, -1), (k, p.where.key, 1)):
            own = rates.repeat_interleave(group, 0) if len(rates) > 1 and x is q else rates
            exponent = sign * tokens.coordinates()[:, None, :, None] * own[:, None]
            if exponent.numel() and (most := float(exponent.detach().abs().max())) > bound:
                raise PositionError(
                    f"boosting by e^{most:.0f} leaves the range of {q.dtype} (up to e^{bound:.0f}); attend(encoding(problem)) "
                    "has no such limit"
                )
            cone = self._light_cone(x.to(table_dtype(x))) * exponent.exp().to(table_dtype(x))
            boosted.append(self._light_cone(cone).to(x.dtype))  # the change of basis is its own inverse
        return boosted[0], boosted[1]

    def extra_repr(self) -> str:
        said = f", damping={self.fixed_damping}" if self.fixed_damping is not None else ""
        return f"{self.head_dim}{said}, pairing={self.pairing}, kind={self.kind}"


def _positions(positions: Positions | Tensor | None) -> Positions | None:
    return Positions(positions) if isinstance(positions, Tensor) else positions


def _split_pairs(x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    if pairing == "half":
        a, b = x.chunk(2, -1)
        return a, b
    return x[..., 0::2], x[..., 1::2]


def _as_pairs(a: Tensor, b: Tensor, pairing: Pairing) -> Tensor:
    return torch.cat([a, b], -1) if pairing == "half" else torch.stack([a, b], -1).flatten(-2)


# ---- Σ_c q_c k_c e^(−λ_c |m − n|) ----------------------------------------------------------------------------------

_BLOCK = 64  # queries, and keys, that share a reference position
_GROWTH = 60.0  # a factor of e^60 and one of e^−60 make their product to full precision, in float32 too
_ZERO, _PAST, _FUTURE, _NEAR, _MIXED = range(5)


def _fading(scale: float) -> Callable[..., Tensor]:
    """Make the product: q (B, H, Q, d), k (B, H, K, d), m (b, 1, Q, 1), λ (1, 1 or H, 1, d), n (b, 1, K, 1) → scores."""

    def scores(q: Tensor, k: Tensor, m: Tensor, rates: Tensor, n: Tensor) -> Tensor:
        with full_precision(q):
            by = _at_once if _must_be_plain(m) or 0 in (*q.shape[:3], k.shape[2]) else _in_blocks
            return scale * by(q, k, m, n, rates.to(q.dtype))

    return scores


def _must_be_plain(m: Tensor) -> bool:
    """Whether the way through the blocks may not depend on where the tokens are."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or m.is_meta


def _at_once(q: Tensor, k: Tensor, m: Tensor, n: Tensor, rates: Tensor) -> Tensor:
    """The definition, over (B, H, Q, K, d), which a compiler fuses."""
    distance = (m - n.transpose(-1, -2)).abs().to(q.dtype)[..., None]
    return (q[..., None, :] * k[..., None, :, :] * (-distance * rates[..., None, :]).exp()).sum(-1)


def _in_blocks(q: Tensor, k: Tensor, m: Tensor, n: Tensor, rates: Tensor) -> Tensor:
    """The same by matrix products: between a block of queries and the keys before it every channel is separable."""
    kinds = _kinds(m[:, 0, :, 0], n[:, 0, :, 0], rates)
    rows = []
    for q_, m_, kinds_ in zip(q.split(_BLOCK, 2), m.split(_BLOCK, 2), kinds, strict=True):
        row, start = [], 0
        for kind, run in groupby(kinds_):
            for blocks in [1] * len(list(run)) if kind in (_NEAR, _MIXED) else [len(list(run))]:
                stop = start + blocks * _BLOCK
                row.append(_WAYS[kind](q_, k[:, :, start:stop], m_, n[:, :, start:stop], rates))
                start = stop
        rows.append(torch.cat(row, -1))
    return torch.cat(rows, 2)


def _kinds(m: Tensor, n: Tensor, rates: Tensor) -> list[list[int]]:
    """Say how the blocks of queries m (b, Q) and keys n (b, K) lie to each other."""

    def ends(x: Tensor) -> tuple[Tensor, Tensor]:
        blocks = x.split(_BLOCK, 1)
        return torch.stack([t.amin(1) for t in blocks], 1), torch.stack([t.amax(1) for t in blocks], 1)

    (m_low, m_high), (n_low, n_high) = ([e[:, :, None] for e in ends(m)], [e[:, None] for e in ends(n)])
    slow, fast = rates.detach().amin().double(), rates.detach().amax().double()
    gap = torch.maximum(m_low - n_high, n_low - m_high).amin(0)
    span = (torch.maximum(m_high, n_high) - torch.minimum(m_low, n_low)).amax(0)
    gone = -math.log(torch.finfo(rates.dtype).smallest_normal)
    kinds = torch.where(span * fast <= _GROWTH, _NEAR, _MIXED)
    kinds = torch.where((n_low >= m_high).all(0), _FUTURE, kinds)
    kinds = torch.where((n_high <= m_low).all(0), _PAST, kinds)
    return torch.where(gap * slow > gone, _ZERO, kinds).tolist()


def _gone(q: Tensor, k: Tensor, m: Tensor, n: Tensor, rates: Tensor) -> Tensor:
    return q.new_zeros(*q.shape[:3], k.shape[2])


def _past(q: Tensor, k: Tensor, m: Tensor, n: Tensor, rates: Tensor) -> Tensor:
    """Scores of queries that all lie after the keys: both fade towards a place between them."""
    between = m.amin(2, keepdim=True)
    at_q, at_k = (m - between).to(q.dtype), (between - n).to(q.dtype)
    return (q * (-rates * at_q).exp()) @ (k * (-rates * at_k).exp()).transpose(-1, -2)


def _future(q: Tensor, k: Tensor, m: Tensor, n: Tensor, rates: Tensor) -> Tensor:
    return _past(q, k, -m, -n, rates)


def _near(q: Tensor, k: Tensor, m: Tensor, n: Tensor, rates: Tensor) -> Tensor:
    """Scores of neighbours, where neither factor grows too much for both orders."""
    between = m.amin(2, keepdim=True)
    at_q, at_k = (rates * (x - between).to(q.dtype) for x in (m, n))
    before = (q * (-at_q).exp()) @ (k * at_k.exp()).transpose(-1, -2)
    after = (q * at_q.exp()) @ (k * (-at_k).exp()).transpose(-1, -2)
    return torch.where(n.transpose(-1, -2) <= m, before, after)


_WAYS = {_ZERO: _gone, _PAST: _past, _FUTURE: _future, _NEAR: _near, _MIXED: _at_once}
