"""PoPE, polar coordinate position embedding."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, check_axes, table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Tokens
from ropewalk.frequencies.spectrum import check_base


class PoPE(Encoding):
    """s_ts = (1/√d) Σ_c μ(q_tc) μ(k_sc) cos((s − t) θ_c + δ_hc),  μ = softplus,  θ_c = base^(−c/d), c = 0 … d − 1.

    Every channel becomes a complex number: its size is content, its angle is position. q and k double their width (as
    μ cos, μ sin side by side); the scale stays 1/√d with the original d. For a part of the channels use
    ``Partial(PoPE(r, ...), r)``, which leaves the others to an ordinary dot product.

    Args:
        head_dim: width d of a head, any number.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise.
        num_kv_heads: key heads; the phase δ is learned a key head and channel.
        base: of the frequencies.
        phase: "zero" (initial δ = 0, best for length generalisation), "uniform" (uniform in [−2π, 0], slightly better in
            distribution) or "none" (no δ).
        axes: positions are (b, S, axes), the channels are dealt out to the axes in equal runs, each with its own ladder.

    Shapes: q (B, H, Q, d) → (B, H, Q, 2d); δ (H_kv, d), clamped to [−2π, 0] where it is used. A δ above 0 has no
    gradient: `project_` brings it back after an optimiser step.

    Raises:
        ConfigError: no number of heads although the phase is learned; channels that the axes do not divide.

    Source: Anand Gopalakrishnan, Róbert Csordás, Jürgen Schmidhuber, Michael C. Mozer. Decoupling the "What" and "Where"
    With Polar Coordinate Positional Embeddings. arXiv 2509.10534, 2025.
    """

    freqs: Tensor

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        base: float = 10_000.0,
        phase: Literal["zero", "uniform", "none"] = "zero",
        axes: int | None = None,
    ) -> None:
        super().__init__()
        check_base(base)
        check_positive(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads, axes=axes)
        if axes is not None and head_dim % axes:
            raise ConfigError(f"head_dim={head_dim} channels are not shared out evenly over axes={axes}")
        if phase not in ("zero", "uniform", "none"):
            raise ConfigError(f"phase is 'zero', 'uniform' or 'none'; got {phase!r}")
        heads = num_kv_heads if num_kv_heads is not None else num_heads
        if phase != "none" and heads is None:
            raise ConfigError(
                "PoPE learns a phase for each key head: give num_kv_heads (or num_heads), or phase='none'"
            )
        self.head_dim, self.base, self.axes, self.phase = head_dim, float(base), axes, phase
        self.derive("freqs", self._frequencies)
        self.delta: nn.Parameter | None = None
        if phase != "none":
            assert heads is not None
            self.delta = nn.Parameter(torch.zeros(heads, head_dim))
            if phase == "uniform":
                nn.init.uniform_(self.delta, -2 * math.pi, 0.0)

    def _frequencies(self) -> Tensor:
        width = self.head_dim // (self.axes or 1)
        c = torch.arange(width, dtype=torch.float64, device="cpu")
        return torch.tensor(self.base, dtype=torch.float64, device="cpu") ** (-c / width)

    def angles(self, position: Tensor) -> Tensor:
        """Return the angle of each channel, (b, S, d) float64."""
        check_axes(self, position, self.axes)
        return (position[..., None] * self.exact("freqs", position.device)).reshape(*position.shape[:2], self.head_dim)

    def _tables(self, tokens: Tokens, p: Attention) -> tuple[Tensor, Tensor]:
        dtype = table_dtype(p.q)

        def make() -> tuple[Tensor, Tensor]:
            return rotation.tables(self.angles(tokens.coordinates(p.at))[:, None], dtype)

        if any(m.learned for m in p.at):
            return make()
        name = ("pope", self.head_dim, self.base, self.axes, dtype)
        return tokens.memo(lambda: (*name, tuple(m.key for m in p.at)), make)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"PoPE was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}")
        dtype = table_dtype(p.q)
        at_q = self._tables(p.where.query, p)
        cos, sin = at_q if p.where.is_self else self._tables(p.where.key, p)
        if self.delta is not None:
            delta = p.kv_head_slice(self.delta)[None, :, None].clamp(-2 * math.pi, 0.0)
            turn, shift = delta.cos().to(dtype), delta.sin().to(dtype)
            cos, sin = cos * turn - sin * shift, sin * turn + cos * shift

        def polar(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            size = softplus(x.to(dtype))
            return torch.stack([size * cos, size * sin], -1).flatten(-2).to(x.dtype)

        return p.map_queries(lambda q: polar(q, *at_q)).map_keys(lambda k: polar(k, cos, sin))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        p = problem
        angles = self.angles(tokens.coordinates(p.at)) - self.angles(p.where.key.coordinates(p.at))
        cos, sin = rotation.tables(angles[:, None], table_dtype(p.k))
        return p.map_keys(lambda k: rotation.rotate(k, cos, sin, "interleaved"))

    @torch.no_grad()
    def project_(self) -> None:
        """Bring phases that an optimiser step carried outside [−2π, 0] back to its nearer end."""
        if self.delta is not None:
            self.delta.clamp_(-2 * math.pi, 0.0)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base}, phase={self.phase}"
