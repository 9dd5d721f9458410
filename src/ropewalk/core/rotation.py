"""Turning pairs of channels, in one place.

A rotation moves no arithmetic worth mentioning; it moves memory. What is fast in eager mode differs by pairing and dtype: one
complex product on the interleaved view, two fused multiply-adds on the halves, and for half-precision inputs a float32
scratch of one head, so that nothing larger is ever widened. Under a compiler the plain formulas are fused best.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from ropewalk.core.errors import ConfigError, ShapeError, suggest

Pairing = Literal["interleaved", "half"]

_SPELLINGS = {"half_split": "half", "half-split": "half", "neox": "half", "rotate_half": "half"}
_SPELLINGS |= {"interleave": "interleaved", "gptj": "interleaved", "gpt-j": "interleaved", "adjacent": "interleaved"}

BLOCK = 1 << 18
"""Elements turned at a time, so that what is read twice is still in the cache."""


def check_pairing(pairing: str) -> Pairing:
    """Check how channels are paired; say what a foreign spelling is called here."""
    if pairing in ("interleaved", "half"):
        return cast("Pairing", pairing)
    name = str(pairing).lower()
    hint = f" Did you mean {_SPELLINGS[name]!r}?" if name in _SPELLINGS else suggest(name, ("interleaved", "half"))
    raise ConfigError(f"pairing is 'interleaved' (channels 2i, 2i+1) or 'half' (i, i+d/2); got {pairing!r}.{hint}")


def tables(angles: Tensor, dtype: torch.dtype, scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """Return cos and sin of float64 angles, times scale, cast last: float64 for float64, float32 for all else."""
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = angles.cos(), angles.sin()
    if not (isinstance(scale, float) and scale == 1.0):
        cos, sin = cos * scale, sin * scale
    return cos.to(kept), sin.to(kept)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, *, inverse: bool = False) -> Tensor:
    """Turn the first 2P channels of x by +angle, out of place: (a cos − b sin, a sin + b cos).

    Args:
        x: (..., S, D), any strides.
        cos: (..., S, P) float32 or float64, broadcastable to the leading axes of x, 2P ≤ D.
        sin: likewise.
        pairing: pair i is channels (2i, 2i+1) or (i, i+P).
        inverse: turn by −angle.

    Returns:
        A new tensor of the shape and dtype of x. Sums are in float32, or float64 where x is.
    """
    pairs = cos.shape[-1]
    if 2 * pairs > x.shape[-1] or cos.shape != sin.shape:
        raise ShapeError(
            f"tables of shapes {tuple(cos.shape)} and {tuple(sin.shape)} turn {2 * pairs} channels, and x has shape "
            f"{tuple(x.shape)}; P is at most half the last axis"
        )
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if cos.dtype != wide:
        cos, sin = cos.to(wide), sin.to(wide)
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        return _plain(x, cos, -sin if inverse else sin, pairing)  # learned frequencies: gradients reach the tables
    if is_compiling():
        return _plain(x, cos, -sin if inverse else sin, pairing)
    if x.requires_grad or _transformed():
        return _Rotation.apply(x, cos, sin, pairing, inverse)
    return _turned(x, cos, sin, pairing, inverse)


def _transformed() -> bool:
    """Whether vmap, grad or forward differentiation looks on, which writing into a result would escape."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


class _Rotation(torch.autograd.Function):
    """A rotation whose backward is the inverse rotation: nothing is saved but the tables."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, inverse: bool) -> Tensor:
        return _turned(x, cos, sin, pairing, inverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, ctx.pairing, ctx.inverse = inputs
        ctx.save_for_backward(cos, sin)
        ctx.save_for_forward(cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _Rotation.apply(grad, cos, sin, ctx.pairing, not ctx.inverse), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, x: Tensor, *_: Any) -> Tensor:
        cos, sin = ctx.saved_tensors
        return _Rotation.apply(x, cos, sin, ctx.pairing, ctx.inverse)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, cos: Tensor, sin: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        # Any leading axes will do: a mapped axis becomes one more of them.
        lead = x.ndim - (in_dims[0] is not None)
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
        moved = []
        for t, dim in ((cos, in_dims[1]), (sin, in_dims[2])):
            if dim is not None:
                t = t.movedim(dim, 0)
                t = t.reshape(t.shape[0], *(1,) * (lead - (t.ndim - 1)), *t.shape[1:])
            moved.append(t)
        return _Rotation.apply(x, *moved, *rest), 0


def _plain(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """The formula, for compilers and for gradients of the tables."""
    pairs = cos.shape[-1]
    y = x[..., : 2 * pairs].to(cos.dtype)
    if pairing == "half":
        a, b = y[..., :pairs], y[..., pairs:]
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    else:
        a, b = y.unflatten(-1, (pairs, 2)).unbind(-1)
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    turned = turned.to(x.dtype)
    return turned if 2 * pairs == x.shape[-1] else torch.cat([turned, x[..., 2 * pairs :]], -1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, inverse: bool) -> Tensor:
    """The eager form: same numbers, least traffic."""
    width = 2 * cos.shape[-1]
    if not width:
        return x.clone()
    out = torch.empty_like(x)
    if x.is_meta or not x.numel():
        return out
    if width < x.shape[-1]:
        out[..., width:] = x[..., width:]
        target, source = out[..., :width], x[..., :width]
    else:
        target, source = out, x
    interleaved = pairing == "interleaved"
    back = -sin if inverse else sin
    first, second = (torch.complex(cos, back), back) if interleaved else (torch.cat([cos, cos], -1), back)
    same = x.dtype == cos.dtype
    tokens = x.shape[-2]
    # One complex product passes over memory once and needs no cutting; everything else reads twice what it wrote.
    step = tokens if interleaved and same else min(tokens, max(1, BLOCK * tokens // source.numel()))
    # Half-precision inputs are widened into scratch that is allocated once: fresh pages cost more than the arithmetic.
    scratch = [] if same else [cos.new_empty((*x.shape[:-2], step, width)) for _ in range(1 if interleaved else 2)]
    for start in range(0, tokens, step):
        there, here, one, two = target, source, first, second
        if step < tokens:
            there, here, one, two = (
                t if t.shape[-2] == 1 else t[..., start : start + step, :] for t in (there, here, one, two)
            )
        buffers = [t[..., : here.shape[-2], :] for t in scratch]
        if interleaved:
            _turn_interleaved(there, here, one, *buffers)
        else:
            _turn_half(there, here, one, two, *buffers)
    return out


def _turn_interleaved(out: Tensor, x: Tensor, factor: Tensor, wide: Tensor | None = None) -> None:
    pairs = (factor.shape[-1], 2)
    if wide is not None:
        torch.view_as_complex(wide.copy_(x).unflatten(-1, pairs)).mul_(factor)
        out.copy_(wide)
        return
    source, target = x.unflatten(-1, pairs), out.unflatten(-1, pairs)
    if not _viewable(source):
        source = source.contiguous()
    if _viewable(target):
        torch.mul(torch.view_as_complex(source), factor, out=torch.view_as_complex(target))
    else:
        target.copy_(torch.view_as_real(torch.view_as_complex(source) * factor))


def _turn_half(
    out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, wide: Tensor | None = None, turned: Tensor | None = None
) -> None:
    pairs = sin.shape[-1]
    source, target = (x, out) if wide is None or turned is None else (wide.copy_(x), turned)
    torch.mul(source, cos, out=target)
    target[..., :pairs].addcmul_(source[..., pairs:], sin, value=-1)
    target[..., pairs:].addcmul_(source[..., :pairs], sin)
    if target is not out:
        out.copy_(target)


def _viewable(x: Tensor) -> bool:
    """Whether neighbouring channels are neighbours in memory, on even addresses."""
    return x.stride(-1) == 1 and all(s % 2 == 0 for s in x.stride()[:-1]) and x.storage_offset() % 2 == 0
