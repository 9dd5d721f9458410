"""Path-integral GRAPE: a bias that sums what lies between key and query."""

from __future__ import annotations

import functools
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ropewalk.bias.slopes import alibi_slopes
from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Order, Problem, Row
from ropewalk.core.encoding import Encoding, State, check_axes, full_precision, table_dtype
from ropewalk.core.errors import ConfigError, NeedsHiddenStates, NotCausal, ShapeError, check_positive
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.running import hidden_of_keys, of_queries

Tie = Literal["none", "q", "k", "v"]
EPS = torch.finfo(torch.float32).eps
"""Added to the mean square under the root."""


class GRAPEPath(Encoding):
    """s_tj = q_t·k_j / √d + Σ_{l=j+1..t} ψ(t, l),  ψ(t, l) = m_h log σ(⟨p_t, R_l p̄_l⟩ / n).

    Each step on the path from key to query costs what the query makes of the token stepped on: ψ ≤ 0, so a bias only falls
    with distance. p̄ = p / √(mean p² + ε); R_l turns every pair of channels by −l, l the position in radians; m are ALiBi's
    slopes. Only one side is turned, so the encoding is not relative: shifted positions give other logits.

    FoX is the case ψ(t, l) = log f_l, ALiBi the case ψ = −m_h.

    Args:
        num_heads: query heads H of the layer.
        hidden_size: width of the layer's input x, for ``tie="none"``.
        path_dim: n, channels of p for ``tie="none"``, even; 8 as released.
        tie: "none" (p = W x, a W a query head), or "q", "k" or "v": p is the layer's own, and n the width of a head.
        normalise: "key" (only p_l, as released) or "both" (p_t too, as the paper says).

    Shapes: weight (H, n, hidden_size). The term needs whole rows of Q x K numbers; decoding a token costs O(keys · n).

    Raises:
        NotCausal: the problem is not causal.
        NeedsHiddenStates: the problem carries no x; or ``tie="q"`` and there are keys whose queries are not there.
        ShapeError: an odd number of channels.

    Source: Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu, Andrew
    Chi-Chih Yao. Group Representational Position Encoding. arXiv 2512.07805, 2025.
    """

    slope: Tensor

    def __init__(
        self,
        num_heads: int,
        hidden_size: int | None = None,
        *,
        path_dim: int = 8,
        tie: Tie = "none",
        normalise: Literal["key", "both"] = "key",
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, hidden_size=hidden_size, path_dim=path_dim)
        if tie not in get_args(Tie):
            raise ConfigError(f"tie is one of {', '.join(get_args(Tie))}; got {tie!r}")
        if normalise not in ("key", "both"):
            raise ConfigError(f"normalise is 'key' or 'both'; got {normalise!r}")
        if path_dim % 2:
            raise ConfigError(f"path_dim={path_dim} channels are turned in pairs; give an even number")
        self.num_heads, self.hidden_size, self.path_dim, self.tie, self.normalise = (
            num_heads, hidden_size, path_dim, tie, normalise,
        )  # fmt: skip
        self.derive("slope", self._slope)
        self.weight: nn.Parameter | None = None
        if tie == "none":
            if hidden_size is None:
                raise ConfigError("tie='none' projects the layer's input: give hidden_size")
            self.weight = nn.Parameter(torch.empty(num_heads, path_dim, hidden_size))
            nn.init.normal_(self.weight, std=hidden_size**-0.5)

    def _slope(self) -> Tensor:
        return alibi_slopes(self.num_heads)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        p = problem
        if not p.causal:
            raise NotCausal("GRAPE-AP sums from a key forward to the query; it is defined for causal attention only")
        with full_precision(p.q):
            of_keys = self._vectors(p)
        if of_keys.shape[-1] % 2:
            raise ShapeError(f"GRAPE-AP turns pairs of channels, and p has {of_keys.shape[-1]}")
        own = of_queries(self, p, of_keys)
        own = own.repeat_interleave(p.num_heads // own.shape[1], 1)
        own = _normalised(own) if self.normalise == "both" else own
        tables = self._tables(p.where.key, p.at, of_keys)
        turned = rotation.rotate(_normalised(of_keys), *tables, "half", inverse=True)
        real = torch.ones((1, 1, p.k.shape[2], 1), dtype=torch.bool, device=p.k.device)
        valid = p.where.key.columns.get("valid")
        if valid is not None:
            real = valid[:, None, :, None]
        slope = p.head_slice(self.exact("slope", p.q.device))[None, :, None, None]
        return p.with_features(q={"path": own, "slope": slope}, k={"path": turned, "real": real}), state

    def _vectors(self, p: Attention) -> Tensor:
        """Return p of every key, (B, H or H_kv, K, n) in float32 or wider."""
        if self.weight is not None:
            assert self.hidden_size is not None
            x, weight = hidden_of_keys(self, p, self.hidden_size), p.head_slice(self.weight)
            dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), table_dtype(p.q))
            return torch.einsum("bkx,hnx->bhkn", x.to(dtype), weight.to(dtype))
        if self.tie == "q":
            if not p.where.is_self:
                raise NeedsHiddenStates("tie='q' reads the query of every key; give all of them, or tie another")
            return p.q.to(table_dtype(p.q))
        return (p.k if self.tie == "k" else p.v).to(table_dtype(p.q))

    def _tables(self, tokens: Tokens, chain: Chain, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the positions in radians, for every pair alike."""
        pairs, dtype = like.shape[-1] // 2, like.dtype

        def make() -> tuple[Tensor, Tensor]:
            radians = tokens.coordinates(chain)
            check_axes(self, radians, None)
            return _alike(radians, pairs, dtype)

        if any(m.learned for m in chain):
            return make()
        return tokens.memo(lambda: ("grape path", pairs, dtype, tuple(m.key for m in chain)), make)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        width = p.kf[p.own("path").name].shape[-1]
        fn = functools.partial(_add_path, width=width)
        return p.add(Row(fn, (p.own("path"), p.own("slope"), Order()), (p.own("path"), p.own("real"), Order())))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        p, name = problem, problem.own("path").name
        path = p.kf[name]
        check_axes(self, tokens.coordinates(p.at), None)
        radians = tokens.coordinates(p.at) - p.where.key.coordinates(p.at)
        tables = _alike(radians, path.shape[-1] // 2, path.dtype)
        return p.replace(kf={**p.kf, name: rotation.rotate(path, *tables, "half", inverse=True)})

    def extra_repr(self) -> str:
        return f"{self.num_heads}, path_dim={self.path_dim}, tie={self.tie}, normalise={self.normalise}"


def path_sums(potential: Tensor, on_path: Tensor | None = None) -> Tensor:
    """Σ_{l>j} ψ(t, l) for every j, over the l that are on the path: ψ (..., Q, K) → (..., Q, K).

    ``on_path`` is boolean, True for real tokens up to the query; None: all that there are.
    """
    if on_path is not None:
        potential = potential.masked_fill(~on_path, 0.0)
    return potential.flip(-1).cumsum(-1).flip(-1) - potential


def _add_path(
    logits: Tensor, allowed: Tensor, own: Tensor, slope: Tensor, order: Tensor,
    path: Tensor, real: Tensor, key_order: Tensor, width: int,
) -> Tensor:  # fmt: skip
    # What a mask hides is still stepped over: the path is that of the sequence, not of what may be seen.
    dtype = logits.dtype
    with full_precision(logits):
        edge = own.to(dtype) @ path.to(dtype).transpose(-1, -2) / width
    on_path = (key_order.transpose(-1, -2) <= order) & real.transpose(-1, -2)
    return logits + path_sums(slope.to(dtype) * logsigmoid(edge), on_path)


def _alike(radians: Tensor, pairs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin, (b, 1, S, pairs), of angles (b, S) that all pairs turn by."""
    cos, sin = rotation.tables(radians[:, None, :, None], dtype)
    return cos.expand(-1, -1, -1, pairs), sin.expand(-1, -1, -1, pairs)


def _normalised(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
