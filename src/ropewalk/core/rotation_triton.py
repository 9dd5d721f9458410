"""R(φ) by one Triton kernel: each number of x is read once and written once, whatever the tables look like.

Imported by `ropewalk.core.rotation` when the first CUDA tensor is turned, and by nothing else: Triton is optional. The
kernel is reached through two custom operators, `ropewalk::rotate` and `ropewalk::rotate_` (in place), so that dispatch
modes, `torch.compile` and export see one operation with known effects.

Axes that tables do not have are strides of zero. Tables may also be read by row: ``index`` says which row each token
takes, so that packed documents and given position ids need no gathered copy of the tables.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing

# Channels to turn that one program holds for one head, and heads it turns by one table. Reasoned, not measured: `python
# benchmarks/gpu.py --tiles` tries others.
_CHANNELS = 2048
_HEADS = 4


@triton.jit  # type: ignore[misc, untyped-decorator, unused-ignore]
def _turn(
    x: tl.tensor,
    out: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    index: tl.tensor,
    tokens: tl.tensor,
    heads: tl.tensor,
    rows: tl.tensor,
    x_b: tl.tensor,
    x_h: tl.tensor,
    x_s: tl.tensor,
    x_d: tl.tensor,
    out_b: tl.tensor,
    out_h: tl.tensor,
    out_s: tl.tensor,
    out_d: tl.tensor,
    table_b: tl.tensor,
    table_h: tl.tensor,
    table_s: tl.tensor,
    table_p: tl.tensor,
    index_b: tl.tensor,
    index_s: tl.tensor,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
    WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    INVERSE: tl.constexpr,
    PER_HEAD: tl.constexpr,
    INDEXED: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    """Turn BLOCK tokens of HEADS heads. WIDTH and REST_WIDTH are PAIRS and REST rounded up to powers of two.

    Offsets are 64-bit: tensors of more than 2³¹ elements are common in long contexts. Heads come first in the order of
    the programs, so that those which read the same rows of the tables run together.
    """
    program = tl.program_id(0)
    head_blocks = (heads + HEADS - 1) // HEADS
    token_blocks = (tokens + BLOCK - 1) // BLOCK
    first_head = program % head_blocks * HEADS
    first = program // head_blocks % token_blocks * BLOCK
    batch = (program // head_blocks // token_blocks).to(tl.int64)

    token = (first + tl.arange(0, BLOCK)).to(tl.int64)
    inside = token < tokens
    pair = tl.arange(0, WIDTH)
    if INDEXED:
        row = tl.load(index + batch * index_b + token * index_s, mask=inside, other=0).to(tl.int64)
        known = (row >= 0) & (row < rows)
    else:
        row = token
        known = inside
    table = batch * table_b + row[:, None] * table_s + pair[None, :] * table_p
    read = known[:, None] & (pair < PAIRS)[None, :]
    if not PER_HEAD:
        # A row that the tables do not have becomes NaN: loud, and no memory of others is read.
        c = tl.load(cos + table, mask=read, other=float("nan")).to(DTYPE)
        s = tl.load(sin + table, mask=read, other=float("nan")).to(DTYPE)

    for i in tl.static_range(HEADS):
        head = (first_head + i).to(tl.int64)
        here = token < tl.where(head < heads, tokens, 0)
        source = x + batch * x_b + head * x_h + token[:, None] * x_s
        target = out + batch * out_b + head * out_h + token[:, None] * out_s
        if PER_HEAD:
            there = read & here[:, None]
            c = tl.load(cos + head * table_h + table, mask=there, other=float("nan")).to(DTYPE)
            s = tl.load(sin + head * table_h + table, mask=there, other=float("nan")).to(DTYPE)
        if HALF:
            mask = here[:, None] & (pair < PAIRS)[None, :]
            a = tl.load(source + pair[None, :] * x_d, mask=mask, other=0.0).to(DTYPE)
            b = tl.load(source + (PAIRS + pair)[None, :] * x_d, mask=mask, other=0.0).to(DTYPE)
        else:  # neighbours arrive together and are parted in registers
            channel = tl.arange(0, 2 * WIDTH)
            mask = here[:, None] & (channel < 2 * PAIRS)[None, :]
            both = tl.load(source + channel[None, :] * x_d, mask=mask, other=0.0).to(DTYPE)
            a, b = tl.split(tl.reshape(both, (BLOCK, WIDTH, 2)))
        if INVERSE:
            u = a * c + b * s
            v = b * c - a * s
        else:
            u = a * c - b * s
            v = b * c + a * s
        if HALF:
            tl.store(target + pair[None, :] * out_d, u.to(out.dtype.element_ty), mask=mask)
            tl.store(target + (PAIRS + pair)[None, :] * out_d, v.to(out.dtype.element_ty), mask=mask)
        else:
            both = tl.reshape(tl.join(u, v), (BLOCK, 2 * WIDTH))
            tl.store(target + channel[None, :] * out_d, both.to(out.dtype.element_ty), mask=mask)
        if REST > 0:
            rest = tl.arange(0, REST_WIDTH)
            mask = here[:, None] & (rest < REST)[None, :]
            through = tl.load(source + (2 * PAIRS + rest)[None, :] * x_d, mask=mask, other=0.0)
            tl.store(target + (2 * PAIRS + rest)[None, :] * out_d, through, mask=mask)


def _launch(
    x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, half: bool, inverse: bool, rest: int
) -> None:
    """Turn x into ``out`` (which may be x itself), with ``rest`` channels after the turned ones copied along."""
    if not x.device == cos.device == sin.device or (index is not None and index.device != x.device):
        devices = [str(t.device) for t in (x, cos, sin, index) if t is not None]
        raise ShapeError(f"x, cos, sin and index lie on {devices}; all must be on one device: move the tables to x's")
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    x, out, cos, sin = (t[(None,) * (4 - t.ndim)] for t in (x, out, cos, sin))
    batch, heads, tokens, _ = x.shape
    rows, pairs = cos.shape[-2:]
    cos = cos.expand(batch, heads, tokens if index is None else rows, pairs)
    at = x if index is None else index.expand(batch, tokens)  # never read where there is no index
    width = triton.next_power_of_2(pairs)
    block = 1 if tokens == 1 else max(1, _CHANNELS // (2 * width))
    group = min(_HEADS, triton.next_power_of_2(heads))
    grid = (batch * triton.cdiv(tokens, block) * triton.cdiv(heads, group),)
    with torch.cuda.device_of(x):
        _turn[grid](
            *(x, out, cos, sin, at),
            *(tokens, heads, rows),
            *(*x.stride(), *out.stride(), *cos.stride(), *at.stride()[:2]),
            PAIRS=pairs,
            REST=rest,
            WIDTH=width,
            REST_WIDTH=triton.next_power_of_2(max(1, rest)),
            HALF=half,
            INVERSE=inverse,
            PER_HEAD=cos.stride(1) != 0,
            INDEXED=index is not None,
            DTYPE=tl.float64 if x.dtype == torch.float64 else tl.float32,
            BLOCK=block,
            HEADS=group,
            num_warps=1 if block * width <= 64 else 4,
        )


_SCHEMA = "Tensor cos, Tensor sin, Tensor? index, bool half, bool inverse"


@torch.library.custom_op("ropewalk::rotate", mutates_args=(), schema=f"(Tensor x, {_SCHEMA}) -> Tensor")
def _rotate(x: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, half: bool, inverse: bool) -> Tensor:
    if cos.shape[-1] == 0 or x.numel() == 0:
        return x.clone()
    out = torch.empty_like(x)
    _launch(x, out, cos, sin, index, half, inverse, x.shape[-1] - 2 * cos.shape[-1])
    return out


@torch.library.custom_op("ropewalk::rotate_", mutates_args=("x",), schema=f"(Tensor(a!) x, {_SCHEMA}) -> ()")
def _rotate_in_place(x: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, half: bool, inverse: bool) -> None:
    if cos.shape[-1] and x.numel():
        _launch(x, x, cos, sin, index, half, inverse, 0)


@_rotate.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, half: bool, inverse: bool) -> Tensor:
    return torch.empty_like(x)


@_rotate_in_place.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, half: bool, inverse: bool) -> None:
    return None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep the tables: the gradient of a rotation is the rotation back."""
    _, cos, sin, index, ctx.half, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin, index)


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin, index = ctx.saved_tensors
    return _rotate(grad, cos, sin, index, ctx.half, not ctx.inverse), None, None, None, None, None


_rotate.register_autograd(_back, setup_context=_keep)


class _InPlace(torch.autograd.Function):
    """Operators that change their input have no gradient of their own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        _keep(ctx, (x, *rest), None)
        ctx.mark_dirty(x)
        _rotate_in_place(x, *rest)
        return x

    backward = staticmethod(_back)


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, *, inverse: bool = False, index: Tensor | None = None
) -> Tensor:
    """Turn the first P pairs of channels of x out of place, as `ropewalk.core.rotation.rotate` does.

    Args:
        x: (batch, heads, seq, head_dim) or fewer dimensions, with any strides; (seq, heads, head_dim) of packed
            documents is ``x.transpose(0, 1)``. bf16 and fp16 are turned in float32 and rounded once.
        cos: (1 or batch, 1 or heads, seq, P); with ``index`` any number of rows instead of seq.
        sin: likewise.
        pairing: "interleaved" or "half".
        inverse: turn by −φ.
        index: (seq,) or (1 or batch, seq), int32 or int64: the row of the tables that each token takes. A token whose
            row the tables do not have becomes NaN, since to check it would wait for the device.

    Raises:
        ConfigError: an unknown pairing, or tables that learn (`ropewalk.core.rotation.rotate` differentiates those).
        ShapeError: shapes, dtypes or devices that do not fit.
    """
    index = _checked(x, cos, sin, pairing, index)
    return _rotate(x, cos, sin, index, pairing == "half", inverse)


def rotate_(
    x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, *, inverse: bool = False, index: Tensor | None = None
) -> Tensor:
    """Turn x in place and return it; arguments as for `rotate`. Gradients pass, since x itself is not needed for them.

    Raises:
        ShapeError: also where several elements of x share memory (an expanded tensor).
    """
    index = _checked(x, cos, sin, pairing, index)
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
        raise ShapeError(
            f"x {tuple(x.shape)} has strides {x.stride()}: elements share memory, and turning it in place would turn them "
            "several times. Give x.contiguous(), or turn it out of place"
        )
    rest = (cos, sin, index, pairing == "half", inverse)
    if not (x.requires_grad and torch.is_grad_enabled()):
        _rotate_in_place(x, *rest)
        return x
    if torch.compiler.is_compiling():  # the graph has no notion of a marked input; the copy is fused away
        return x.copy_(_rotate(x, *rest))
    return _InPlace.apply(x, *rest)


def _checked(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, index: Tensor | None) -> Tensor | None:
    """Check the arguments, and return the index as (1 or batch, seq)."""
    if x.ndim > 4:
        raise ShapeError(
            f"x is {tuple(x.shape)}; the kernel takes (batch, heads, seq, head_dim) or fewer dimensions. Flatten the leading "
            "ones, or use ropewalk.core.rotation.rotate"
        )
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        raise ConfigError(
            "cos and sin require grad, and the kernel gives gradients to x alone. For frequencies that learn use "
            "ropewalk.core.rotation.rotate; for fixed ones detach the tables"
        )
    if index is None:
        rotation._check(x, cos, sin, pairing)
        return None
    wide = (None,) * (4 - x.ndim)
    batch, _, tokens, _ = x[wide].shape if x.ndim > 1 else (0, 0, 0, 0)
    if (
        index.dtype not in (torch.int32, torch.int64)
        or index.ndim not in (1, 2)
        or index.shape[-1] != tokens
        or (index.ndim == 2 and index.shape[0] not in (1, batch))
    ):
        raise ShapeError(
            f"index is {tuple(index.shape)} in {index.dtype} and x {tuple(x.shape)}; allowed are int32 and int64, (seq,) or "
            "(1 or batch, seq): one row of the tables for each token"
        )
    if cos.ndim < 2:
        raise ShapeError(f"cos is {tuple(cos.shape)}; an index picks rows of tables (rows, P): give cos[None]")
    rotation._check(x, cos[..., :1, :], sin[..., :1, :], pairing)
    if cos.shape != sin.shape:
        raise ShapeError(f"cos is {tuple(cos.shape)} and sin {tuple(sin.shape)}; take both from the same positions")
    return index if index.ndim == 2 else index[None]
