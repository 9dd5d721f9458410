"""Entropy-aware ABF: a larger base, and a sharper softmax for later queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.bias.nope import NoPE
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding, check_axes, table_dtype
from ropewalk.core.errors import ConfigError
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.checks import check_length
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.rope import RoPE


class LogLengthScale(Encoding):
    """q_i → λ(i) q_i,  λ(i) = max(1, ln(i + 1) / ln L₀): a temperature that grows with the number of visible keys.

    Attention over more keys spreads out; this keeps its entropy near that of the training context. It is a function of the
    query's position alone, so cached keys stay as they are and decoding equals one pass. It goes with any encoding:
    ``Sequential(RoPE(spectrum=...), LogLengthScale(4096))``.

    Args:
        train_length: L₀, tokens of the training context, more than 1. Within it nothing changes.
        exempt_layers: first layers that are left alone, whose attention is near uniform by nature. `PerLayer` numbers them.
        lower_bound: False: λ(i) = ln(i + 1) / ln L₀ also within the training context.

    Shapes: q (B, H, Q, d); positions (b, S), counted from 0 in each document.

    Raises:
        ConfigError: a training length of 1 or less.

    Source: Yikai Zhang, Junlong Li, Pengfei Liu. Extending LLMs' Context Window with 100 Samples. arXiv 2401.07004, 2024.
    """

    def __init__(self, train_length: float = 4096, *, exempt_layers: int = 0, lower_bound: bool = True) -> None:
        super().__init__()
        check_length("train_length", train_length)
        if train_length <= 1:
            raise ConfigError(f"train_length is more than one token, since its logarithm divides; got {train_length!r}")
        if isinstance(exempt_layers, bool) or not isinstance(exempt_layers, int) or exempt_layers < 0:
            raise ConfigError(f"exempt_layers is a number of layers, from 0 on; got {exempt_layers!r}")
        self.train_length, self.exempt_layers, self.lower_bound = train_length, exempt_layers, lower_bound

    def factors(self, position: Tensor) -> Tensor:
        """Return λ at float64 positions; those before 0 count as 0."""
        seen = (position + 1).clamp(min=1)
        grown = seen.log() / math.log(self.train_length)
        # At L₀ the quotient is 1 but for rounding, and rounding would change what is to stay bit by bit.
        grown = torch.where(seen == self.train_length, 1.0, grown)
        return grown.clamp(min=1) if self.lower_bound else grown

    def rewrite(self, problem: Attention) -> Problem:
        """Multiply the queries."""
        p = problem
        tokens, at = p.where.query, p.at
        position = tokens.coordinates(at)
        check_axes(self, position, None)
        dtype = table_dtype(p.q)
        scale = self.factors(position).to(dtype)[:, None, :, None]
        return p.map_queries(lambda q: (q.to(dtype) * scale).to(q.dtype))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Change nothing: keys are as they were."""
        return problem

    def layer(self, index: int) -> Encoding:
        return NoPE() if index < self.exempt_layers else self

    def extra_repr(self) -> str:
        return f"{self.train_length}, exempt_layers={self.exempt_layers}"


def entropy_abf(
    head_dim: int | None = None,
    train_length: float = 4096,
    base: float = 500_000.0,
    pairing: Pairing = "half",
    *,
    exempt_layers: int = 2,
    lower_bound: bool = True,
    spectrum: Spectrum | None = None,
) -> Sequential:
    """s_ij = λ(i) (R_i q_i)·(R_j k_j) / √d,  λ(i) = max(1, ln(i + 1) / ln L₀),  ω_m = base^(−2m/d).

    `RoPE` with a larger base, then `LogLengthScale`. ``PerLayer(entropy_abf(64), 12)`` leaves the first layers at λ = 1, as
    published; they still use the new base.

    Args:
        head_dim: width of a head, even; None: taken from the first problem.
        train_length: L₀, tokens of the context before the extension.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        exempt_layers: first layers without λ.
        lower_bound: whether λ is at least 1.
        spectrum: other frequencies, for λ on top of another schedule.

    Source: Yikai Zhang, Junlong Li, Pengfei Liu. Extending LLMs' Context Window with 100 Samples. arXiv 2401.07004, 2024.
    """
    scale = LogLengthScale(train_length, exempt_layers=exempt_layers, lower_bound=lower_bound)
    return Sequential(RoPE(head_dim, base, pairing, spectrum=spectrum), scale)
