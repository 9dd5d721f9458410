"""RoVE, rotary value embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Parts, Problem
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding, Rotary, check_axes, full_precision, rewrite, table_dtype
from ropewalk.core.errors import ConfigError, NotRotation, ShapeError, UnknownNameError, check_positive
from ropewalk.core.positions import Positions, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.rope import RoPE


class RotaryValue(Encoding):
    """o_i = T_i⁻¹ Σ_j a_ij T_j v_j,  T_p: what an operator makes of a key at position p.

    Values meet the position operator of the keys, and the output is brought back at the query, so that what a token hands
    on depends on where it is, seen from the query. Queries and keys are left alone: it goes before or after the encoding
    that turns them.

    Args:
        operator: a `Rotary`, with as many axes as it has; where queries and keys have the same one, its tables are made
            once. Or another encoding that is an invertible linear map of each key: its matrices are then written out, one
            a token, and solved with at the output, so that it need not be orthogonal.
        dims: the first channels of v that are acted on; None: all.

    Shapes: v (B, H_kv, K, d_v), of any width the operator takes; output (B, H, Q, d_v).
    Numbers: in float32 or wider, rounded once at the values and once at the output. The attention factor of a schedule is
    about logits and left out.

    Raises:
        ShapeError: values of another width than the operator's.
        NotRotation: an operator that is more than a linear map of each key, or reads more than where it is.

    Source: Alejandro García-Castellanos, Maurice Weiler, Erik J. Bekkers. RoVE: Rotary Value Embeddings Attention for
    Relative Position-dependent Value Pathways. arXiv 2606.11275, 2026.
    """

    def __init__(self, operator: Encoding, dims: int | None = None) -> None:
        super().__init__()
        if not isinstance(operator, Encoding):
            raise ConfigError(f"operator is an encoding that turns keys, such as RoPE; got a {type(operator).__name__}")
        check_positive(dims=dims)
        self.operator, self.dims = operator, dims

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        width = p.v.shape[-1] if self.dims is None else self.dims
        if width > p.v.shape[-1]:
            raise ShapeError(f"RotaryValue acts on the first {width} channels of v, and it has {p.v.shape[-1]}")
        operator = _by_tables(self.operator)
        return _mapped(p, self.operator, width) if operator is None else _turned(p, operator, width)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        p, operator = problem, _by_tables(self.operator)
        if operator is not None:
            position = tokens.coordinates(p.at)
            check_axes(operator, position, operator.axes)
            angles = operator.angles(position) - operator.angles(p.where.key.coordinates(p.at))
            tables = rotation.tables(angles[:, None] if angles.ndim == 3 else angles, table_dtype(p.v))
            return p.replace(v=operator.turn(p.v, tables, p))
        width = p.v.shape[-1] if self.dims is None else self.dims
        was, now = (_matrices(p, self.operator, t, width) for t in (p.where.key, tokens))
        return p.replace(v=_on_first(_solve(p.v, was), lambda v: _multiply(v, now), width))

    def extra_repr(self) -> str:
        return "" if self.dims is None else f"dims={self.dims}"


class RoVE(Sequential):
    """o_i = R_i⁻¹ Σ_j softmax_j( (R_i q_i)·(R_j k_j) / √d ) R_j v_j = Σ_j a_ij R_(j−i) v_j.

    RoPE, and the same rotation on the way from the values to the output: attention becomes a convolution with the kernel
    ψ(δ) = W_O R_δ W_V, weighted by the data. No parameters; fused attention runs in between.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        base: of the frequencies ω_i = base^(−2i/d).
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (i, i+d/2), for q, k and v alike.
        spectrum: other frequencies than the geometric ones, for q, k and v.
        value_dim: width of the values where it differs from head_dim; they have a ladder of their own width then.
        value_channels: turn the first so many channels of v only, with a ladder of this width.
        value_spectrum: other frequencies for the values.
        value_only: leave q and k alone.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d), v (B, H_kv, K, d_v); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: widths that are odd, or do not agree.
        ShapeError: heads of another width.

    Source: Alejandro García-Castellanos, Maurice Weiler, Erik J. Bekkers. RoVE: Rotary Value Embeddings Attention for
    Relative Position-dependent Value Pathways. arXiv 2606.11275, 2026.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
        *,
        spectrum: Spectrum | None = None,
        value_dim: int | None = None,
        value_channels: int | None = None,
        value_spectrum: Spectrum | None = None,
        value_only: bool = False,
    ) -> None:
        own = value_spectrum
        if own is None and spectrum is not None and value_dim is None and value_channels is None:
            own = replace(spectrum, attention_factor=1.0) if spectrum.attention_factor != 1.0 else spectrum
        width = value_channels if value_channels is not None else value_dim if value_dim is not None else head_dim
        if own is not None and value_channels is not None and 2 * len(own.inv_freq) != value_channels:
            raise ConfigError(
                f"{value_channels} channels of v are {value_channels / 2:g} pairs; got {len(own.inv_freq)}"
            )
        values = RotaryValue(RoPE(width, base, pairing, spectrum=own), value_channels)
        super().__init__(*([] if value_only else [RoPE(head_dim, base, pairing, spectrum=spectrum)]), values)


def value_kernel(
    weight_v: Tensor,
    weight_o: Tensor,
    offsets: Tensor,
    inv_freq: Tensor,
    pairing: Pairing = "interleaved",
) -> Tensor:
    """ψ(δ) = W_O R_δ W_V: what reaches the output from a token at offset δ = j − i, (offsets, out, hidden).

    Args:
        weight_v: (d_v, hidden) of one head, as in ``v = x @ weight_v.T``.
        weight_o: (out, d_v), the columns of this head, as in ``out @ weight_o.T``.
        offsets: (n,) key position less query position; not positive in causal attention.
        inv_freq: (P,) frequencies of the values, 2P ≤ d_v.
        pairing: which channels form a pair.
    """
    if weight_v.ndim != 2 or weight_o.ndim != 2 or weight_v.shape[0] != weight_o.shape[1]:
        raise ShapeError(
            f"weight_v is (d_v, hidden) and weight_o (out, d_v) of one head; got {tuple(weight_v.shape)} and "
            f"{tuple(weight_o.shape)}"
        )
    angles = offsets.double()[:, None, None] * inv_freq.double()
    turned = rotation.rotate(weight_v.T.expand(len(offsets), -1, -1), *rotation.tables(angles, weight_v.dtype), pairing)
    return weight_o @ turned.transpose(-1, -2)


# ---- by cos and sin ------------------------------------------------------------------------------------------------


def _by_tables(operator: Encoding) -> Rotary | None:
    """Return the operator if it turns pairs of channels and does nothing else, as a `Rotary` does unless it says so."""
    if not isinstance(operator, Rotary):
        return None
    kind = type(operator)
    return operator if kind.rewrite is Rotary.rewrite and kind.turn is Rotary.turn else None


def _turned(p: Attention, operator: Rotary, width: int) -> Attention:
    operator.fit(width)
    dtype, size = table_dtype(p.v), operator.magnitude

    def tables(tokens: Tokens) -> tuple[Tensor, Tensor]:
        cos, sin = operator.tables(tokens, p.at, dtype)
        return (cos, sin) if size == 1.0 else (cos / size, sin / size)

    at_k = tables(p.where.key)
    if 2 * at_k[0].shape[-1] > width:
        raise ShapeError(f"{type(operator).__name__} turns {2 * at_k[0].shape[-1]} channels, and v has {width}")
    at_q = at_k if p.where.is_self else tables(p.where.query)
    if at_q[0].shape[1] == 1:
        cos, sin = at_q
    else:  # one a key head: for each query head its own
        group = p.num_heads // p.num_kv_heads
        cos, sin = (p.kv_head_slice(t, 1).repeat_interleave(group, 1) for t in at_q)
    p = p.replace(v=operator.turn(p.v, at_k, p)).with_features(q={"cos": cos, "sin": sin})
    pairing = operator.pairing

    def bring_back(out: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotation.rotate(out, cos, sin, pairing, inverse=True)

    return p.finish_with(bring_back, p.own("cos"), p.own("sin"))


# ---- by matrices ---------------------------------------------------------------------------------------------------


def _mapped(p: Attention, operator: Encoding, width: int) -> Attention:
    at_k = _matrices(p, operator, p.where.key, width)
    at_q = at_k if p.where.is_self else _matrices(p, operator, p.where.query, width)
    p = p.replace(v=_on_first(p.v, lambda v: _multiply(v, at_k), width))
    group = p.num_heads // p.num_kv_heads
    p = p.with_features(q={"matrix": at_q.repeat_interleave(group, 1).flatten(3)})

    def bring_back(out: Tensor, matrix: Tensor) -> Tensor:
        return _solve(out, matrix.unflatten(3, (width, width)))

    return p.finish_with(bring_back, p.own("matrix"))


def _matrices(p: Attention, operator: Encoding, tokens: Tokens, width: int) -> Tensor:
    """Return what the operator makes of keys, as matrices (b, H_kv, S, width, width).

    It is shown every unit vector, and their sum, which has to become the sum of what they became.
    """
    name, dtype, rows, n = type(operator).__name__, table_dtype(p.v), tokens.batch, tokens.length
    if operator.stores == "raw":
        raise NotRotation(f"what {name} makes of a key depends on the other tokens too, so values cannot follow it")
    shown = torch.cat([torch.eye(width, dtype=dtype), torch.ones(1, width, dtype=dtype)]).to(p.v.device)
    shown = shown.repeat(rows, 1)[:, None, None]  # row by row, vector by vector
    where = tokens.select(torch.arange(rows, device=p.v.device).repeat_interleave(width + 1)) if rows > 1 else tokens
    q, k = (shown.expand(-1, heads, n, -1) for heads in (p.num_heads, p.num_kv_heads))
    before = Attention(q, k, k, Positions(where), causal=p.causal)
    before = before.replace(at=p.at, scope=p.scope, heads=p.heads, kv_total=p.kv_total)
    try:
        after = rewrite(operator, before)
    except UnknownNameError as why:
        raise NotRotation(f"{name} reads more than keys and where they are, so values cannot follow it") from why
    if isinstance(after, Parts) or after.terms or after.branches or after.product or after.kernel or after.finish:
        raise NotRotation(f"{name} is more than a map of each key, so values cannot follow it")
    if after.k.shape != k.shape:
        raise NotRotation(f"{name} makes keys of width {after.k.shape[-1]} from {width}: no inverse")
    images, whole = after.k.unflatten(0, (rows, width + 1)).split([width, 1], 1)
    if not (torch.compiler.is_compiling() or whole.is_meta or whole.numel() == 0):
        apart = (images.sum(1, keepdim=True) - whole).detach().abs().amax()
        if not bool(apart <= 1e-3 * images.detach().abs().amax()):
            raise NotRotation(f"{name} is no linear map of each key, so nothing undoes it at the output")
    return images.movedim(1, -1)


def _multiply(x: Tensor, matrix: Tensor) -> Tensor:
    with full_precision(x):
        return (matrix @ x.to(matrix.dtype)[..., None])[..., 0].to(x.dtype)


def _solve(x: Tensor, matrix: Tensor) -> Tensor:
    """Return matrix⁻¹ x on the first channels."""

    def solved(part: Tensor) -> Tensor:
        with full_precision(part):
            return torch.linalg.solve(matrix, part.to(matrix.dtype)[..., None])[..., 0].to(part.dtype)

    return _on_first(x, solved, matrix.shape[-1])


def _on_first(x: Tensor, fn: Callable[[Tensor], Tensor], width: int) -> Tensor:
    return fn(x) if width == x.shape[-1] else torch.cat([fn(x[..., :width]), x[..., width:]], -1)
