"""CARoPE, context-aware rotary position embedding."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, check_axes, full_precision
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.core.running import RunningRotary, hidden_of_keys
from ropewalk.frequencies.spectrum import check_base, check_rotary_width


class CARoPE(RunningRotary):
    """Pair i of head h at token m turns by Σ_{t≤m} f_h(x_t)^i,  f_h(x) = 1 / (1 + softplus(x·w_h + b_h)),  i = 0 … d/2 − 1.

    RoPE whose frequencies are powers of a number that each token chooses for each head. Where f is constant, base^(−2/d),
    it is RoPE of that base; at the start it is so up to ``std``. Pair 0 counts tokens.

    Positions are counted, not read: they only say where documents and padding are, and any but consecutive ones are an
    error. Packed documents need no fresh start, for only what lies between a key and a query enters their product.

    Args:
        hidden_size: width of the layer's input x, or of the token embeddings.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise.
        head_dim: width d of a head, even.
        num_kv_heads: key heads; query heads share the angles of their key head.
        base: of the RoPE it starts as, more than 1.
        bias: learn b. It starts at log(exp(base^(2/d) − 1) − 1), without which the start is f = 1 / (1 + ln 2).
        source: "hidden" (x of the problem) or "embedding": the token embeddings, which the positions then carry as a column
            of that name, (b, S, hidden_size); layers then share one encoding, and with it their angles.
        start_exponent: 0, or 1 for i = 1 … d/2.
        std: standard deviation of the initial w; 0 starts as RoPE exactly.
        pairing: "half" (i, i+d/2) or "interleaved" (2i, 2i+1).

    Shapes: x (B, S, hidden_size); weight (H_kv, hidden_size), bias (H_kv,). Numbers: sums of powers in float64.

    Raises:
        NeedsHiddenStates: the problem carries no x.
        NeedsColumn: ``source="embedding"``, and the positions carry no embeddings.
        PositionError: positions that skip, repeat or run backwards.

    Source: Ali Veisi, Delaram Fartoot, Hamidreza Amirzadeh. Context-aware Rotary Position Embedding. arXiv 2507.23083,
    2025. The bias and the start are ours; the paper has neither.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int | None = None,
        head_dim: int = 64,
        *,
        num_kv_heads: int | None = None,
        base: float = 10_000.0,
        bias: bool = True,
        source: Literal["hidden", "embedding"] = "hidden",
        start_exponent: int = 0,
        std: float = 1e-3,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(pairing)
        heads = num_kv_heads if num_kv_heads is not None else num_heads
        check_positive(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        check_rotary_width(head_dim)
        check_base(base)
        if heads is None:
            raise ConfigError("CARoPE has a frequency for each key head: give num_heads, or num_kv_heads")
        if base <= 1:
            raise ConfigError(f"base={base!r}: f = base^(-2/head_dim) is to lie between 0 and 1, so base exceeds 1")
        if source not in ("hidden", "embedding"):
            raise ConfigError(f"source is 'hidden' or 'embedding'; got {source!r}")
        if start_exponent not in (0, 1):
            raise ConfigError(f"start_exponent is 0 or 1; got {start_exponent!r}")
        self.hidden_size, self.head_dim, self.base = hidden_size, head_dim, float(base)
        self.source, self.start_exponent = source, start_exponent
        self.weight = nn.Parameter(torch.empty(heads, hidden_size))
        nn.init.normal_(self.weight, std=std)
        self.bias: nn.Parameter | None = None
        if bias:
            start = math.log(math.expm1(math.expm1(2 / head_dim * math.log(base))))
            self.bias = nn.Parameter(torch.full((heads,), start))

    def log_frequency(self, problem: Attention) -> Tensor:
        """Return log f of each key, (B, H_kv, K) float64."""
        if self.source == "hidden":
            x = hidden_of_keys(self, problem, self.hidden_size)
        else:
            x = problem.where.key.column("embedding")
            if x.shape[-1] != self.hidden_size:
                raise ShapeError(
                    f"CARoPE was made for embeddings of width {self.hidden_size}; these have {x.shape[-1]}"
                )
        weight = problem.kv_head_slice(self.weight)
        with full_precision(x):
            dtype = torch.promote_types(x.dtype, weight.dtype)
            bias = None if self.bias is None else problem.kv_head_slice(self.bias).to(dtype)
            z = linear(x.to(dtype), weight.to(dtype), bias)
        return -softplus(z.double()).log1p().transpose(1, 2)

    def steps(self, problem: Attention) -> Tensor:
        if problem.q.shape[-1] != self.head_dim:
            raise ShapeError(f"CARoPE was made for head_dim {self.head_dim} and q has {problem.q.shape[-1]}")
        exponent = torch.arange(self.head_dim // 2, device=problem.q.device) + self.start_exponent
        return (self.log_frequency(problem)[..., None] * exponent).exp()

    def rewrite(self, problem: Attention) -> Problem:
        tokens = problem.where.key  # checked here, where it is known how encodings before this one moved them
        check_axes(self, tokens.coordinates(problem.at), None)
        tokens.memo(lambda: ("counted", tuple(m.key for m in problem.at)), lambda: _check_counted(tokens, problem))
        return super().rewrite(problem)

    def layer(self, index: int) -> Encoding:
        return self if self.source == "embedding" else super().layer(index)  # the angles are those of the embeddings

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, head_dim={self.head_dim}, base={self.base}, pairing={self.pairing}"


def _check_counted(tokens: Tokens, problem: Attention) -> None:
    """Check that each real token is one further than the real token before it in its document."""
    position, n = tokens.coordinates(problem.at), tokens.length
    if n == 0:
        return
    valid = tokens.columns.get("valid", torch.ones_like(position, dtype=torch.bool))
    document = tokens.columns.get("document", torch.zeros_like(valid, dtype=torch.long))
    rows = max(t.shape[0] for t in (position, valid, document))
    position, valid, document = (t.expand(rows, n) for t in (position, valid, document))
    before = torch.where(valid, torch.arange(n, device=valid.device), -1).cummax(-1).values.roll(1, -1)
    before[:, 0] = -1
    there = before.clamp(min=0)
    follows = (position - position.gather(1, there) == 1) | (document != document.gather(1, there))
    fine = (follows | ~valid | (before < 0)).all()
    message = (
        "CARoPE counts tokens and does not read positions, and these are not consecutive; give counted positions, or "
        "another encoding"
    )
    if torch.compiler.is_compiling():
        torch._assert_async(fine, message)
    elif not fine:
        raise PositionError(message)
