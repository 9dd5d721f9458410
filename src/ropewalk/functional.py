"""Plain functions: rotary position embeddings without a module, a problem or a cache.

    cos, sin = rotary_tables(torch.arange(seq), head_dim=64)
    q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)

Everywhere in this module P is the number of pairs of channels that are turned, 2P the rotary width. `pairing` says which
channels form pair i: "interleaved" (2i, 2i+1; GPT-J, RoFormer, Llama as released by Meta) or "half" (i, i+P; GPT-NeoX,
Llama in Hugging Face's layout). Weights trained with one do not work with the other: see `convert_pairing`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.core.packed import apply_rotary_packed, apply_rotary_packed_, check_rows, packed_positions
from ropewalk.core.rotation import Pairing

__all__ = [
    "apply_rotary",
    "apply_rotary_",
    "apply_rotary_packed",
    "apply_rotary_packed_",
    "convert_pairing",
    "inverse_frequencies",
    "packed_positions",
    "rotary_embedding",
    "rotary_tables",
]


def inverse_frequencies(head_dim: int, base: float = 10000.0, *, device: torch.device | str = "cpu") -> Tensor:
    """base^(−2i/d) for i = 0 … d/2 − 1, float64: radians a token by which pair i turns.

    Args:
        head_dim: d, the (rotary) width; even.
        base: the wavelength of the slowest pair is almost 2π · base.
        device: where to put them.

    Raises:
        ConfigError: an odd or non-positive width, a base that is not positive.
    """
    if head_dim <= 0 or head_dim % 2:
        raise ConfigError(
            f"head_dim {head_dim} cannot be split into pairs of channels; allowed are even widths from 2. "
            f"To turn only a part of the channels give the width of that part ({max(2, head_dim - 1)}, say)"
        )
    if not base > 0:
        raise ConfigError(f"base {base} must be positive; 10000 is the usual value")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    return torch.pow(float(base), -exponents)


def rotary_tables(
    positions: Tensor,
    *,
    head_dim: int | None = None,
    base: float = 10000.0,
    inv_freq: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    scale: float | Tensor = 1.0,
    pairing: Pairing | None = None,
) -> tuple[Tensor, Tensor]:
    """cos and sin of position · inv_freq, computed in float64 and only then cast: exact to 1e-7 at every length.

    Args:
        positions: (..., S), integers (exact to 2⁵³) or float32 / float64; any values, in any order.
        head_dim: the (rotary) width; gives P = head_dim/2 geometric frequencies of ``base``.
        base: for ``head_dim``.
        inv_freq: or P frequencies of your own, in float64 or float32, (P,) or (..., P) broadcastable against
            ``positions[..., None]``. Gradients reach them.
        dtype: what will be turned. float64 gives float64 tables; float32, bf16 and fp16 float32 ones, since tables
            rounded to 8 bits are most of the error of a bf16 rotation.
        scale: a factor on both tables (the attention temperature of YaRN).
        pairing: "interleaved" if `apply_rotary` will be called with it: the tables are then laid out such that large
            ones need not be joined at each call. The values are the same.

    Returns:
        Two tensors (..., S, P).

    Raises:
        PositionError: positions in bf16 or fp16 (256 and 257 are one number there), bool or complex.
        ConfigError: both or none of ``head_dim`` and ``inv_freq``; an odd width; frequencies in half precision.
    """
    if positions.dtype in (torch.bfloat16, torch.float16):
        raise PositionError(
            f"positions come in {positions.dtype}, where ids coincide (in bfloat16 256 and 257, in float16 2048 and "
            "2049). Allowed are integers, float64 and float32: keep positions out of the model's casts, also in a "
            "low-precision model"
        )
    if positions.dtype == torch.bool or positions.is_complex():
        raise PositionError(
            f"positions come in {positions.dtype}; allowed are integers, float64 and float32. A mask is turned into "
            "positions by mask.cumsum(-1) - 1"
        )
    if (head_dim is None) == (inv_freq is None):
        raise ConfigError(
            "give either head_dim (and base) or inv_freq" + (", not both" if inv_freq is not None else "")
        )
    if inv_freq is None:
        assert head_dim is not None
        inv_freq = inverse_frequencies(head_dim, base, device=positions.device)
    if inv_freq.dtype not in (torch.float64, torch.float32):
        raise ConfigError(
            f"inv_freq comes in {inv_freq.dtype}; allowed are float64 and float32. A frequency that is off by 0.4% is "
            "a quarter of a turn off after a few hundred radians: keep it out of model.to(bfloat16), or recompute it"
        )
    return rotation.product_tables(positions, inv_freq, dtype, scale, pairing)


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing = "interleaved", *, out: Tensor | None = None
) -> Tensor:
    """(a, b) → (a cos − b sin, a sin + b cos) for each of the first P pairs of channels of x.

    Channels after the first 2P pass through. The result has the dtype of x; bf16 and fp16 are turned in float32 and
    rounded once. Gradients reach x, and the tables if they require any.

    Args:
        x: (batch, heads, seq, head_dim).
        cos: (seq, P), (batch, seq, P) or (batch, heads, seq, P); batch and heads may be 1.
        sin: likewise.
        pairing: "interleaved" or "half".
        out: a tensor like x that takes the result, which is then returned; no gradients pass.

    Raises:
        ShapeError: shapes that do not fit, with the likely reason; an ``out`` that overlaps itself or a part of x.
        ConfigError: an unknown pairing; ``out`` where something requires grad.
    """
    if x.ndim != 4:
        raise ShapeError(
            f"x is {tuple(x.shape)}; allowed is (batch, heads, seq, head_dim). Split the width of the model with "
            "x.unflatten(-1, (heads, head_dim)).transpose(1, 2)"
        )
    return rotation.rotate(x, _per_head(cos, x, "cos"), _per_head(sin, x, "sin"), pairing, out=out)


def apply_rotary_(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing = "interleaved") -> Tensor:
    """`apply_rotary` in place, for inference: x holds the result and is returned.

    Args:
        x: (batch, heads, seq, head_dim), with any strides: also q or k as a view of a fused projection.
        cos: as for `apply_rotary`.
        sin: likewise.
        pairing: "interleaved" or "half".

    Raises:
        ShapeError: shapes that do not fit; an x whose elements share memory, as after ``expand``.
        ConfigError: an unknown pairing; x or the tables require grad, and gradients are enabled.
    """
    return apply_rotary(x, cos, sin, pairing, out=x)


def rotary_embedding(
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    interleaved: bool = False,
    dim: int | None = None,
) -> Tensor:
    """Rotary embedding in the spelling proposed for torch core (pytorch#187286), close to ONNX RotaryEmbedding-23.

    Accepted is what both agree on. Where they differ: ``input`` is four-dimensional (ONNX also takes (batch, seq,
    hidden) with num_heads); tables of three dimensions are (batch, seq, P) as in ONNX (the proposal would broadcast
    them as (heads, seq, P): give those a leading 1); and bf16 is turned in float32 rather than in bf16.

    Args:
        input: (batch, heads, seq, head_dim), as for scaled_dot_product_attention.
        cos: without ``position_ids`` already gathered: (seq, P), (1 or batch, seq, P), or any four dimensions that
            broadcast. With them a cache (max_position, P).
        sin: likewise.
        position_ids: (batch, seq) or (seq,) integers, the row of the cache for each token.
        interleaved: False pairs channels i and i+P ("half" elsewhere in this library), True 2i and 2i+1.
        dim: the rotary width 2P if it is not all of head_dim (ONNX: rotary_embedding_dim).

    Raises:
        ShapeError: shapes that do not fit.
        ConfigError: an odd ``dim``, or one wider than head_dim.
        PositionError: ids that are not integers, or outside the cache (checked on the CPU).
    """
    if input.ndim != 4:
        raise ShapeError(
            f"input is {tuple(input.shape)}; allowed is (batch, heads, seq, head_dim). Bring (batch, seq, hidden) there "
            "with input.unflatten(-1, (heads, head_dim)).transpose(1, 2)"
        )
    head_dim = input.shape[-1]
    width = head_dim if dim is None else dim
    if width <= 0 or width % 2 or width > head_dim:
        raise ConfigError(
            f"dim {width} is not a rotary width; allowed are even widths from 2 to head_dim {head_dim}"
            + ("; turn a part of an odd head_dim by giving dim" if dim is None else "")
        )
    if cos.ndim == 0 or cos.shape[-1] != width // 2:
        columns = cos.shape[-1] if cos.ndim else 0
        raise ShapeError(
            f"cos is {tuple(cos.shape)}, which turns {2 * columns} channels, but dim is {width} (head_dim {head_dim}). "
            + (
                "The tables are repeated to the full width: give cos[..., :dim // 2]"
                if columns == width
                else "For a partial rotation give dim=2P; otherwise take tables of head_dim/2 columns"
            )
        )
    if position_ids is not None:
        cos, sin = _gather(cos, sin, position_ids, input)
    elif cos.ndim == 3 and cos.shape[0] not in (1, input.shape[0]) and cos.shape[0] == input.shape[1]:
        raise ShapeError(
            f"cos is {tuple(cos.shape)} and input {tuple(input.shape)}: three dimensions mean (batch, seq, P). For one "
            "table a head give (1, heads, seq, P): cos[None]"
        )
    return apply_rotary(input, cos, sin, "interleaved" if interleaved else "half")


def convert_pairing(
    weight: Tensor, num_heads: int, frm: Pairing, to: Pairing, *, rotary_dim: int | None = None
) -> Tensor:
    """Reorder the rows of a q or k projection, so that a model trained with one pairing runs with the other.

    Within each head, half[i] = interleaved[2i] and half[i + P] = interleaved[2i + 1]. Convert q and k (weights and
    biases; also the weights of a norm on q or k, with num_heads=1) and nothing else: v and the output projection know
    no pairs. The logits stay what they were.

    Args:
        weight: (num_heads · head_dim, ...): the weight of a Linear, or its bias.
        num_heads: heads in ``weight``: for grouped-query attention the number of key heads when converting k.
        frm: the pairing the weights were trained with.
        to: the pairing they shall work with.
        rotary_dim: 2P where only the first channels of each head are turned; default all.

    Returns:
        A new tensor; converting back gives the old one bit by bit.

    Raises:
        ConfigError: an unknown pairing, or a rotary width that is odd or wider than a head.
        ShapeError: rows that do not divide into heads.
    """
    frm, to = rotation.check_pairing(frm), rotation.check_pairing(to)
    if weight.ndim == 0 or num_heads <= 0 or weight.shape[0] % num_heads:
        raise ShapeError(
            f"weight is {tuple(weight.shape)}: its first dimension must be num_heads · head_dim, and does not divide "
            f"by num_heads = {num_heads}. Is this k of grouped-query attention? Then give the number of key heads; a "
            "fused qkv projection must be split first"
        )
    head_dim = weight.shape[0] // num_heads
    width = head_dim if rotary_dim is None else rotary_dim
    if width <= 0 or width % 2 or width > head_dim:
        raise ConfigError(
            f"rotary width {width} with heads of {head_dim}; allowed are even widths from 2 to {head_dim}"
            + ("; give rotary_dim" if rotary_dim is None else "")
        )
    if frm == to:
        return weight.clone()
    heads = weight.unflatten(0, (num_heads, head_dim))
    pairs = (width // 2, 2) if frm == "interleaved" else (2, width // 2)
    turned = heads[:, :width].unflatten(1, pairs).transpose(1, 2).flatten(1, 2)
    return torch.cat((turned, heads[:, width:]), 1).flatten(0, 1)


def _per_head(table: Tensor, x: Tensor, name: str) -> Tensor:
    """Bring a table of two, three or four dimensions to four (or two, which broadcast by themselves)."""
    if table.ndim not in (2, 3, 4) or table.shape[-2] != x.shape[-2]:
        raise ShapeError(
            f"{name} is {tuple(table.shape)} and x is {tuple(x.shape)} (batch, heads, seq, head_dim); allowed are "
            f"(seq, P), (batch, seq, P) and (batch, heads, seq, P) with seq = {x.shape[-2]}. Give the tables the "
            "positions of these very tokens (cos[start : start + seq] of a cache); if x is (batch, seq, heads, "
            "head_dim), transpose(1, 2) it first"
        )
    return table.unsqueeze(1) if table.ndim == 3 else table


def _gather(cos: Tensor, sin: Tensor, position_ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Look up a row of the caches (max_position, P) for each token."""
    if cos.ndim != 2 or sin.shape != cos.shape:
        raise ShapeError(
            f"cos is {tuple(cos.shape)} and sin {tuple(sin.shape)}; with position_ids both must be caches "
            "(max_position, P). Leave position_ids out if the tables are gathered already"
        )
    if position_ids.is_floating_point() or position_ids.is_complex() or position_ids.dtype == torch.bool:
        raise PositionError(
            f"position_ids come in {position_ids.dtype}; a cache is indexed by integers. For real positions make the "
            "tables with rotary_tables(positions, ...)"
        )
    if position_ids.ndim not in (1, 2) or position_ids.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"position_ids are {tuple(position_ids.shape)} and input is {tuple(x.shape)}; allowed are (batch, seq) and "
            f"(seq,) with seq = {x.shape[-2]}"
        )
    check_rows(position_ids, cos.shape[0], "position_ids")
    return cos[position_ids], sin[position_ids]
