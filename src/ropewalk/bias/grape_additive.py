"""Additive GRAPE: ALiBi whose slopes queries and keys choose."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from ropewalk.bias.slopes import alibi_slopes
from ropewalk.core.attention import Attention, Coordinate, Pair, Pointwise, Problem
from ropewalk.core.encoding import Encoding, State, check_axes, full_precision, table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Tokens

Gates = Literal["q", "k", "qk"]
EPS = 1e-6
"""Least length by which a direction is divided."""


class GRAPEAdditive(Encoding):
    """s_ij = q_i·k_j / √d − ω_h (i − j) (λ_q(q_i) + λ_k(k_j)),  λ_q(q) = softplus(v̂_h·q / √d),  λ_k(k) = softplus(û_h·k / √d).

    ω_h = m_h softplus(raw_h) starts at ALiBi's slope m_h. With gates "q" (A-Q) or "k" (A-K) the other λ is left out. Gates
    read q and k as the layer made them, before any encoding of a `Sequential` turns them. Without causality, keys after the
    query are left alone: max(i − j, 0).

    It is the action of a unipotent matrix 1 + nωA, A² = 0, on q and k lifted by two constant coordinates; causal terms are
    sums of products and run on fused kernels without an S x S bias.

    Args:
        num_heads: query heads H of the layer.
        head_dim: width d of a head.
        gates: "qk", "q" or "k".
        normalise: divide u and v by their lengths, as released; the paper's equation does not.
        axes: positions are (b, S, axes); None: plain positions.
        distance: what i − j is with several axes: "offset" (Σ_a α_a (i_a − j_a), where above 0) or "norm" (‖i − j‖).
        axis_weights: α of "offset"; None: ones.

    Shapes: u, v (H, d), one a query head, normal of variance 1/d at first; raw (H,). Distances in float64, gates in float32 or
    wider.

    Raises:
        ConfigError: unknown gates or distances; weights that are not one an axis.
        ShapeError: heads of another width.

    Source: Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu, Andrew
    Chi-Chih Yao. Group Representational Position Encoding. arXiv 2512.07805, 2025.
    """

    slope: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        gates: Gates = "qk",
        *,
        normalise: bool = True,
        axes: int | None = None,
        distance: Literal["offset", "norm"] = "offset",
        axis_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, head_dim=head_dim, axes=axes)
        if gates not in get_args(Gates):
            raise ConfigError(f"gates is 'qk', 'q' or 'k'; got {gates!r}")
        if distance not in ("offset", "norm"):
            raise ConfigError(f"distance is 'offset' or 'norm'; got {distance!r}")
        if axis_weights is not None and (axes is None or distance != "offset" or len(axis_weights) != axes):
            raise ConfigError(
                f"axis_weights={list(axis_weights)} with axes={axes}, distance={distance!r}: they weigh the axes of an offset, "
                "one number an axis"
            )
        self.num_heads, self.head_dim, self.gates, self.normalise = num_heads, head_dim, gates, normalise
        self.axes, self.distance = axes, distance
        self.axis_weights = (1.0,) * (axes or 0) if axis_weights is None else tuple(float(a) for a in axis_weights)
        self.derive("slope", self._slope)
        self.raw = nn.Parameter(torch.full((num_heads,), math.log(math.expm1(1.0))))
        self.u = nn.Parameter(torch.empty(num_heads, head_dim)) if "k" in gates else None
        self.v = nn.Parameter(torch.empty(num_heads, head_dim)) if "q" in gates else None
        for direction in (self.u, self.v):
            if direction is not None:
                nn.init.normal_(direction, std=head_dim**-0.5)

    def _slope(self) -> Tensor:
        return alibi_slopes(self.num_heads)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        p = problem
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"GRAPE-A was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}")
        rate = self.exact("slope", p.q.device) * softplus(self.raw.double())
        omega = p.head_slice(rate)[None, :, None, None]
        if self.v is not None:
            p = p.with_features(q={"rate": omega * self._gate(p.q, p.head_slice(self.v))})
        if self.u is not None:
            p = p.with_features(q={"omega": omega}, k={"rate": self._gate(p.k, p.head_slice(self.u))})
        return p, state

    def _gate(self, x: Tensor, direction: Tensor) -> Tensor:
        """Return λ of queries or keys, a number a query head: (B, h, S, d), (H, d) → (B, H, S, 1)."""
        with full_precision(x):
            dtype = torch.promote_types(table_dtype(x), direction.dtype)
            direction = normalize(direction, dim=-1, eps=EPS) if self.normalise else direction
            of_groups = direction.to(dtype).unflatten(0, (x.shape[1], -1))  # (h, group, d)
            return softplus(x.to(dtype) @ of_groups.transpose(1, 2) * self.head_dim**-0.5).mT.flatten(1, 2)[..., None]

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        check_axes(self, p.where.query.coordinates(p.at), self.axes)
        exact = self.axes is None and p.causal
        if self.axes is None:
            places: tuple[Coordinate, ...] = (p.coordinate(centred=True),)
        elif self.distance == "offset":
            places = (Coordinate((*p.at, Along(self.axis_weights))),)
        else:
            unit = [tuple(float(a == b) for a in range(self.axes)) for b in range(self.axes)]
            places = tuple(Coordinate((*p.at, Along(axis))) for axis in unit)
        length = _gap if exact else _euclidean if self.axes is not None and self.distance == "norm" else _positive_gap
        n = len(places)

        def of_query(*inputs: Tensor) -> Tensor:  # i, rate, j
            return -inputs[n] * length(inputs[:n], inputs[n + 1 :])

        def of_key(*inputs: Tensor) -> Tensor:  # i, omega, j, rate
            return -inputs[n] * inputs[-1] * length(inputs[:n], inputs[n + 1 : -1])

        if self.v is not None:
            rate, folded = p.own("rate"), _query_factors if exact else None
            p = p.add(Pointwise(of_query, (*places, rate), places, factors=folded))
        if self.u is not None:
            omega, rate, shared = p.own("omega"), p.own("rate"), _key_factors if exact else None
            p = p.add(Pointwise(of_key, (*places, omega), (*places, rate), factors=shared))
        return p

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem  # coordinates are read when attention is computed

    def extra_repr(self) -> str:
        return f"{self.num_heads}, {self.head_dim}, gates={self.gates}"


class Along:
    """The coordinate along a direction of space, as a map: Σ_a α_a r_a."""

    __slots__ = ("weights",)
    learned = False

    def __init__(self, weights: tuple[float, ...]) -> None:
        self.weights = weights

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Along) and self.weights == other.weights

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> Hashable:
        """The direction."""
        return ("along", self.weights)

    def __call__(self, tokens: Tokens, coordinates: Tensor) -> Tensor:
        """Project the coordinates, (b, S, axes) → (b, S)."""
        return coordinates @ coordinates.new_tensor(self.weights)


def _gap(i: Sequence[Tensor], j: Sequence[Tensor]) -> Tensor:
    return i[0] - j[0]


def _positive_gap(i: Sequence[Tensor], j: Sequence[Tensor]) -> Tensor:
    return (i[0] - j[0]).clamp(min=0)


def _euclidean(i: Sequence[Tensor], j: Sequence[Tensor]) -> Tensor:
    squares = (i[0] - j[0]).square()
    for a, b in zip(i[1:], j[1:], strict=True):
        squares = squares + (a - b).square()
    apart = squares > 0  # no gradient passes through a square root at 0
    return torch.where(apart, torch.where(apart, squares, 1.0).sqrt(), 0.0)


def _query_factors(i: Tensor, rate: Tensor, j: Tensor) -> Sequence[Pair]:
    return (-rate * i, 1.0), (rate, j)


def _key_factors(i: Tensor, omega: Tensor, j: Tensor, rate: Tensor) -> Sequence[Pair]:
    return (-omega * i, rate), (omega, j * rate)
