"""PaPE, parabolic position encoding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, softplus

from ropewalk.core.attention import Attention, Pair, Pointwise, Problem
from ropewalk.core.encoding import Encoding, State, check_axes, full_precision
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens

Form = Literal["published", "compact"]


class _Parabolic(Encoding):
    """What PaPE and PaPE-RI share: a quadratic function of p_i − p_j whose coefficients the query token chooses."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int | None, axes: int | None) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads, axes=axes)
        if num_kv_heads is not None and num_heads % num_kv_heads:
            raise ConfigError(f"num_heads={num_heads} is to be a multiple of num_kv_heads={num_kv_heads}")
        self.hidden_size, self.num_heads, self.axes = hidden_size, num_heads, axes
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads

    # ---- the hooks --------------------------------------------------------------------------------------------

    def coefficients(self, x: Tensor, p: Attention) -> list[Tensor]:
        """Return the numbers of each query, (B, H, Q) each, that `_bias` and `_factors` read before the coordinates."""
        raise NotImplementedError

    @staticmethod
    def _bias(n: int, scale: float, *scalars: Tensor) -> Tensor:
        """Return the bias of a pair of places with n axes: coefficients, coordinates of the query, those of the key."""
        raise NotImplementedError

    @staticmethod
    def _factors(n: int, scale: float, *scalars: Tensor) -> Sequence[Pair]:
        """Return the same as a sum of products."""
        raise NotImplementedError

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        made = self.coefficients(problem.hidden, problem)
        return problem.with_features(q={f"coefficient {n}": t[..., None] for n, t in enumerate(made)}), state

    def rewrite(self, problem: Attention) -> Problem:
        p, n = problem, self.axes or 1
        names, places = [f"coefficient {m}" for m in range(self._count(n))], [f"axis {a}" for a in range(n)]
        at_q, at_k = (self._by_axis(side, p) for side in (p.where.query, p.where.key))
        p = p.with_features(q=dict(zip(places, at_q, strict=True)), k=dict(zip(places, at_k, strict=True)))
        where = tuple(p.own(name, centred=True) for name in places)
        fn = functools.partial(self._bias, n, p.logit_scale)
        factors = functools.partial(self._factors, n, p.logit_scale)
        return p.add(Pointwise(fn, (*(p.own(name) for name in names), *where), where, factors=factors))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        there = self._by_axis(tokens, problem)
        return problem.with_features(k={f"axis {a}": t for a, t in enumerate(there)})

    def _count(self, n: int) -> int:
        """Return how many coefficients there are for n axes."""
        raise NotImplementedError

    def _by_axis(self, tokens: Tokens, p: Attention) -> list[Tensor]:
        position = tokens.coordinates(p.at)
        return [t[:, None, :, None] for t in self._place(position).unbind(-1)]

    def _place(self, position: Tensor) -> Tensor:
        """Return coordinates as (b, S, n)."""
        check_axes(self, position, self.axes)
        return position[..., None] if self.axes is None else position

    def _project(self, x: Tensor, weight: Tensor, p: Attention, parts: int, per_head: int) -> Tensor:
        """Return weight x cut into (parts, B, H, S, per_head), in float32 or wider."""
        if x.shape[-1] != self.hidden_size:
            raise ShapeError(f"{type(self).__name__} was made for hidden_size {self.hidden_size}, x has {x.shape[-1]}")
        weight = p.head_slice(weight.unflatten(0, (parts, self.num_heads, per_head)), 1)
        with full_precision(x):
            dtype = torch.promote_types(x.dtype, weight.dtype)
            made = linear(x.to(dtype), weight.flatten(0, 2).to(dtype))
        return made.unflatten(-1, (parts, -1, per_head)).permute(2, 0, 3, 1, 4)

    # ---- wider q and k, for one's own attention ---------------------------------------------------------------

    def encode_qk(
        self,
        hidden: Tensor,
        q: Tensor,
        k: Tensor,
        positions: Positions | Tensor,
        *,
        form: Form = "compact",
        origin: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return q and k with channels whose product is the bias, padded with zeros to a multiple of 8.

        For attention of one's own; the scale stays 1/√d of the width before, and has to be given explicitly. `attend` folds by
        itself, in the compact form and with coordinates centred. The key's channels depend on the key alone, so that they can
        be cached.

        Args:
            hidden: (B, Q, hidden_size), the layer's input on the query side.
            q: (B, H, Q, d).
            k: (B, H_kv, K, d).
            positions: of the tokens.
            form: "published" (three or two channels a parabola and axis) or "compact" (of a number of channels that depends on
                the number of axes alone).
            origin: (n,) coordinates to count from; in half precision give the middle of the picture, since squares of large
                coordinates cancel.
        """
        if form not in ("published", "compact"):
            raise ConfigError(f"form is 'published' or 'compact'; got {form!r}")
        where = positions if isinstance(positions, Positions) else Positions(positions)
        p = Attention(q, k, k, where, causal=False, x=hidden)
        at_q, at_k = (self._place(side.coordinates()) for side in (where.query, where.key))
        if origin is not None:
            at_q, at_k = at_q - origin, at_k - origin
        extra_q, extra_k = (self._published if form == "published" else self._compact)(p, at_q, at_k)
        return _widened(q, extra_q), _widened(k, extra_k)

    def _published(self, p: Attention, at_q: Tensor, at_k: Tensor) -> tuple[Tensor, Tensor]:
        """Return the channels of the paper, (B, H, Q, r) and (B|1, H_kv|1, K, r)."""
        raise NotImplementedError

    def _compact(self, p: Attention, at_q: Tensor, at_k: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products of `_factors` as channels."""
        q = [c[..., None] for c in self.coefficients(p.hidden, p)]
        q_places, k_places = ([t[:, None, :, None] for t in at.unbind(-1)] for at in (at_q, at_k))
        pairs = self._factors(len(q_places), 1.0, *q, *q_places, *k_places)
        one = torch.ones_like(k_places[0])
        a, b = zip(*((a * one.new_ones(()), b * one) for a, b in pairs), strict=True)
        return torch.cat(torch.broadcast_tensors(*a), -1), torch.cat(torch.broadcast_tensors(*b), -1)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, {self.num_heads}, axes={self.axes}"


class PaPE(_Parabolic):
    """s_ij = (q_i·k_j + Σ_m [ −a_im (z_im − z_jm)² + b_im (z_im − z_jm) ]) / √d,  z_i = W_p p_i.

    A sum of concave parabolas of the relative position, whose curvatures a = softplus(W_a x_i) and slopes b = W_b x_i the query
    token chooses: attention falls with distance, and its peak (at z_i − z_j = b/2a) need not be at the query. With
    A_i = Σ_m a_im w_m w_mᵀ and c_i = Σ_m b_im w_m the bias is −(p_i − p_j)ᵀ A_i (p_i − p_j) + c_iᵀ (p_i − p_j), so that it
    costs n(n + 1)/2 + n channels of a fused kernel whatever the number of parabolas.

    Args:
        hidden_size: width of the layer's input x, the same normalised input that q and k are projected from.
        num_heads: query heads H.
        num_kv_heads: key heads, each with directions of its own that its group shares; None: as many as query heads.
        axes: n axes of a position, such as 2 for (row, col), 3 for (t, row, col) or for the points of a cloud; None: plain
            positions.
        num_parabolas: M, a head.

    Shapes: w_p (H_kv·M, n), w_ab (2·H·M, hidden_size): the rows of a before those of b, head by head; both are laid out and
    start as the weights of linear layers without bias. Positions (b, S, n), in patches (from 1 on, with the CLS token at the
    origin: ``grid_positions(14, 14, start=1, num_prefix=1)``). The released image models number (x, y), which is (col, row):
    swap the columns of their W_p. Numbers: coordinate differences in float64.

    Raises:
        NeedsHiddenStates: the problem carries no x.
        PositionError: positions with other axes.

    Source: Christoffer Koo Øhrstrøm, Rafael I. Cabral Muchacho, Yifei Dong, Filippos Moumtzidellis, Ronja Güldenring,
    Florian T. Pokorny, Lazaros Nalpantidis. Parabolic Position Encoding: Vision-Centric, Principled, Extrapolatable,
    General. arXiv 2602.01418, 2026.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        axes: int | None = 2,
        num_parabolas: int = 50,
    ) -> None:
        super().__init__(hidden_size, num_heads, num_kv_heads, axes)
        check_positive(num_parabolas=num_parabolas)
        self.num_parabolas = num_parabolas
        n = axes or 1
        self.w_p = nn.Parameter(torch.empty(self.num_kv_heads * num_parabolas, n).uniform_(-(n**-0.5), n**-0.5))
        bound = hidden_size**-0.5
        self.w_ab = nn.Parameter(torch.empty(2 * num_heads * num_parabolas, hidden_size).uniform_(-bound, bound))

    def _count(self, n: int) -> int:
        return n * (n + 1) // 2 + n

    def _parabolas(self, x: Tensor, p: Attention) -> tuple[Tensor, Tensor, Tensor]:
        """Return a, b (B, H, Q, M) and the directions (H_kv, M, n) of these heads."""
        a, b = self._project(x, self.w_ab, p, 2, self.num_parabolas)
        directions = p.kv_head_slice(self.w_p.unflatten(0, (self.num_kv_heads, self.num_parabolas)))
        return softplus(a), b, directions.to(a.dtype)

    def coefficients(self, x: Tensor, p: Attention) -> list[Tensor]:
        """Return A by its upper triangle (entries off the diagonal doubled), then c."""
        a, b, w = self._parabolas(x, p)
        n = w.shape[-1]
        pairs = _triangle(n)
        w = w.repeat_interleave(p.num_heads // w.shape[0], 0)  # (H, M, n)
        with full_precision(a):
            squares = torch.stack([w[..., r] * w[..., s] * (1 if r == s else 2) for r, s in pairs], -1)
            return [*(a @ squares).unbind(-1), *(b @ w).unbind(-1)]

    @staticmethod
    def _bias(n: int, scale: float, *scalars: Tensor) -> Tensor:
        square, slope, at_i, at_j = _sorted(scalars, n)
        gap = [i - j for i, j in zip(at_i, at_j, strict=True)]
        total = torch.zeros_like(gap[0])
        for c, d in zip(slope, gap, strict=True):
            total = total + c * d
        for entry, (r, s) in zip(square, _triangle(n), strict=True):
            total = total - entry * (gap[r] * gap[s])
        return scale * total

    @staticmethod
    def _factors(n: int, scale: float, *scalars: Tensor) -> Sequence[Pair]:
        square, slope, i, j = _sorted(scalars, n)
        constant = sum(c * at for c, at in zip(slope, i, strict=True))
        on_key = [-c for c in slope]  # what multiplies each coordinate of the key
        pairs: list[Pair] = []
        for entry, (r, s) in zip(square, _triangle(n), strict=True):
            constant = constant - entry * (i[r] * i[s])
            on_key[r] = on_key[r] + entry * i[s]
            on_key[s] = on_key[s] + entry * i[r]
            pairs.append((-scale * entry, j[r] * j[s]))
        pairs += [(scale * c, at) for c, at in zip(on_key, j, strict=True)]
        return [(scale * constant, 1.0), *pairs]

    def _published(self, p: Attention, at_q: Tensor, at_k: Tensor) -> tuple[Tensor, Tensor]:
        a, b, w = self._parabolas(p.hidden, p)
        z_q, z_k = (torch.einsum("bsn,hmn->bhsm", at, w.to(at.dtype)) for at in (at_q, at_k))
        z_q = z_q.repeat_interleave(p.num_heads // z_q.shape[1], 1)
        one = torch.ones_like(z_k[..., :1])
        q = [-(a * z_q.square()).sum(-1, keepdim=True), a, 2 * a * z_q, (b * z_q).sum(-1, keepdim=True), b]
        return torch.cat(q, -1), torch.cat([one, -z_k.square(), z_k, one, -z_k], -1)


class PaPERI(_Parabolic):
    """s_ij = (q_i·k_j − a_ih σ_h² ‖p_i − p_j‖²) / √d,  a_ih = softplus(w_h·x_i).

    The rotation-invariant form of PaPE: one curvature a head and query, the same in all directions, so that turning, mirroring
    or moving the picture changes nothing. It costs n + 1 channels of a fused kernel.

    Args:
        hidden_size: width of the layer's input x.
        num_heads: query heads H.
        num_kv_heads: key heads, each with a scale σ that its group shares; None: as many as query heads.
        axes: n axes of a position; None: plain positions.

    Shapes: w_a (H, hidden_size); sigma (H_kv,), drawn from U(−1/√n, 1/√n) once and never trained, a buffer that is saved with
    the parameters. Positions (b, S, n), in patches. Numbers: coordinate differences in float64.

    Raises:
        NeedsHiddenStates: the problem carries no x.
        PositionError: positions with other axes.

    Source: Christoffer Koo Øhrstrøm, Rafael I. Cabral Muchacho, Yifei Dong, Filippos Moumtzidellis, Ronja Güldenring,
    Florian T. Pokorny, Lazaros Nalpantidis. Parabolic Position Encoding: Vision-Centric, Principled, Extrapolatable,
    General. arXiv 2602.01418, 2026.
    """

    sigma: Tensor

    def __init__(
        self, hidden_size: int, num_heads: int, *, num_kv_heads: int | None = None, axes: int | None = 2
    ) -> None:
        super().__init__(hidden_size, num_heads, num_kv_heads, axes)
        n = axes or 1
        self.register_buffer("sigma", torch.empty(self.num_kv_heads).uniform_(-(n**-0.5), n**-0.5))
        bound = hidden_size**-0.5
        self.w_a = nn.Parameter(torch.empty(num_heads, hidden_size).uniform_(-bound, bound))

    def _count(self, n: int) -> int:
        return 1

    def _curvatures(self, x: Tensor, p: Attention) -> tuple[Tensor, Tensor]:
        """Return a (B, H, Q) and σ (H,)."""
        a = softplus(self._project(x, self.w_a, p, 1, 1)[0, ..., 0])
        sigma = p.kv_head_slice(self.sigma).to(a.dtype)
        return a, sigma.repeat_interleave(p.num_heads // sigma.shape[0])

    def coefficients(self, x: Tensor, p: Attention) -> list[Tensor]:
        """Return a σ²."""
        a, sigma = self._curvatures(x, p)
        return [a * sigma.square()[:, None]]

    @staticmethod
    def _bias(n: int, scale: float, *scalars: Tensor) -> Tensor:
        curvature, (at_i, at_j) = scalars[0], (scalars[1 : n + 1], scalars[n + 1 :])
        return -scale * curvature * _sum_of_squares([i - j for i, j in zip(at_i, at_j, strict=True)])

    @staticmethod
    def _factors(n: int, scale: float, *scalars: Tensor) -> Sequence[Pair]:
        curvature, (at_i, at_j) = scale * scalars[0], (scalars[1 : n + 1], scalars[n + 1 :])
        pairs: list[Pair] = [(2 * curvature * i, j) for i, j in zip(at_i, at_j, strict=True)]
        return [(-curvature * _sum_of_squares(at_i), 1.0), (-curvature, _sum_of_squares(at_j)), *pairs]

    def _published(self, p: Attention, at_q: Tensor, at_k: Tensor) -> tuple[Tensor, Tensor]:
        a, sigma = self._curvatures(p.hidden, p)
        a, sigma = a[..., None], sigma[:, None, None]
        scaled = at_q[:, None] * sigma
        q = [-a * scaled.square().sum(-1, keepdim=True), a.expand(*a.shape[:3], scaled.shape[-1]), 2 * a * scaled]
        scaled = at_k[:, None] * p.kv_head_slice(self.sigma)[:, None, None].to(at_k.dtype)
        return torch.cat(q, -1), torch.cat([torch.ones_like(scaled[..., :1]), -scaled.square(), scaled], -1)


def _sum_of_squares(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0].square()
    for part in parts[1:]:
        total = total + part.square()
    return total


def _triangle(n: int) -> list[tuple[int, int]]:
    return [(r, s) for r in range(n) for s in range(r, n)]


def _sorted(scalars: Sequence[Tensor], n: int) -> tuple[Sequence[Tensor], ...]:
    """Deal out what a term hands over: A, c, p_i, p_j."""
    m = n * (n + 1) // 2
    return scalars[:m], scalars[m : m + n], scalars[m + n : m + 2 * n], scalars[m + 2 * n :]


def _widened(x: Tensor, extra: Tensor) -> Tensor:
    x = torch.cat([x, extra.to(x.dtype).expand(*x.shape[:3], extra.shape[-1])], -1)
    return pad(x, (0, -x.shape[-1] % 8))
