"""The first forms of GridPE: a sum of three plane waves for each channel, where the later form turns a pair by one of them."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Embedding, Encoding, check_axes, table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest
from ropewalk.core.noise import normal, uniform
from ropewalk.core.positions import Tokens
from ropewalk.frequencies.spectrum import check_rotary_width

Form = Literal["rotate", "complex", "vector"]
LARGEST = 200.0
"""Ratio of the fastest wave to the slowest, in the limit of many channels."""


def wave_vectors(number: int, channels: int, seed: int = 0) -> Tensor:
    """Return ω_kj = 200^(k/channels) (cos(φ_k + 2πj/3), sin(φ_k + 2πj/3)), (number, 3, 2) float64; φ_k drawn from the seed."""
    check_positive(number=number, channels=channels)
    k = torch.arange(number, device="cpu")
    phi = 2 * math.pi * uniform(torch.tensor(seed, device="cpu"), k)
    angle = phi[:, None] + torch.arange(3, dtype=torch.float64, device="cpu") * (2 * math.pi / 3)
    length = torch.tensor(LARGEST, dtype=torch.float64, device="cpu") ** (k.double() / channels)
    return length[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)


def wave_mixture(seed: int = 0) -> Tensor:
    """Return the column sums of a unitary 3 × 3 matrix drawn from the seed, (3,) complex128: how the waves are added up."""
    place = torch.arange(9, device="cpu").reshape(3, 3)
    parts = [normal(torch.tensor(seed, device="cpu"), torch.tensor(part, device="cpu"), place) for part in (0, 1)]
    q, r = torch.linalg.qr(torch.complex(*parts))
    phase = r.diagonal() / r.diagonal().abs()  # the factor whose R has a positive diagonal: unique
    return (q * phase).sum(0)


def wave_sums(position: Tensor, vectors: Tensor, mixture: Tensor) -> Tensor:
    """Return g_k(x) = Σ_j m_j exp(i ⟨ω_kj, x⟩), (b, S, n) complex128, of places (b, S, 2)."""
    return (mixture * _waves(position, vectors)).sum(-1)


def _waves(position: Tensor, vectors: Tensor) -> Tensor:
    """e_kj(x) = exp(i ⟨ω_kj, x⟩), (b, S, n, 3)."""
    angle = (position[:, :, None, None] * vectors).sum(-1)
    return torch.polar(torch.ones_like(angle), angle)


class GridWaves(Encoding):
    """Channels are multiplied by g_k(x) = Σ_j m_j exp(i ⟨ω_kj, x⟩),  ω_kj three waves 120° apart, 200^(k/d) fast.

    The first version of GridPE, for the plane. It is a baseline: |g| is not 1, so that norms change, and scores of the first two
    forms see more than differences of places. `GridPE` is the later form, which is relative.

    Args:
        head_dim: width d of a head, even.
        form: "rotate": the pair (k, k + d/2), k < d/2, as a complex number, times g_k. "complex": s = Re Σ_k (q_k g_k(x)) (k_k
            g_k(y)), over all channels and not conjugated; q and k become twice as wide. "vector": pairs as in "rotate" and
            s = Σ_k Re(q_k k̄_k Σ_j exp(i ⟨ω_kj, x − y⟩)) / 3, which keeps the waves apart and so is relative; three times as wide.
        seed: of the orientations and of m, the column sums of a unitary matrix. q and k have the same.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S, 2) of (row, column), real. The scale stays 1/√d.

    Raises:
        ConfigError: an odd width, another form.
        ShapeError: heads of another width.

    Source: Boyang Li, Yulin Wu, Nuoxian Huang, Wenjia Zhang. GridPE, first versions: arXiv 2406.07049, 2024. There every forward
    draws orientations anew, and apart for q and k; that they are fixed is our choice, and "vector" the form that it needs.
    """

    vectors: Tensor
    mixture: Tensor

    def __init__(self, head_dim: int, form: Form = "rotate", *, seed: int = 0) -> None:
        super().__init__()
        check_positive(head_dim=head_dim)
        check_rotary_width(head_dim)
        if form not in get_args(Form):
            raise ConfigError(
                f"form is one of {', '.join(get_args(Form))}; got {form!r}.{suggest(form, get_args(Form))}"
            )
        self.head_dim, self.form, self.seed = head_dim, form, seed
        self.derive("vectors", self._vectors)
        self.derive("mixture", self._mixture)

    def _vectors(self) -> Tensor:
        return wave_vectors(self.head_dim if self.form == "complex" else self.head_dim // 2, self.head_dim, self.seed)

    def _mixture(self) -> Tensor:
        return torch.view_as_real(wave_mixture(self.seed))

    def _tables(self, tokens: Tokens, p: Attention) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of what the tokens are multiplied by, (b, 1, S, n), or (b, 1, S, n, 3) of a vector."""
        dtype = table_dtype(p.q)

        def make() -> tuple[Tensor, Tensor]:
            position = tokens.coordinates(p.at)
            check_axes(self, position, 2)
            vectors = self.exact("vectors", position.device)
            if self.form == "vector":
                g = _waves(position, vectors) / 3**0.5
            else:
                g = wave_sums(position, vectors, torch.view_as_complex(self.exact("mixture", position.device)))
            return g.real[:, None].to(dtype), g.imag[:, None].to(dtype)

        if any(m.learned for m in p.at):
            return make()
        name = ("grid waves", self.head_dim, self.form, self.seed, dtype)
        return tokens.memo(lambda: (*name, tuple(m.key for m in p.at)), make)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"GridWaves was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}")
        at_q = self._tables(p.where.query, p)
        at_k = at_q if p.where.is_self else self._tables(p.where.key, p)

        def times(x: Tensor, table: tuple[Tensor, Tensor], sign: float) -> Tensor:
            wide, (real, imag) = x.to(table[0].dtype), table
            if self.form == "complex":
                return torch.cat([wide * real, sign * wide * imag], -1).to(x.dtype)
            a, b = wide.chunk(2, -1)
            if self.form == "vector":
                a, b = a[..., None], b[..., None]
            made = torch.cat([a * real - b * imag, a * imag + b * real], -1)
            return (made.flatten(-2) if self.form == "vector" else made).to(x.dtype)

        return p.map_queries(lambda q: times(q, at_q, 1.0)).map_keys(lambda k: times(k, at_k, -1.0))

    def extra_repr(self) -> str:
        return f"{self.head_dim}, {self.form!r}, seed={self.seed}"


class GridWaveEmbedding(Embedding):
    """x_p ← x_p + Re g(p) + Im g(p),  g as in `GridWaves`, a wave a channel of the model.

    Args:
        hidden_size: width of the embeddings.
        seed: of the orientations and of how the waves are added up.

    Shapes: x (B, S, hidden_size); positions (b, S, 2) of (row, column), real.

    Source: see `GridWaves`; the paper calls it merging.
    """

    axes = 2
    vectors: Tensor
    mixture: Tensor

    def __init__(self, hidden_size: int, *, seed: int = 0) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size)
        self.hidden_size, self.seed = hidden_size, seed
        self.derive("vectors", self._vectors)
        self.derive("mixture", self._mixture)

    def _vectors(self) -> Tensor:
        return wave_vectors(self.hidden_size, self.hidden_size, self.seed)

    def _mixture(self) -> Tensor:
        return torch.view_as_real(wave_mixture(self.seed))

    def fit(self, dim: int) -> None:
        if dim != self.hidden_size:
            raise ShapeError(f"GridWaveEmbedding was made for width {self.hidden_size} and the embeddings have {dim}")

    def table(self, position: Tensor) -> Tensor:
        device = position.device
        mixture = torch.view_as_complex(self.exact("mixture", device))
        g = wave_sums(position, self.exact("vectors", device), mixture)
        return g.real + g.imag

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, seed={self.seed}"
