"""Plain functions: rotations, their tables and weight conversion, for code that wants no modules.

cos, sin = rotary_tables(torch.arange(S), head_dim=64)
q, k = apply_rotary(q, cos, sin, "half"), apply_rotary(k, cos, sin, "half")
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.positions import check_position
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_rotary_width, geometric


def inverse_frequencies(head_dim: int, base: float = 10_000.0) -> Tensor:
    """ω_i = base^(−2i/head_dim), float64: the frequencies of RoPE."""
    return geometric(head_dim, base).tensor()


def rotary_tables(
    positions: Tensor,
    *,
    head_dim: int | None = None,
    base: float = 10_000.0,
    inv_freq: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position and plane, (..., S, P): angles in float64, cast last.

    Args:
        positions: (..., S), integer (exact up to 2**53) or real; half-precision positions are refused.
        head_dim: number of channels that are turned, 2P; or give ``inv_freq``.
        base: of the frequencies.
        inv_freq: (P,) or (..., 1, P) frequencies of one's own.
        dtype: float64 gives float64 tables, everything else float32.
        scale: both are multiplied by it.
    """
    if (head_dim is None) == (inv_freq is None):
        raise ConfigError("give either head_dim (with base) or inv_freq")
    check_position(positions)
    if inv_freq is None:
        assert head_dim is not None
        inv_freq = inverse_frequencies(head_dim, base)
    return rotation.tables(positions.double()[..., None] * inv_freq.to(positions.device).double(), dtype, scale)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing = "interleaved") -> Tensor:
    """Turn the first 2P channels of x (B, H, S, D), out of place; the dtype stays.

    Args:
        x: (B, H, S, D), any strides.
        cos: (S, P), (b, S, P) or (b, h, S, P), b and h being 1 or those of x.
        sin: likewise.
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (i, i+P).
    """
    pairing = rotation.check_pairing(pairing)
    if x.ndim != 4:
        raise ShapeError(f"x has shape {tuple(x.shape)}; expected (batch, heads, seq, head_dim)")
    full = []
    for name, t in (("cos", cos), ("sin", sin)):
        t = t[None, None] if t.ndim == 2 else t[:, None] if t.ndim == 3 else t
        if t.ndim != 4 or any(n not in (1, m) for n, m in zip(t.shape[:3], x.shape[:3], strict=True)):
            raise ShapeError(
                f"{name} has shape {tuple(t.shape)}, which does not fit x of shape {tuple(x.shape)} laid out as (batch, heads, "
                "seq, head_dim); allowed are (S, P), (b, S, P) and (b, h, S, P)"
            )
        full.append(t)
    return rotation.rotate(x, full[0], full[1], pairing)


def rotary_embedding(
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    interleaved: bool = False,
    dim: int | None = None,
) -> Tensor:
    """`apply_rotary` in the spelling proposed for torch core (pytorch#187286), which follows ONNX's RotaryEmbedding.

    Args:
        input: (B, H, S, D).
        cos: (S, P), (B, S, P), or with ``position_ids`` a table (max_position, P) that is read at those rows.
        sin: likewise.
        position_ids: (S,) or (B, S) integers.
        interleaved: pair neighbouring channels rather than halves.
        dim: number of channels that are turned; None: all.
    """
    if position_ids is not None:
        if cos.ndim != 2 or position_ids.is_floating_point():
            raise ShapeError(
                f"position_ids (integers) read rows of tables (max_position, P); cos has shape {tuple(cos.shape)} and "
                f"position_ids dtype {position_ids.dtype}"
            )
        if position_ids.numel() and int(position_ids.max()) >= cos.shape[0]:
            raise ShapeError(f"position_ids reach {int(position_ids.max())} and the tables have {cos.shape[0]} rows")
        cos, sin = cos[position_ids], sin[position_ids]
    width = input.shape[-1] if dim is None else dim
    if 2 * cos.shape[-1] != width:
        raise ShapeError(
            f"tables of {cos.shape[-1]} planes turn {2 * cos.shape[-1]} channels, and {width} are to be turned"
        )
    return apply_rotary(input, cos, sin, "interleaved" if interleaved else "half")


def convert_pairing(
    weight: Tensor, num_heads: int, frm: Pairing, to: Pairing, *, rotary_dim: int | None = None
) -> Tensor:
    """Reorder the output channels of a q or k projection so that the other pairing gives the same logits.

    half[i] = interleaved[2i], half[i + P] = interleaved[2i + 1], within the first ``rotary_dim`` channels of each head.

    Args:
        weight: (num_heads · head_dim, ...) weight or bias of the projection.
        num_heads: heads of this projection (key heads for k).
        frm: pairing the weight was trained with.
        to: pairing it is to be used with.
        rotary_dim: channels of a head that are turned, 2P; None: all.
    """
    frm, to = rotation.check_pairing(frm), rotation.check_pairing(to)
    if num_heads < 1 or weight.ndim < 1 or weight.shape[0] % num_heads:
        raise ShapeError(
            f"weight of shape {tuple(weight.shape)} does not hold {num_heads} heads in its first axis (out_features)"
        )
    head_dim = weight.shape[0] // num_heads
    width = head_dim if rotary_dim is None else rotary_dim
    check_rotary_width(width)
    if width > head_dim:
        raise ShapeError(f"rotary_dim {width} exceeds the head_dim {head_dim} of this weight")
    if frm == to:
        return weight.clone()
    order = torch.arange(width).reshape(-1, 2).t().reshape(-1)  # 0, 2, 4, ..., 1, 3, 5, ...
    if to == "interleaved":
        order = order.argsort()
    order = torch.cat([order, torch.arange(width, head_dim)]).to(weight.device)
    return weight.unflatten(0, (num_heads, head_dim))[:, order].flatten(0, 1)


__all__ = [
    "apply_rotary",
    "convert_pairing",
    "inverse_frequencies",
    "rotary_embedding",
    "rotary_tables",
]
