"""Normalised queries and keys."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Tokens


class QKNorm(Encoding):
    """q → g q / √(mean q² + ε),  k → g' k / √(mean k² + ε), head by head.

    No positional encoding, but what keeps one (or none: ``Sequential(QKNorm(64), NoPE())``) from training unstably. Put it
    before rotations, ``Sequential(QKNorm(64), RoPE(64))``: after them the gains would act on turned channels.

    Args:
        head_dim: width d of a head.
        kind: "rms" as above, or "layer", which subtracts the mean first and adds a learned bias.
        eps: ε.

    Shapes: gains (and biases) (d,), shared by the heads.

    Raises:
        ShapeError: heads of another width.
        ConfigError: an unknown kind.

    Source: Alex Henry, Prudhvi Raj Dachapally, Shubham Pawar, Yuxuan Chen. Query-Key Normalization for Transformers. arXiv
    2010.04245, 2020; as used in arXiv 2603.11611.
    """

    def __init__(self, head_dim: int, kind: Literal["rms", "layer"] = "rms", *, eps: float = 1e-6) -> None:
        super().__init__()
        check_positive(head_dim=head_dim)
        if kind not in ("rms", "layer"):
            raise ConfigError(f"kind is 'rms' or 'layer'; got {kind!r}")
        if not eps > 0:
            raise ConfigError(f"eps is a positive number; got {eps!r}")
        self.head_dim, self.kind, self.eps = head_dim, kind, eps
        self.q_gain, self.k_gain = nn.Parameter(torch.ones(head_dim)), nn.Parameter(torch.ones(head_dim))
        self.q_bias = nn.Parameter(torch.zeros(head_dim)) if kind == "layer" else None
        self.k_bias = nn.Parameter(torch.zeros(head_dim)) if kind == "layer" else None

    def _normalised(self, x: Tensor, gain: Tensor, bias: Tensor | None) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ShapeError(f"QKNorm was made for head_dim {self.head_dim} and the problem has {x.shape[-1]}")
        dtype = table_dtype(x)
        y = x.to(dtype)
        if bias is not None:
            y = y - y.mean(-1, keepdim=True)
        y = y * (y.square().mean(-1, keepdim=True) + self.eps).rsqrt() * gain.to(dtype)
        return (y if bias is None else y + bias.to(dtype)).to(x.dtype)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem.map_queries(lambda q: self._normalised(q, self.q_gain, self.q_bias))
        return p.map_keys(lambda k: self._normalised(k, self.k_gain, self.k_bias))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Change nothing: there is no position in it."""
        return problem

    def extra_repr(self) -> str:
        return f"{self.head_dim}, kind={self.kind}"
