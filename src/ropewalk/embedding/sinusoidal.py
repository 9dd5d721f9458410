"""Sinusoidal position embeddings."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ropewalk.core.encoding import Embedding
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.frequencies.spectrum import check_base

Rule = Literal["paper", "endpoints", "channel"]


class Sinusoidal(Embedding):
    """x_p ← x_p + [sin pω_i, cos pω_i],  ω_i = base^(−2i/d), i = 0 … d/2 − 1.

    Args:
        hidden_size: width d of the embeddings, even; None: taken from the first embeddings.
        base: 10000 in the paper.
        layout: "interleaved" (sin, cos, sin, cos, ...: the paper) or "halves" ([sin | cos]: tensor2tensor, fairseq, the
            length-generalisation studies).
        rule: exponents, by where they were published. "paper": −2i/d (Vaswani et al.). "endpoints": −i/(d/2 − 1), so that
            the slowest period is exactly base (tensor2tensor, fairseq). "channel": −2c/d with c the channel 2i or 2i + 1
            itself, so that sin and cos of a pair turn differently and the ladder ends at base^−2 (a widespread tutorial).
        start: position of the first token (fairseq: 2).

    Shapes: x (B, S, d); positions (b, S), integer or real. Numbers: angles and sines in float64, added in float32 or
    wider.

    Source: Ashish Vaswani, Noam Shazeer, Niki Parmar, Jakob Uszkoreit, Llion Jones, Aidan N. Gomez, Lukasz Kaiser, Illia
    Polosukhin. Attention Is All You Need. arXiv 1706.03762, 2017; baseline of arXiv 2305.19466.
    """

    inv_freq: Tensor

    def __init__(
        self,
        hidden_size: int | None = None,
        base: float = 10_000.0,
        *,
        layout: Literal["interleaved", "halves"] = "interleaved",
        rule: Rule = "paper",
        start: int = 0,
    ) -> None:
        super().__init__()
        check_base(base)
        if layout not in ("interleaved", "halves"):
            raise ConfigError(f"layout is 'interleaved' or 'halves'; got {layout!r}")
        if rule not in ("paper", "endpoints", "channel"):
            raise ConfigError(f"rule is 'paper', 'endpoints' or 'channel'; got {rule!r}")
        self.hidden_size: int | None = None
        self.base, self.layout, self.rule, self.start = float(base), layout, rule, start
        if hidden_size is not None:
            self.fit(hidden_size)

    def fit(self, dim: int) -> None:
        if self.hidden_size is None:
            if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2 or dim % 2:
                raise ConfigError(f"sines and cosines come in pairs, so the width is even and at least 2; got {dim!r}")
            if self.rule == "endpoints" and dim == 2:
                raise ConfigError("the 'endpoints' rule divides by d/2 - 1; dim is at least 4")
            self.hidden_size = dim
            self.derive("inv_freq", self._inverse_frequencies)
        elif self.hidden_size != dim:
            raise ShapeError(f"Sinusoidal was made for width {self.hidden_size} and the embeddings have {dim}")

    def _inverse_frequencies(self) -> Tensor:
        """Return (d/2, 2): the frequency of the sine and of the cosine of each pair."""
        assert self.hidden_size is not None
        i = torch.arange(self.hidden_size // 2, dtype=torch.float64, device="cpu")[:, None].expand(-1, 2)
        if self.rule == "paper":
            exponent = -2 * i / self.hidden_size
        elif self.rule == "endpoints":
            exponent = -i / (self.hidden_size // 2 - 1)
        else:
            exponent = -2 * (2 * i + torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu")) / self.hidden_size
        return torch.tensor(self.base, dtype=torch.float64, device="cpu") ** exponent

    def table(self, position: Tensor) -> Tensor:
        angles = (position + self.start)[..., None, None] * self.exact("inv_freq", position.device)
        pair = torch.stack([angles[..., 0].sin(), angles[..., 1].cos()], -1)
        return pair.flatten(-2) if self.layout == "interleaved" else pair.transpose(-1, -2).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, base={self.base}, layout={self.layout}, rule={self.rule}"
