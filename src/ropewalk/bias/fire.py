"""FIRE, functional interpolation of relative positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention, Pointwise, Problem, Ref
from ropewalk.core.encoding import Encoding, check_axes, full_precision
from ropewalk.core.errors import ConfigError, NotCausal, check_positive
from ropewalk.core.positions import Tokens


class FIRE(Encoding):
    """s_ij = q_i·k_j / √d + f_h( ψ(i − j) / ψ(max(L, i)) ),  ψ(t) = ln(1 + c t),  f: 1 → n → H with ReLU.

    Distances are interpolated: whatever the length, the argument of f stays in [0, 1], from 0 at the query to 1 at the
    first token of a long document. Positions are counted from the document's start, as `Positions.arange` does; a distance
    is |i − j|, for ids that run backwards.

    f of one number is piecewise linear with n corners. It is evaluated as such: which piece an argument lies in is the same
    for all heads, and each head reads a slope and an intercept.

    Args:
        num_heads: query heads H.
        hidden: width n of the hidden layer.
        c: initial c.
        threshold: initial L, in tokens: below this length queries share one normaliser.

    Shapes: w_in (n,), b_in (n,), w_out (H, n), b_out (H,); log_c and log_threshold, the logarithms of c and L, so that both
    stay positive; positions (b, S), integer or real, in tokens. Numbers: distances and ψ in float64.

    Raises:
        NotCausal: the problem is not causal, so that i is not the longest distance of its query.
        ConfigError: c or L that are not positive.

    Source: Shanda Li, Chong You, Guru Guruganesh, Joshua Ainslie, Santiago Ontanon, Manzil Zaheer, Sumit Sanghai, Yiming
    Yang, Sanjiv Kumar, Srinadh Bhojanapalli. Functional Interpolation for Relative Positions Improves Long Context
    Transformers. arXiv 2310.04418, 2023.
    """

    def __init__(self, num_heads: int, *, hidden: int = 32, c: float = 0.1, threshold: float = 512.0) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, hidden=hidden)
        for name, value in (("c", c), ("threshold", threshold)):
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is a positive number; got {value!r}")
        self.num_heads, self.hidden = num_heads, hidden
        self.log_c = nn.Parameter(torch.tensor(float(c)).log())
        self.log_threshold = nn.Parameter(torch.tensor(float(threshold)).log())
        # What nn.Linear(1, n) and nn.Linear(n, H) start from.
        self.w_in = nn.Parameter(torch.empty(hidden).uniform_(-1, 1))
        self.b_in = nn.Parameter(torch.empty(hidden).uniform_(-1, 1))
        bound = hidden**-0.5
        self.w_out = nn.Parameter(torch.empty(num_heads, hidden).uniform_(-bound, bound))
        self.b_out = nn.Parameter(torch.empty(num_heads).uniform_(-bound, bound))

    @property
    def c(self) -> Tensor:
        """How soon ψ bends, float64."""
        return self.log_c.double().exp()

    @property
    def threshold(self) -> Tensor:
        """The length L below which queries share one normaliser, in tokens, float64."""
        return self.log_threshold.double().exp()

    def pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return f as (n,) corners, (H, n + 1) slopes and (H, n + 1) intercepts of the pieces between them."""
        with full_precision(self.w_in):
            still = self.w_in == 0  # a unit without a corner
            corners = torch.where(still, 0.0, -self.b_in / torch.where(still, 1.0, self.w_in)).detach()
            corners = corners.clamp(-_FAR, _FAR).sort().values
            ends = torch.cat([corners[:1] - 1, corners, corners[-1:] + 1])
            inside = ends[:-1] / 2 + ends[1:] / 2
            on = (inside[:, None] * self.w_in + self.b_in > 0).to(self.w_in.dtype)  # (n + 1, n)
            slope = self.w_out @ (on * self.w_in).t()
            return corners, slope, self.w_out @ (on * self.b_in).t() + self.b_out[:, None]

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if not p.causal:
            raise NotCausal(
                "FIRE divides distances by the query's distance from the start, the longest there is in causal attention; "
                "it is not defined for a problem with causal=False"
            )
        position = p.where.query.coordinates(p.at)
        check_axes(self, position, None)
        longest = torch.maximum(position, self.threshold)[:, None, :, None]
        corners, slope, intercept = self.pieces()
        table = p.head_slice(torch.cat([slope, intercept], -1))[None, :, None]
        names = [f"corner {n}" for n in range(self.hidden)]
        numbers = {"c": self.c, "longest": torch.log1p(self.c * longest), "table": table}
        numbers |= dict(zip(names, corners.unbind(), strict=True))
        p = p.with_features(q={n: t if t.ndim else t[None, None, None, None] for n, t in numbers.items()})
        place = p.coordinate(centred=True)
        read: tuple[Ref, ...] = (place, *(p.own(name) for name in ("c", "longest", *names)))
        return p.add(Pointwise(_interpolate, read, (place,), p.own("table")))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem

    def extra_repr(self) -> str:
        return f"{self.num_heads}, hidden={self.hidden}"


_FAR = 1e30
"""Beyond any argument of f: a corner out there may be anywhere."""


def _interpolate(i: Tensor, c: Tensor, longest: Tensor, *rest: Any) -> Tensor:
    """f at the interpolated distance; what follows ``longest`` are the corners, j and the table."""
    corners: list[Tensor] = list(rest[:-2])
    j: Tensor = rest[-2]
    table: Callable[[Tensor], Tensor] = rest[-1]
    x = (torch.log1p(c * (i - j).abs()) / longest).to(corners[0].dtype)
    piece = torch.zeros_like(x, dtype=torch.long)
    for corner in corners:
        piece = piece + (x > corner)
    return table(piece) * x + table(piece + len(corners) + 1)
