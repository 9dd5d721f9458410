"""xPos, a length-extrapolatable rotation."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import check_axes, table_dtype
from ropewalk.core.errors import ConfigError, NotCausal, PositionError
from ropewalk.core.positions import Positions, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.rope import RoPE

Tables = tuple[Tensor, Tensor]

# How much a query or a key may grow, as a power of two: in float16, and in what has at least the exponents of float32.
# Pairs that are masked afterwards see both factors at once, and their product must not become infinite: infinity plus
# minus infinity is NaN.
_GROWTH, _GROWTH_IN_HALF = 48, 6


class XPos(RoPE):
    """s_nm = Re Σ_i q_i k̄_i e^{i(n−m)ω_i} ζ_i^((n−m)/s) / √d,  ζ_i = (2i/d + γ) / (1 + γ),  ω_i = base^(−2i/d).

    RoPE that also fades with distance, fast pairs first, so that far keys are dim and not noise. A query at n is turned and
    scaled by ζ^((n−c)/s), a key at m by ζ^((c−m)/s).

    The centre c cancels as long as it is the same on both sides, but the factors do not fit into floating point: at 100 000
    tokens ζ_0^((0−n)/s) is 10^106. So c is chosen for each problem between its first query and its last key, and a cache
    keeps raw keys, which are turned at each step about the c of that step: far keys get small, and nothing gets large. So
    what is limited is the stretch of queries in one problem (27 000 tokens at the defaults, 3 400 in float16) and not the
    context. Beyond it is an error: prefill through a cache in chunks.

    A centre that is given stays: keys are then stored turned, and decoding costs what RoPE's does, but positions have to
    lie within half of that stretch of it.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        base: of the frequencies.
        pairing: "interleaved" as published, or "half".
        gamma: γ; larger fades less.
        scale_base: s in tokens; larger fades slower, infinity never (RoPE).
        centre: c; None: chosen for each problem.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.

    Raises:
        NotCausal: the problem is not causal; towards later keys the factors would grow.
        PositionError: queries, or positions around a given centre, over too long a stretch for the dtype.
        ConfigError: γ or s that are not positive.

    Source: Yutao Sun, Li Dong, Barun Patra, Shuming Ma, Shaohan Huang, Alon Benhaim, Vishrav Chaudhary, Xia Song, Furu Wei.
    A Length-Extrapolatable Transformer. arXiv 2212.10554, 2022.
    """

    log_zeta: Tensor

    def __init__(
        self,
        head_dim: int | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
        *,
        gamma: float = 0.4,
        scale_base: float = 512.0,
        centre: float | None = None,
    ) -> None:
        super().__init__(None, base, pairing)
        if not 0 < gamma < math.inf:
            raise ConfigError(f"gamma is a positive number; got {gamma!r}")
        if not scale_base > 0:
            raise ConfigError(f"scale_base is a positive number of tokens; got {scale_base!r}")
        if centre is not None and not math.isfinite(centre):
            raise ConfigError(f"centre is a position, or None; got {centre!r}")
        self.gamma, self.scale_base, self.centre = float(gamma), float(scale_base), centre
        if head_dim is not None:
            self.fit(head_dim)

    @property
    def stores(self) -> Literal["encoded", "raw"]:  # type: ignore[override]
        return "raw" if self.centre is None else "encoded"

    # ---- numbers ----------------------------------------------------------------------------------------------

    def fit(self, head_dim: int) -> None:
        first = self.head_dim is None
        super().fit(head_dim)
        if first:
            self.derive("log_zeta", self._log_zeta)

    def _log_zeta(self) -> Tensor:
        """(1/s) ln ζ_i, (d/2,): what a pair loses a token, below 0."""
        assert self.head_dim is not None
        i = torch.arange(self.head_dim // 2, dtype=torch.float64, device="cpu")
        return ((2 * i / self.head_dim + self.gamma) / (1 + self.gamma)).log() / self.scale_base

    def stretch(self, dtype: torch.dtype) -> float:
        """Return how far apart the first query and the last key of one problem may be, in tokens."""
        fastest = math.log1p(1 / self.gamma) / self.scale_base  # of pair 0
        return math.inf if fastest == 0 else 2 * _largest_log(dtype) / fastest

    def about(self, centre: float | None) -> XPos:
        """Return the same encoding about another centre."""
        return XPos(self.head_dim, self.base, self.pairing, gamma=self.gamma, scale_base=self.scale_base, centre=centre)

    # ---- turning and scaling ----------------------------------------------------------------------------------

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if not p.causal:
            raise NotCausal("xPos fades towards earlier keys, and would grow towards later ones; it is causal only")
        self.fit(p.q.shape[-1])

        def make() -> tuple[Tables, Tables]:
            query, key = p.where.query, p.where.key
            n, m = query.coordinates(p.at), key.coordinates(p.at)
            check_axes(self, n, None)
            check_axes(self, m, None)
            c = self._centre(p.where, n, m)
            return self._scaled(query, n, c, 1, p.q.dtype), self._scaled(key, m, c, -1, p.q.dtype)

        if any(map_.learned for map_ in p.at):
            at_q, at_k = make()
        else:
            dtype, chain = p.q.dtype, p.at
            at_q, at_k = p.where.memo(lambda: ("xpos", self.key(), tuple(map_.key for map_ in chain), dtype), make)
        return p.map_queries(lambda q: self.turn(q, at_q, p)).map_keys(lambda k: self.turn(k, at_k, p))

    def _centre(self, where: Positions, n: Tensor, m: Tensor) -> Tensor:
        """Return c, (b, 1): midway between the first query and the last key, so that both grow alike."""
        if self.centre is not None or 0 in (n.shape[1], m.shape[1]):
            return n.new_tensor([[self.centre or 0.0]])
        first = _real(where.query, n, torch.inf).amin(1, keepdim=True)
        last = _real(where.key, m, -torch.inf).amax(1, keepdim=True)
        return ((first + last) / 2).nan_to_num(0.0).detach()  # NaN: padding alone

    def _scaled(self, tokens: Tokens, position: Tensor, centre: Tensor, sign: int, dtype: torch.dtype) -> Tables:
        """Return cos and sin times ζ^(± (position − c) / s)."""
        away = sign * (position - centre)
        self._check(tokens, away, dtype)
        logs = away[..., None] * self.exact("log_zeta", position.device)
        logs = logs.clamp(max=_largest_log(dtype))  # of padding, which may be anywhere
        angles = self.angles(position.expand_as(away))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return rotation.tables(angles[:, None], wide, logs.exp()[:, None], self.pairing)

    def _check(self, tokens: Tokens, away: Tensor, dtype: torch.dtype) -> None:
        """Check that no real token grows too much."""
        limit = self.stretch(dtype) / 2
        growing = _real(tokens, -away, -torch.inf)
        if torch.compiler.is_compiling():
            torch._assert_async(
                (growing <= limit).all(), f"xPos over a stretch of more than {2 * limit:.0f} tokens in {dtype}"
            )
        elif growing.numel() and not growing.is_meta and (far := float(growing.max())) > limit:
            if self.centre is not None:
                raise PositionError(
                    f"a position {far:.0f} tokens from the centre {self.centre}; {dtype} holds the factors of {limit:.0f}. Give "
                    "another centre, or none: then only new queries count"
                )
            raise PositionError(
                f"queries and keys over a stretch of {2 * far:.0f} tokens; {dtype} holds the factors of {2 * limit:.0f}. Feed "
                "the tokens to a KVCache in chunks of at most that many, or raise scale_base"
            )

    def rotate(self, q: Tensor, k: Tensor, positions: Positions | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return q and k as encoded about position 0 (or the centre given), so that keys of different calls fit."""
        if self.centre is None:
            return self.about(0.0).rotate(q, k, positions)
        return super().rotate(q, k, positions)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Turn and scale the stored keys on; raw ones have no position yet."""
        if self.centre is None:
            return problem
        p = problem
        now, was = tokens.coordinates(p.at), p.where.key.coordinates(p.at)
        check_axes(self, now, None)
        self._check(tokens, self.centre - now, p.k.dtype)
        factor = ((was - now)[..., None] * self.exact("log_zeta", now.device)).exp()
        angles = self.angles(now) - self.angles(was)
        tables = rotation.tables(angles[:, None], table_dtype(p.k), factor[:, None])
        return p.map_keys(lambda k: self.turn(k, tables, p))

    def extra_repr(self) -> str:
        centre = "" if self.centre is None else f", centre={self.centre}"
        return f"{super().extra_repr()}, gamma={self.gamma}, scale_base={self.scale_base}{centre}"


def _largest_log(dtype: torch.dtype) -> float:
    return (_GROWTH_IN_HALF if dtype == torch.float16 else _GROWTH) * math.log(2)


def _real(tokens: Tokens, number: Tensor, otherwise: float) -> Tensor:
    """Replace what belongs to padding."""
    valid = tokens.columns.get("valid")
    return number if valid is None else torch.where(valid, number, otherwise)
