"""Shaw's relative positions: a learned key for each distance, up to a largest one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention, Pointwise, Problem
from ropewalk.core.encoding import Encoding, State, check_axes, full_precision
from ropewalk.core.errors import ShapeError, check_positive
from ropewalk.core.positions import Tokens


class ClippedRelative(Encoding):
    """s_ij + q_i·a[clip(j − i, −k, k)] / √d,  a ∈ R^{(2k + 1) × d} learned, shared by heads.

    The part of the keys; the published model adds vectors to values too. Queries are those before any rotation.

    Args:
        head_dim: width d of a head.
        max_distance: k, at least 1; what is farther away shares the last vector of its side.

    Shapes: weight (2k + 1, d), of j − i from −k to k; positions (b, S), in tokens; a fraction of a distance counts as its whole
    part.

    Source: Peter Shaw, Jakob Uszkoreit, Ashish Vaswani. Self-Attention with Relative Position Representations. arXiv 1803.02155,
    2018; baseline of arXiv 2309.05270.
    """

    def __init__(self, head_dim: int, max_distance: int = 16) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, max_distance=max_distance)
        self.head_dim, self.max_distance = head_dim, max_distance
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        nn.init.normal_(self.weight, std=head_dim**-0.5)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        p = problem
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim} and q has {p.q.shape[-1]}")
        with full_precision(p.q):
            q = p.q.to(torch.promote_types(p.q.dtype, self.weight.dtype))
            scores = self.head_dim**-0.5 * (q @ self.weight.to(q.dtype).t())
        return p.with_features(q={"scores": scores}), state

    def rewrite(self, problem: Attention) -> Problem:
        check_axes(self, problem.where.query.coordinates(problem.at), None)
        k = self.max_distance

        def bias(i: Tensor, j: Tensor, lookup: Callable[[Tensor], Tensor]) -> Tensor:
            return lookup((j - i).trunc().clamp(-k, k) + k)

        i = problem.coordinate(True)
        return problem.add(Pointwise(bias, (i,), (i,), problem.own("scores")))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem

    def extra_repr(self) -> str:
        return f"{self.head_dim}, max_distance={self.max_distance}"
