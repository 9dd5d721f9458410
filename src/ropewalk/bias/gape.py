"""GAPE, gated adaptive positional encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ropewalk.core.attention import Attention, Pair, Pointwise, Problem
from ropewalk.core.encoding import Encoding, State, check_axes, full_precision
from ropewalk.core.errors import ConfigError, NotCausal, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens


class GAPE(Encoding):
    """s_ij = q_i·k_j / √d − (Γ_h g_i / T) (i − j) (1 − l_j),  g_i = softplus(w_g·q_i + b_g),  l_j = σ(w_l·k_j + b_l).

    ALiBi with a slope that the query chooses and that a key can switch off: g is the query gate, l the landmark gate that
    keeps a key reachable at any distance, Γ_h = softplus(γ_h) the amplitude of the head. It goes on top of any other encoding:
    ``Sequential(RoPE(64), GAPE(64, 8, context_length=2048))``.

    The paper adds Γ g_i (j (1 − l_j) + i l_j) / T, which differs by a number a row that the softmax does not see; the form
    here is 0 at j = i and does not grow with the position. It is a sum of two products, so fused kernels run it in two more
    channels.

    Args:
        head_dim: width d of a head.
        num_heads: query heads H.
        context_length: T, in tokens; the training length, which stays fixed while decoding. "current": the number of keys of
            the problem, padding and all documents counted; then a cache is refused.
        num_kv_heads: key heads; None: as many as query heads. Landmark gates are a key head's, shared by its group.
        gates: what they read: the "raw" q and k of the layer, or q and k as "rotated" by the encodings before this one.
        gamma_zero: Γ is the parameter itself, of either sign, and starts at 0: exactly the encoding without GAPE.
        bidirectional: use |i − j|, which is no sum of products, so that keys after the query are not rewarded.

    Shapes: w_l (H_kv, d), b_l (H_kv,), w_g (H, d), b_g (H,), gamma (H,). It starts with l = ½, g = 1 and Γ = 0.018. Positions
    (b, S), integer or real, in tokens. Numbers: gates in float32 or wider, distances in float64.

    Raises:
        NotCausal: a problem that is not causal, without ``bidirectional``.
        ConfigError: a context length that is not positive.
        ShapeError: heads of another width or number.

    Source: Riccardo Ali, Alessio Borgi, Christopher Irwin, Mario Severino, Pietro Liò. Remember to Forget: Gated Adaptive
    Positional Encoding. arXiv 2605.10414, 2026.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        context_length: float | Literal["current"],
        *,
        num_kv_heads: int | None = None,
        gates: Literal["raw", "rotated"] = "raw",
        gamma_zero: bool = False,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        number = isinstance(context_length, int | float) and not isinstance(context_length, bool)
        if context_length != "current" and not (number and 0 < float(context_length) < math.inf):
            raise ConfigError(
                f"context_length is a positive number of tokens (the training length), or 'current'; got {context_length!r}"
            )
        if gates not in ("raw", "rotated"):
            raise ConfigError(f"gates read 'raw' or 'rotated' q and k; got {gates!r}")
        self.head_dim, self.num_heads, self.num_kv_heads = head_dim, num_heads, num_kv_heads or num_heads
        self.context_length: float | Literal["current"] = context_length
        self.reads: Literal["raw", "rotated"] = gates
        self.gamma_zero, self.bidirectional = gamma_zero, bidirectional
        self.w_l = nn.Parameter(torch.zeros(self.num_kv_heads, head_dim))
        self.b_l = nn.Parameter(torch.zeros(self.num_kv_heads))
        self.w_g = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.b_g = nn.Parameter(torch.full((num_heads,), math.log(math.expm1(1.0))))
        self.gamma = nn.Parameter(torch.zeros(num_heads) if gamma_zero else torch.full((num_heads,), -4.0))

    # ---- what the gates say, for diagnosis too -----------------------------------------------------------------

    def amplitude(self) -> Tensor:
        """Return Γ, (H,)."""
        return self.gamma if self.gamma_zero else softplus(self.gamma)

    def query_gate(self, q: Tensor) -> Tensor:
        """Return g, (B, H, S): how much a query wants to forget what is far."""
        return softplus(_affine(q, self.w_g, self.b_g))

    def landmark_gate(self, k: Tensor) -> Tensor:
        """Return l, (B, H_kv, S), in (0, 1): how far a key is spared."""
        return _affine(k, self.w_l, self.b_l).sigmoid()

    def effective_context(self, q: Tensor) -> Tensor:
        """Return T / (Γ g), (B, H, S): the distance at which an unprotected key has lost one logit."""
        if self.context_length == "current":
            raise ConfigError("context_length='current' has no distance of its own; the slopes change with the length")
        return self.context_length / (self.amplitude()[:, None] * self.query_gate(q))

    # ---- forms for one's own attention ------------------------------------------------------------------------

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        positions: Positions | Tensor | None = None,
        *,
        form: Literal["centred", "raw"] = "centred",
    ) -> Tensor:
        """Return what is added to the scaled logits of all pairs, (B, H, Q, K) float64.

        Args:
            q: (B, H, Q, d), what the query gates read.
            k: (B, H_kv, K, d), what the landmark gates read.
            positions: of the tokens; None: counted, the queries last.
            form: "centred", as added here, or "raw", as in the paper. They differ by a number a row.
        """
        slope, l, i, j = self._parts(q, k, positions)
        i, j = i[..., None], j[..., None, :]
        slope, l = slope[..., None], l.repeat_interleave(q.shape[1] // k.shape[1], 1)[..., None, :]
        if form == "centred":
            return (_both_sides if self.bidirectional else _slope_bias)(i, slope, j, l)
        if form != "raw":
            raise ConfigError(f"form is 'centred' or 'raw'; got {form!r}")
        if self.bidirectional:
            raise NotCausal("the raw form rewards keys after the query; bidirectional GAPE has the centred form only")
        return slope * (j * (1 - l) + i * l)

    def augment(
        self,
        q: Tensor,
        k: Tensor,
        positions: Positions | Tensor | None = None,
        *,
        turned: tuple[Tensor, Tensor] | None = None,
        origin: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return q and k with two more channels, for causal attention of one's own.

        The scale stays 1/√d of the width before, and has to be given explicitly. `attend` folds by itself, more exactly in
        half precision. The key's channels depend on the key alone, so that they can be cached.

        Args:
            q: (B, H, Q, d), what the query gates read.
            k: (B, H_kv, K, d), what the landmark gates read.
            positions: of the tokens; None: counted, the queries last.
            turned: queries and keys as other encodings left them, which the channels are joined to; None: q and k.
            origin: position to count from; near the tokens, little is lost in low precision.
        """
        if self.bidirectional:
            raise NotCausal("|i − j| is no sum of products; bidirectional GAPE cannot be folded into q and k")
        slope, l, i, j = self._parts(q, k, positions)
        slope, i, j = slope * self.head_dim**0.5, i - origin, j - origin
        wide_q, wide_k = (
            torch.cat([x, *(c.to(x.dtype).expand(x.shape[:3])[..., None] for c in channels)], -1)
            for x, channels in zip(turned or (q, k), ((slope, slope * i), (j * (1 - l), l)), strict=True)
        )
        return wide_q, wide_k

    def score_mod(
        self, q: Tensor, k: Tensor, positions: Positions | Tensor | None = None
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the centred form as ``score_mod(score, batch, head, query, key)`` of torch's FlexAttention.

        For a call of one's own; the "flex" backend of `attend` makes its own.
        """
        slope, l, i, j = (t.contiguous() for t in self._parts(q, k, positions))
        middle = (i.amax() + j.amin()) / 2 if i.numel() and j.numel() else 0.0
        slope, l, i, j = (t.float() for t in (slope, l, i[:, 0] - middle, j[:, 0] - middle))
        group, add = q.shape[1] // k.shape[1], _both_sides if self.bidirectional else _slope_bias
        rows = i.shape[0] > 1

        def mod(score: Tensor, b: Tensor, h: Tensor, at_q: Tensor, at_k: Tensor) -> Tensor:
            row = b if rows else 0
            return score + add(i[row, at_q], slope[b, h, at_q], j[row, at_k], l[b, h // group, at_k])

        return mod

    def _parts(
        self, q: Tensor, k: Tensor, positions: Positions | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return Γ g / T (B, H, Q), l (B, H_kv, K) and the coordinates (b, 1, Q), (b, 1, K), all float64."""
        if isinstance(positions, Tensor):
            positions = Positions(positions)
        p = Attention(q, k, k, positions, causal=q.shape[2] <= k.shape[2]).located()
        i, j = (side.coordinates()[:, None] for side in (p.where.query, p.where.key))
        return self._slopes(p)[..., 0].double(), self._landmarks(p)[..., 0].double(), i, j

    # ---- the hooks --------------------------------------------------------------------------------------------

    def why_not_cached(self) -> str | None:
        if self.context_length == "current":
            return "its slopes change with the number of keys (context_length='current'); fix the context length"
        return None

    def _slopes(self, p: Attention) -> Tensor:
        """Return Γ g / T, (B, H, Q, 1)."""
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"GAPE was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}")
        gate = softplus(_affine(p.q, p.head_slice(self.w_g), p.head_slice(self.b_g)))
        t = p.k.shape[2] if self.context_length == "current" else self.context_length
        return (gate * (p.head_slice(self.amplitude())[:, None] / t))[..., None]

    def _landmarks(self, p: Attention) -> Tensor:
        """Return l, (B, H_kv, K, 1)."""
        return _affine(p.k, p.kv_head_slice(self.w_l), p.kv_head_slice(self.b_l)).sigmoid()[..., None]

    def _gated(self, p: Attention) -> Attention:
        return p.with_features(q={"slope": self._slopes(p)}, k={"landmark": self._landmarks(p)})

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        if not (problem.causal or self.bidirectional):
            raise NotCausal(
                "GAPE lowers a key by its distance into the past, which would reward keys after the query; give "
                "bidirectional=True for a problem that is not causal"
            )
        return self._gated(problem) if self.reads == "raw" else problem, state

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        check_axes(self, p.where.query.coordinates(p.at), None)
        if self.reads == "rotated":
            p = self._gated(p)
        place = p.coordinate(centred=True)
        fn, factors = (_both_sides, None) if self.bidirectional else (_slope_bias, _slope_factors)
        return p.add(Pointwise(fn, (place, p.own("slope")), (place, p.own("landmark")), factors=factors))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem if self.reads == "raw" else super().move(problem, tokens)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, {self.num_heads}, context_length={self.context_length}"


def _affine(x: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """w_h·x + b_h, (B, H, S), in float32 or wider."""
    if x.shape[1] != weight.shape[0]:
        raise ShapeError(f"GAPE was made for {weight.shape[0]} heads on this side and the tensor has {x.shape[1]}")
    with full_precision(x):
        dtype = torch.promote_types(x.dtype, weight.dtype)
        return (x.to(dtype) * weight[:, None].to(dtype)).sum(-1) + offset[:, None].to(dtype)


def _slope_bias(i: Tensor, slope: Tensor, j: Tensor, landmark: Tensor) -> Tensor:
    return -slope * (i - j) * (1 - landmark)


def _both_sides(i: Tensor, slope: Tensor, j: Tensor, landmark: Tensor) -> Tensor:
    return -slope * (i - j).abs() * (1 - landmark)


def _slope_factors(i: Tensor, slope: Tensor, j: Tensor, landmark: Tensor) -> Sequence[Pair]:
    return (slope, j * (1 - landmark)), (-slope * i, 1 - landmark)


def attention_entropy(weights: Tensor) -> Tensor:
    """Return the entropy of each query's attention in nats, weights (..., Q, K) → (..., Q); 0 where it sees nothing."""
    return torch.special.entr(weights.double()).sum(-1)
