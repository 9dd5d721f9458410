"""Contextual GRAPE-M: rotations whose speed each token chooses."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ropewalk.core.attention import Attention
from ropewalk.core.encoding import full_precision
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.core.running import RunningRotary, hidden_of_keys
from ropewalk.frequencies.spectrum import check_base, check_rotary_width, geometric

GATE = 16.0
"""What the gate's logits are divided by."""


class GRAPEContextual(RunningRotary):
    """Pair j at token t turns by Φ_t ω_j,  Φ_t = Σ_{τ<t} σ((w·x_τ + b) / 16),  ω_j = exp(log_freq_j).

    RoPE at positions that the tokens make: each adds between 0 and 1 to those after it. It starts as RoPE of positions
    0.394 t. Positions are not read, only where padding is; packed documents need no fresh start, for only what lies between
    a key and a query enters their product.

    Args:
        head_dim: width d of a head, even.
        hidden_size: width of the layer's input x.
        num_heads: with ``per_head``, key heads, unless ``num_kv_heads`` says otherwise.
        num_kv_heads: key heads.
        per_head: a gate a key head, rather than one for all.
        base: of the initial frequencies base^(−2j/d).
        pairing: "half" as released, or "interleaved".

    Shapes: x (B, S, hidden_size); weight (1 or H_kv, hidden_size), zero at first; bias (1 or H_kv,), at first
    log(exp(0.001) − 1) as released; log_freq (d/2,). Sums in float64. The released code turns the other way
    round: its checkpoints want the two channels of each pair swapped, in q and k.

    Raises:
        NeedsHiddenStates: the problem carries no x.
        ShapeError: heads or x of another width.

    Source: Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu, Andrew
    Chi-Chih Yao. Group Representational Position Encoding. arXiv 2512.07805, 2025.
    """

    exclusive: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        hidden_size: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        per_head: bool = False,
        base: float = 10_000.0,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(pairing)
        check_base(base)
        check_positive(head_dim=head_dim, hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads)
        heads = num_kv_heads if num_kv_heads is not None else num_heads
        if per_head and heads is None:
            raise ConfigError("per_head=True makes a gate for each key head: give num_heads, or num_kv_heads")
        check_rotary_width(head_dim)
        self.head_dim, self.hidden_size, self.base, self.per_head = head_dim, hidden_size, float(base), per_head
        gates = heads if per_head and heads is not None else 1
        self.weight = nn.Parameter(torch.zeros(gates, hidden_size))
        self.bias = nn.Parameter(torch.full((gates,), math.log(math.expm1(1e-3))))
        self.log_freq = nn.Parameter(torch.empty(head_dim // 2))
        with torch.no_grad():
            self.log_freq.copy_(geometric(head_dim, base).tensor().log())

    def steps(self, problem: Attention) -> Tensor:
        if problem.q.shape[-1] != self.head_dim:
            raise ShapeError(f"GRAPE-M was made for head_dim {self.head_dim} and the problem has {problem.q.shape[-1]}")
        x = hidden_of_keys(self, problem, self.hidden_size)
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.per_head:
            weight, bias = problem.kv_head_slice(weight), problem.kv_head_slice(bias)
        with full_precision(x):
            dtype = torch.promote_types(x.dtype, weight.dtype)
            gate = linear(x.to(dtype), weight.to(dtype), bias.to(dtype)).double() / GATE
        return gate.sigmoid().transpose(1, 2)[..., None]

    def angles(self, sums: Tensor) -> Tensor:
        return sums * self.log_freq.double().exp()

    def extra_repr(self) -> str:
        return f"{self.head_dim}, hidden_size={self.hidden_size}, base={self.base}, pairing={self.pairing}"
