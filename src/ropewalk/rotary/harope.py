"""HARoPE, head-wise adaptive rotary positional encoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, full_precision, table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.axial import AxialRoPE
from ropewalk.rotary.orthogonal import orthogonal
from ropewalk.rotary.rope import RoPE

Mode = Literal["dual", "shared"]
Form = Literal["svd", "orthogonal", "diagonal", "qr", "free"]
TINY = 1e-6
"""What keeps the singular values from zero."""


class HARoPE(Encoding):
    """s_mn = (R_m M q_m)·(R_n M⁻ᵀ k_n) / √d,  M = U diag(s) Vᵀ a head.

    A learned invertible matrix mixes the channels of each head before RoPE turns them, so that planes need not be single
    channels of a single axis, and heads may differ. Logits still depend on differences of coordinates alone; at equal
    coordinates they are q·k, whatever M is. It starts as RoPE (U = V = 1, s = 1 up to 1e-6).

    Args:
        head_dim: width d of a head.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise; query heads share the matrix of their key head.
        num_kv_heads: key heads.
        axes: axes of a position, each with channels of its own (`AxialRoPE`); None: plain positions and RoPE.
        widths: channels of each axis; None: equal shares.
        base: of the frequencies.
        pairing: "interleaved" as released, or "half".
        mode: "dual" (M on q and M⁻ᵀ on k, as released) or "shared" (M on both).
        form: "svd", or for ablation "orthogonal" (s = 1), "diagonal" (U = V = 1), "qr" (an orthogonal matrix times an upper
            triangular one with a positive diagonal) or "free" (any matrix, which training may make singular).
        heads_share: one matrix for all heads.

    Shapes: raw_u, raw_v (H_kv, d, d), of whose skew parts U and V are the exponentials; raw_s (H_kv, d), s = softplus(raw_s)
    + 1e-6. "qr" has raw_u, raw_s and upper (H_kv, d, d), read above the diagonal; "free" has matrix (H_kv, d, d).
    Numbers: matrices in float32 or wider (float64 for float64 inputs). A changed matrix invalidates cached keys.

    `fold` multiplies the matrices into projections, after which `rope` is all that is left to do.

    Raises:
        ConfigError: no number of heads; channels that the axes do not share out; a "free" matrix that became singular.
        ShapeError: heads of another width.

    Source: Jiaye Li, Baoyou Chen, Hui Li, Zilong Dong, Jingdong Wang, Siyu Zhu. Head-wise Adaptive Rotary Positional
    Encoding for Fine-Grained Image Generation. arXiv 2510.10489, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        axes: int | None = 2,
        widths: Sequence[int] | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
        mode: Mode = "dual",
        form: Form = "svd",
        heads_share: bool = False,
    ) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads, axes=axes)
        heads = 1 if heads_share else num_kv_heads if num_kv_heads is not None else num_heads
        if heads is None:
            raise ConfigError(
                "HARoPE learns a matrix for each key head: give num_heads, num_kv_heads or heads_share=True"
            )
        if mode not in get_args(Mode):
            raise ConfigError(f"mode is one of {', '.join(get_args(Mode))}; got {mode!r}")
        if form not in get_args(Form):
            raise ConfigError(f"form is one of {', '.join(get_args(Form))}; got {form!r}")
        if axes is None and widths is not None:
            raise ConfigError("widths are the channels of the axes of a position: give axes= too")
        self.head_dim, self.mode, self.form, self.heads_share = head_dim, mode, form, heads_share
        self.rope: RoPE | AxialRoPE = (
            RoPE(head_dim, base, pairing)
            if axes is None
            else AxialRoPE(head_dim, axes, widths=widths, base=base, pairing=pairing)
        )
        square = (heads, head_dim, head_dim)
        if form in ("svd", "orthogonal", "qr"):
            self.raw_u = nn.Parameter(torch.zeros(square))
        if form in ("svd", "orthogonal"):
            self.raw_v = nn.Parameter(torch.zeros(square))
        if form in ("svd", "diagonal", "qr"):
            self.raw_s = nn.Parameter(torch.full(square[:2], math.log(math.expm1(1.0))))
        if form == "qr":
            self.upper = nn.Parameter(torch.zeros(square))
        if form == "free":
            self.matrix = nn.Parameter(torch.eye(head_dim).repeat(heads, 1, 1))

    # ---- the matrices -----------------------------------------------------------------------------------------

    def matrices(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return (M, M⁻¹) of each key head, (H_kv or 1, d, d), in float32 or float64."""
        if self.form == "free":
            m = self.matrix.to(dtype)
            if torch.compiler.is_compiling():
                return m, torch.linalg.inv(m)
            inverse, failed = torch.linalg.inv_ex(m)
            if bool((failed != 0).any()):
                raise ConfigError("a free matrix of HARoPE became singular and has no inverse; use form='svd' or 'qr'")
            return m, inverse
        s = softplus(self.raw_s.to(dtype)) + TINY if self.form != "orthogonal" else None
        if self.form == "diagonal":
            assert s is not None
            return s.diag_embed(), (1 / s).diag_embed()
        u = orthogonal(self.raw_u.to(dtype))
        if self.form == "qr":
            assert s is not None
            right = s.diag_embed() + self.upper.to(dtype).triu(1)
            return u @ right, torch.linalg.solve_triangular(right, u.transpose(-1, -2), upper=True)
        v = orthogonal(self.raw_v.to(dtype))
        if s is None:
            m = u @ v.transpose(-1, -2)
            return m, m.transpose(-1, -2)
        return (u * s[:, None]) @ v.transpose(-1, -2), (v / s[:, None]) @ u.transpose(-1, -2)

    def _of_q_and_k(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.mode == "shared" and self.form == "free":  # needs no inverse, so may be singular
            m = self.matrix.to(dtype)
            return m, m
        m, inverse = self.matrices(dtype)
        return m, m if self.mode == "shared" else inverse.transpose(-1, -2)

    def rewrite(self, problem: Attention) -> Problem:
        p, dtype = problem, table_dtype(problem.q)
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"HARoPE was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}")
        with full_precision(p.q):
            of_q, of_k = self._of_q_and_k(dtype)
            if not self.heads_share:
                of_q, of_k = p.kv_head_slice(of_q), p.kv_head_slice(of_k)
                of_q = of_q.repeat_interleave(p.num_heads // p.num_kv_heads, 0)
            p = p.map_queries(lambda q: _apply(q, of_q)).map_keys(lambda k: _apply(k, of_k))
        return self.rope.rewrite(p)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return self.rope.move(problem, tokens)  # the matrices do not know where keys are

    @torch.no_grad()
    def fold(self, of_q: Tensor, of_k: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply the matrices into the weights (heads · d, hidden), or biases (heads · d,), that make q and k.

        With these and `rope` alone, logits are the same. Not where a norm lies between the projection and the encoding.
        """
        dtype = torch.promote_types(table_dtype(of_q), table_dtype(of_k))
        m_q, m_k = self._of_q_and_k(dtype)
        heads_q, heads_k = self._heads(of_q, "query"), self._heads(of_k, "key")
        if heads_q % heads_k or (not self.heads_share and heads_k != len(m_k)):
            raise ShapeError(
                f"weights for {heads_q} query heads and {heads_k} key heads; the latter divide the former, and are "
                f"{'any number' if self.heads_share else f'the {len(m_k)} that HARoPE has matrices for'}"
            )

        def folded(weight: Tensor, m: Tensor, heads: int) -> Tensor:
            parts = weight.to(dtype).reshape(heads, self.head_dim, -1)
            return (m.repeat_interleave(heads // len(m), 0) @ parts).reshape(weight.shape).to(weight.dtype)

        return folded(of_q, m_q, heads_q), folded(of_k, m_k, heads_k)

    def _heads(self, weight: Tensor, side: str) -> int:
        if weight.ndim not in (1, 2) or weight.shape[0] % self.head_dim or not weight.is_floating_point():
            raise ShapeError(
                f"the {side} weight has shape {tuple(weight.shape)}; expected (heads · {self.head_dim}, hidden), or a bias "
                f"(heads · {self.head_dim},)"
            )
        return weight.shape[0] // self.head_dim

    def extra_repr(self) -> str:
        return f"{self.head_dim}, mode={self.mode}, form={self.form}"


def _apply(x: Tensor, matrices: Tensor) -> Tensor:
    """Multiply the channels of each head by its matrix: (B, H, S, d), (H or 1, d, d) → (B, H, S, d)."""
    return (x.to(matrices.dtype) @ matrices.transpose(-1, -2)).to(x.dtype)
