"""Multiplicative GRAPE: rotations exp(nωL) of q and k by learned skew generators."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, Rotary, check_axes, full_precision, table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, check_rotary_width, geometric
from ropewalk.rotary.axial import axis_widths, spread
from ropewalk.rotary.orthogonal import Map, check_map, orthogonal, orthonormal

Basis = Literal["none", "exp", "cayley", "householder", "qr"]


class GRAPEMultiplicative(Rotary):
    """q̃ = q + E (R(nω) − 1) Eᵀ q,  E (d, r) with orthonormal columns,  ω_j = exp(log_freq_j / c).

    Rotations in r/2 learned planes: exp(nL) of the generator L = E · blockdiag(ω_j J) · Eᵀ. Logits are qᵀ exp((j − i)L) k:
    they depend on differences of positions alone, whatever E and ω are. Every skew L of rank r can be written so, also one
    that mixes overlapping planes (`from_generator`); the cost is O(rd) a token.

    - ``basis="none"``: the planes are pairs of channels (the paper's GRAPE-M, non-contextual). It starts as RoPE.
    - ``basis="exp"``, ``"cayley"`` or ``"householder"``: E is an orthogonal matrix, the identity at first (learned commuting
      planes); with ``rank`` below d its first columns.
    - ``basis="qr"``: E is a free (d, r) matrix made orthonormal, at first the first r columns of the identity.

    Args:
        head_dim: width d of a head.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise; asked for where heads do not share.
        num_kv_heads: key heads.
        basis: what the planes are.
        rank: channels r that turn, even; None: d.
        heads_share: frequencies for all heads, as released, rather than a set a key head.
        basis_heads_share: one E for all heads; None: as ``heads_share``.
        log_freq_scale: c, which slows the learning of frequencies down and changes nothing else; 16 as released.
        base: of the initial frequencies base^(−2j/r).
        axes: positions are (b, S, axes); the planes are dealt out to the axes in equal runs, so that with
            ``basis="none"`` it starts as axial RoPE. None: plain positions.
        pairing: of the turned channels (of Eᵀq): "half" as released, or "interleaved".

    Shapes: log_freq (r/2,) or (H_kv, r/2); raw (1 or H_kv, d, d), or (1 or H_kv, d, r) for "qr". The released code turns
    the other way round: its checkpoints want the two channels of each pair swapped, in q and k.

    Raises:
        ConfigError: an odd rank or one beyond d, an unknown basis, no number of heads.
        ShapeError: heads of another width.

    Source: Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu, Andrew
    Chi-Chih Yao. Group Representational Position Encoding. arXiv 2512.07805, 2025. Only ``basis="none"`` was released.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        basis: Basis = "none",
        rank: int | None = None,
        heads_share: bool = True,
        basis_heads_share: bool | None = None,
        log_freq_scale: float = 16.0,
        base: float = 10_000.0,
        axes: int | None = None,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(pairing)
        check_base(base)
        check_positive(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads, axes=axes)
        rank = head_dim if rank is None else rank
        check_rotary_width(rank)
        if not 0 < rank <= head_dim:
            raise ConfigError(f"rank={rank} channels turn, of head_dim={head_dim}; give an even number from 2 to it")
        if basis not in get_args(Basis):
            raise ConfigError(f"basis is one of {', '.join(get_args(Basis))}; got {basis!r}")
        if not 0 < log_freq_scale < math.inf:
            raise ConfigError(f"log_freq_scale is a positive number; got {log_freq_scale!r}")
        heads = num_kv_heads if num_kv_heads is not None else num_heads
        one_basis = heads_share if basis_heads_share is None else basis_heads_share
        if heads is None and not (heads_share and (one_basis or basis == "none")):
            raise ConfigError("heads do not share everything: give num_heads, or num_kv_heads")
        self.head_dim, self.rank, self.base = head_dim, rank, float(base)
        self.axes = axes  # type: ignore[misc]
        self.log_freq_scale, self.basis = float(log_freq_scale), basis
        widths = (rank,) if axes is None else axis_widths(rank, axes)
        self.pairs = tuple(width // 2 for width in widths)
        start = torch.cat([geometric(width, base).tensor() for width in widths]).log() * log_freq_scale
        shape = (rank // 2,) if heads_share else (heads or 1, rank // 2)
        self.log_freq = nn.Parameter(torch.empty(shape))
        with torch.no_grad():
            self.log_freq.copy_(start.expand(shape))
        self.raw: nn.Parameter | None = None
        if basis != "none":
            number = 1 if one_basis else heads or 1
            first = torch.eye(head_dim, rank) if basis == "qr" else torch.zeros(head_dim, head_dim)
            self.raw = nn.Parameter(first.repeat(number, 1, 1))

    @classmethod
    @torch.no_grad()
    def from_generator(cls, generator: Tensor, *, log_freq_scale: float = 16.0) -> GRAPEMultiplicative:
        """Make the encoding exp(nL) of skew generators L, (d, d) or (H_kv, d, d), of one rank.

        So for a compact mixture of non-commuting rank-2 generators, L = Σ ω_k (a_k b_kᵀ − b_k a_kᵀ).
        """
        shared = generator.ndim == 2
        frame, frequency = skew_planes(generator[None] if shared else generator)
        made = cls(
            generator.shape[-1],
            num_kv_heads=len(frame),
            basis="qr",
            rank=frame.shape[-1],
            heads_share=shared,
            log_freq_scale=log_freq_scale,
            pairing="interleaved",
        )
        made.to(device=generator.device, dtype=generator.dtype)
        assert made.raw is not None
        made.raw.copy_(frame)
        made.log_freq.copy_((frequency.log() * log_freq_scale).reshape(made.log_freq.shape))
        return made

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"GRAPE-M was made for head_dim {self.head_dim} and the problem has {head_dim}")

    def frequencies(self) -> Tensor:
        """Return ω, (r/2,) or (H_kv, r/2) float64."""
        return (self.log_freq.double() / self.log_freq_scale).exp()

    def frame(self, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """Return E, (1 or H_kv, d, r) with orthonormal columns; None: the first r channels as they are."""
        if self.raw is None:
            return None
        raw = self.raw.to(dtype)
        if self.basis == "qr":
            return orthonormal(raw)
        how: Map = check_map(self.basis)
        return orthogonal(raw, how)[..., : self.rank]

    def angles(self, position: Tensor) -> Tensor:
        place = position[..., None] if self.axes is None else spread(position, self.pairs)
        frequencies = self.frequencies()
        return place * frequencies if frequencies.ndim == 1 else place[:, None] * frequencies[:, None]

    def turn(self, x: Tensor, tables: tuple[Tensor, Tensor], p: Attention) -> Tensor:
        dtype = table_dtype(x)
        with full_precision(x):
            e = self.frame(dtype)
            if e is None:
                return super().turn(x, tables, p)
            if e.shape[0] != 1:
                e = p.kv_head_slice(e)
                e = e.repeat_interleave(x.shape[1] // e.shape[0], 0)
            wide = x.to(dtype)
            inside = wide @ e
            moved = super().turn(inside, tables, p) - inside
            return (wide + moved @ e.transpose(-1, -2)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, basis={self.basis}, rank={self.rank}, pairing={self.pairing}"


class GRAPERank2(Encoding):
    """x̃ = exp(nωL) x = x + f₁ Lx + f₂ L²x,  L = a bᵀ − b aᵀ,  f₁ = sin(nωs) / s,  f₂ = (1 − cos(nωs)) / s².

    One rotation a head, in the plane of two learned vectors, by nωs with s = √(‖a‖²‖b‖² − (aᵀb)²); everything orthogonal
    to the plane stays. It costs O(d) a token and no trigonometry beyond one angle a head. ``a`` parallel to ``b`` is no
    rotation, with finite gradients.

    With ``axes``, x̃ = exp(uω_x L_x) exp(vω_y L_y) x with a generator an axis. Logits then depend on differences of
    coordinates only while the generators commute, as they do at first (planes of their own).

    Args:
        head_dim: width d of a head.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise.
        num_kv_heads: key heads.
        freq: initial ω of all heads, in radians a token.
        tied: b = 𝒥a with 𝒥 (x_2i, x_2i+1) = (−x_2i+1, x_2i), so that s = ‖a‖².
        axes: positions are (b, S, axes); None: plain positions.

    Shapes: a, b (H_kv, d), or (axes, H_kv, d), at first orthonormal; freq (H_kv,), or (axes, H_kv). Numbers: angles in float64.

    Raises:
        ConfigError: no number of heads, or more planes than fit.
        ShapeError: heads of another width.

    Source: Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu, Andrew
    Chi-Chih Yao. Group Representational Position Encoding. arXiv 2512.07805, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        freq: float = 1.0,
        tied: bool = False,
        axes: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads, axes=axes)
        heads = num_kv_heads if num_kv_heads is not None else num_heads
        if heads is None:
            raise ConfigError("GRAPE learns a plane for each key head: give num_heads, or num_kv_heads")
        planes = 1 if axes is None else axes
        if head_dim < 2 * planes or (tied and head_dim % 2):
            raise ConfigError(
                f"head_dim={head_dim} has no room for {planes} planes of 2 channels{', in whole pairs' if tied else ''}"
            )
        self.head_dim, self.axes, self.tied = head_dim, axes, tied
        first = torch.zeros(planes, heads, head_dim)
        second = torch.zeros(planes, heads, head_dim)
        for i in range(planes):
            first[i, :, 2 * i] = second[i, :, 2 * i + 1] = 1.0
        lead = (heads,) if axes is None else (axes, heads)
        self.a = nn.Parameter(first.reshape(*lead, head_dim))
        self.b: nn.Parameter | None = None if tied else nn.Parameter(second.reshape(*lead, head_dim))
        self.freq = nn.Parameter(torch.full(lead, float(freq)))

    def planes(self) -> tuple[Tensor, Tensor]:
        """Return a and b."""
        return self.a, quarter_turn(self.a) if self.b is None else self.b

    def _turn(self, x: Tensor, tokens: Tokens, p: Attention, back: Tokens | None = None) -> Tensor:
        """Turn by where ``tokens`` are, or on from ``back`` to there."""
        position = tokens.coordinates(p.at)
        check_axes(self, position, self.axes)
        if back is not None:
            position = position - back.coordinates(p.at)
        a, b = self.planes()
        freq: Tensor = self.freq
        if self.axes is None:
            position, a, b, freq = position[..., None], a[None], b[None], freq[None]
        out = x.to(table_dtype(x))
        for axis in reversed(range(position.shape[-1])):  # what is nearest to x comes first
            one = [p.kv_head_slice(t[axis]) for t in (a, b, freq)]
            one = [t.repeat_interleave(x.shape[1] // t.shape[0], 0) for t in one]
            place = position[..., axis][:, None] * one[2].double()[:, None]  # (b, H, S)
            out = rank2_rotate(out, place, one[0][:, None], one[1][:, None])
        return out.to(x.dtype)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"GRAPE was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}")
        p = p.map_queries(lambda q: self._turn(q, p.where.query, problem))
        return p.map_keys(lambda k: self._turn(k, p.where.key, problem))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        if self.axes is not None:  # turns about several axes do not add up unless they commute
            return super().move(problem, tokens)
        return problem.map_keys(lambda k: self._turn(k, tokens, problem, back=problem.where.key))

    def extra_repr(self) -> str:
        return f"{self.head_dim}" + (", tied" if self.tied else "")


# ---- the mathematics -------------------------------------------------------------------------------------------------


def quarter_turn(a: Tensor) -> Tensor:
    """𝒥a: each pair (x, y) of neighbouring channels becomes (−y, x)."""
    return torch.stack([-a[..., 1::2], a[..., 0::2]], -1).flatten(-2)


def rank2_rotate(x: Tensor, place: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return exp(t (a bᵀ − b aᵀ)) x by the closed form, in the dtype of x.

    Args:
        x: (..., d).
        place: t = nω, broadcastable against x without its last axis; float64.
        a: (..., d), broadcastable against x.
        b: likewise.
    """
    wide_a, wide_b = a.double(), b.double()
    alpha, beta, gamma = (
        (u * v).sum(-1) for u, v in ((wide_a, wide_a), (wide_b, wide_b), (wide_a, wide_b))
    )  # fmt: skip
    first, second = sine_quotients(place.square() * (alpha * beta - gamma.square()).clamp(min=0))
    f1, f2 = (first * place).to(x.dtype)[..., None], (second * place.square()).to(x.dtype)[..., None]
    alpha, beta, gamma = (t.to(x.dtype)[..., None] for t in (alpha, beta, gamma))
    a, b = a.to(x.dtype), b.to(x.dtype)
    ax, bx = (a * x).sum(-1, keepdim=True), (b * x).sum(-1, keepdim=True)
    # Lx = a bx − b ax and L²x = γ (a bx + b ax) − β a ax − α b bx, sorted by a and b.
    return x + a * (f1 * bx + f2 * (gamma * bx - beta * ax)) + b * (f2 * (gamma * ax - alpha * bx) - f1 * ax)


def sine_quotients(z2: Tensor) -> tuple[Tensor, Tensor]:
    """(sin z / z, (1 − cos z) / z²) as functions of z² ≥ 0: finite at 0, and so are their gradients."""
    small = z2 < 1e-6
    z = torch.where(small, 1.0, z2).sqrt()  # no gradient passes through a square root at 0
    first = torch.where(small, 1 - z2 / 6 + z2.square() / 120, z.sin() / z)
    second = torch.where(small, 0.5 - z2 / 24 + z2.square() / 720, 2 * (z / 2).sin().square() / z.square())
    return first, second


def skew_planes(generator: Tensor, tolerance: float = 1e-9) -> tuple[Tensor, Tensor]:
    """Split skew matrices into planes: L = E · blockdiag(ω_j J) · Eᵀ,  J = [[0, −1], [1, 0]].

    Args:
        generator: (n, d, d) skew, all of one rank.
        tolerance: frequencies below it, relative to the largest, count as 0.

    Returns:
        E (n, d, r) with orthonormal columns, a pair of neighbours a plane, and ω (n, r/2) > 0, largest first; float64.

    Raises:
        ShapeError: matrices that are not square, not skew, zero, or of several ranks.
    """
    if generator.ndim != 3 or generator.shape[-1] != generator.shape[-2]:
        raise ShapeError(f"generators have shape {tuple(generator.shape)}; expected (heads, d, d)")
    wide = generator.double()
    size = wide.abs().amax()
    if not bool(size.isfinite()) or bool((wide + wide.transpose(-1, -2)).abs().amax() > 1e-6 * size):
        raise ShapeError("a generator of rotations is skew (Lᵀ = −L) and finite, and this one is not")
    values, vectors = torch.linalg.eigh(1j * (wide - wide.transpose(-1, -2)) / 2)
    ranks = (values > tolerance * values[:, -1:]).sum(-1)
    planes = int(ranks[0])
    if bool((ranks != planes).any()) or not bool((values[:, -1] > 0).all()):
        raise ShapeError(
            f"the generators have {ranks.tolist()} planes each; one number of them, at least 1, is allowed"
        )
    # i L w = ω w with w = (u + i v) / √2 says L u = ω v and L v = −ω u.
    keep = slice(values.shape[-1] - planes, None)
    frequency, w = values[:, keep].flip(-1), vectors[..., keep].flip(-1) * math.sqrt(2)
    return torch.stack([w.real, w.imag], -1).flatten(-2), frequency
