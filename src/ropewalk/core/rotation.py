"""R(φ)(a, b) = (a cos φ − b sin φ, a sin φ + b cos φ): the one place where pairs of channels are turned.

`tables` makes cos and sin from angles, `rotate` turns by them. There are three ways to turn:

- `_plain`, four products and two sums, for everything that looks at the operations: `torch.compile` and export (which
  fuse them), `torch.func`, forward-mode differentiation, tables that learn, and devices not tried.
- `_eager` for the rest. Eager PyTorch pays for each pass over memory and for each call, so it does complex arithmetic
  where pairs are neighbours, works in blocks that stay in the cache, and widens bf16 and fp16 one block at a time.
- in its place on CUDA devices one Triton kernel (`rotation_triton`), where Triton is installed and works.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ropewalk.core.errors import ConfigError, ShapeError, suggest

Pairing = Literal["interleaved", "half"]
"""Which channels form pair i of P: "interleaved" (2i, 2i+1) or "half" (i, i+P)."""

_ALIASES = {
    "half": ("half_split", "half-split", "halves", "split", "rotate_half", "neox", "gpt_neox", "gpt-neox"),
    "interleaved": ("interleave", "adjacent", "complex", "gptj", "gpt_j", "gpt-j", "roformer"),
}

# Elements a thread turns before it goes on to the next block: as float32 half a megabyte, so that the block, its
# source and its result stay in the second-level cache between the passes. Smaller blocks pay more for the calls.
_BLOCK = 1 << 17


def check_pairing(pairing: str) -> Pairing:
    """Return ``pairing``, or raise a `ConfigError` that names the likely one."""
    if pairing == "interleaved":
        return "interleaved"
    if pairing == "half":
        return "half"
    known = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases)}
    meant = known.get(str(pairing).lower())
    hint = f" Did you mean {meant!r}?" if meant else suggest(pairing, _ALIASES)
    raise ConfigError(
        f"pairing {pairing!r} is unknown; allowed are 'interleaved' (channels 2i, 2i+1 form a pair) and "
        f"'half' (channels i, i+P).{hint}"
    )


def tables(
    angles: Tensor, dtype: torch.dtype, scale: float | Tensor = 1.0, pairing: Pairing | None = None
) -> tuple[Tensor, Tensor]:
    """(scale · cos φ, scale · sin φ), computed in float64 and only then cast.

    Args:
        angles: float64, any shape (..., P). At position 1e6 a float32 angle is already off by 0.03 radians.
        dtype: what will be turned: float64 keeps the tables float64; float32, bf16 and fp16 get them in float32.
        scale: a factor on both (YaRN's attention temperature), a number or broadcastable against ``angles``.
        pairing: a hint about memory and nothing else. "interleaved" lays cos and sin side by side, one complex number
            a pair, which saves `rotate` from joining them at each call.

    Raises:
        ShapeError: angles that are not float64 or float32.
    """
    if angles.dtype not in (torch.float64, torch.float32):
        raise ShapeError(
            f"angles come in {angles.dtype}; allowed are float64 (exact) and float32. Multiply float64 "
            "positions by float64 frequencies, and cast nothing before cos and sin"
        )
    angles = angles.double()
    cos, sin = angles.cos(), angles.sin()
    if isinstance(scale, Tensor) or scale != 1.0:
        cos, sin = cos * scale, sin * scale
    dtype = _work(dtype)
    if pairing == "interleaved":
        cos, sin = torch.stack((cos, sin), -1).to(dtype).unbind(-1)
        return cos, sin
    return cos.to(dtype), sin.to(dtype)


def product_tables(
    position: Tensor, inv_freq: Tensor, dtype: torch.dtype, scale: float | Tensor = 1.0, pairing: Pairing | None = None
) -> tuple[Tensor, Tensor]:
    """`tables` of the angles position · inv_freq, (..., S) and (P,) → two tensors (..., S, P).

    For many positions in steps of one size cos(a + b) = cos a cos b − sin a sin b, with a of every so many positions and b
    of those in between: few sines, and float64 numbers of one block at a time. Whole numbers that lie close to each
    other (packed documents, padding, rows of a batch) look their rows up in such a table. Everything else, and float64
    tables always, are evaluated directly; a float32 table differs from that by its last bit at most.
    """
    if _may_be_added(position, inv_freq, dtype, scale):
        assert isinstance(scale, float | int)
        flat = position.double().reshape(-1)
        low, high = (float(end) for end in flat.aminmax())
        # A float64 angle is known to 2^-53 of its size, and so is each of the two that are added.
        if max(abs(low), abs(high)) * float(inv_freq.abs().max()) <= _LARGEST_ANGLE:
            count = len(flat)
            start, step = float(flat[0]), float(flat[-1] - flat[0]) / (count - 1)
            steady = start + step * torch.arange(count, dtype=torch.float64)
            if step and bool(((flat - steady).abs() <= 2.0**-51 * max(abs(low), abs(high))).all()):
                cos, sin = _progression(start, step, count, inv_freq, scale, pairing)
                return cos.unflatten(0, position.shape), sin.unflatten(0, position.shape)
            if 0 < high - low < count and bool((flat == flat.round()).all()):
                cos, sin = _progression(low, 1.0, int(high - low) + 1, inv_freq, scale, pairing)
                rows = (flat - low).long()
                if pairing == "interleaved":
                    both = _side_by_side(cos)[rows].unflatten(0, position.shape)
                    return both[..., 0], both[..., 1]
                return cos[rows].unflatten(0, position.shape), sin[rows].unflatten(0, position.shape)
    return tables(position.double()[..., None] * inv_freq.double(), dtype, scale, pairing)


_LARGEST_ANGLE = 2.0**26
_MANY_ANGLES = 1 << 17
"""From here on sines cost more than finding out whether they can be had by addition."""

_ADDED_BLOCK = 1 << 14
"""Angles a block: the products stay in the second-level cache, and one thread does them without waiting for others."""


def _may_be_added(position: Tensor, inv_freq: Tensor, dtype: torch.dtype, scale: float | Tensor) -> bool:
    if torch.compiler.is_compiling() or dtype == torch.float64 or isinstance(scale, Tensor) or inv_freq.ndim != 1:
        return False  # what is compiled must not depend on numbers
    if position.numel() * inv_freq.numel() < _MANY_ANGLES or _must_be_plain(position, inv_freq, inv_freq):
        return False
    learned = torch.is_grad_enabled() and position.requires_grad
    return position.is_cpu and inv_freq.is_cpu and not learned and len(inv_freq) <= _ADDED_BLOCK


def _progression(
    start: float, step: float, count: int, inv_freq: Tensor, scale: float, pairing: Pairing | None
) -> tuple[Tensor, Tensor]:
    """Return float32 tables of the positions start, start + step, ..., (count, P) each."""
    pairs = len(inv_freq)
    rows = min(count, max(1, _ADDED_BLOCK // pairs))
    inv_freq = inv_freq.detach().double()
    fine = (step * torch.arange(rows, dtype=torch.float64))[:, None] * inv_freq
    coarse = (start + step * torch.arange(0, count, rows, dtype=torch.float64))[:, None] * inv_freq
    far_cos, far_sin = coarse.cos() * scale, coarse.sin() * scale
    near_cos, near_sin = fine.cos(), fine.sin()
    if pairing == "interleaved":
        both = torch.empty(count, pairs, 2)
        far, near = torch.complex(far_cos, far_sin), torch.complex(near_cos, near_sin)
        turned = torch.empty_like(near)
        for n, block in enumerate(both.split(rows)):
            torch.mul(near, far[n], out=turned)
            block.copy_(torch.view_as_real(turned)[: len(block)])
        return both[..., 0], both[..., 1]
    cos, sin = torch.empty(count, pairs), torch.empty(count, pairs)
    wide = torch.empty_like(near_cos)
    for n, (cos_, sin_) in enumerate(zip(cos.split(rows), sin.split(rows), strict=True)):
        torch.mul(near_cos, far_cos[n], out=wide).addcmul_(near_sin, far_sin[n], value=-1)
        cos_.copy_(wide[: len(cos_)])
        torch.mul(near_cos, far_sin[n], out=wide).addcmul_(near_sin, far_cos[n])
        sin_.copy_(wide[: len(sin_)])
    return cos, sin


def _side_by_side(cos: Tensor) -> Tensor:
    """Return (S, P, 2) of which an interleaved table of cosines (S, P) is the first half."""
    return cos.as_strided((*cos.shape, 2), (*cos.stride(), 1))


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, *, inverse: bool = False, out: Tensor | None = None
) -> Tensor:
    """Turn the first P pairs of channels of x; the channels after the first 2P pass through unchanged.

    Out of place: the result has the dtype of x and strides of its own, unless ``out`` is given. Differentiable any number
    of times, also with respect to tables that require grad; with ``torch.compile``, ``torch.export``, ``torch.func`` and
    meta tensors.

    Args:
        x: (batch, heads, seq, head_dim), or any number of leading dimensions, with any strides. bf16 and fp16 are
            turned in float32 and rounded once; float64 is turned in float64 whatever the tables are.
        cos: (1 or batch, 1 or heads, seq, P), broadcastable against the leading dimensions of x.
        sin: likewise.
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (channels i, i+P).
        inverse: turn by −φ.
        out: where to put the result, a tensor like x with any strides, or x itself; nothing is allocated but a block. Not
            where gradients would have to go through it.

    Raises:
        ConfigError: an unknown pairing; ``out`` where something requires grad.
        ShapeError: tables that do not fit x; an ``out`` unlike x, or whose memory overlaps itself or x.
    """
    _check(x, cos, sin, pairing)
    if out is not None:
        _check_out(x, cos, sin, out)
        if not x.is_cpu or _must_be_plain(x, cos, sin):
            return out.copy_(rotate(x, cos, sin, pairing, inverse=inverse))
        with torch.no_grad():
            return _eager(x, cos, sin, pairing, inverse, out)
    if _must_be_plain(x, cos, sin):
        return _plain(x, cos, sin, pairing, inverse)
    if x.is_cuda and x.ndim <= 4:
        kernel = _kernel(x.device)
        if kernel is not None:
            return kernel.rotate(x, cos, sin, pairing, inverse=inverse)
    if x.requires_grad and torch.is_grad_enabled():
        return _Rotate.apply(x, cos, sin, pairing, inverse)
    return _eager(x, cos, sin, pairing, inverse)


def _work(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which tensors of ``dtype`` are turned."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    if pairing != "interleaved" and pairing != "half":
        check_pairing(pairing)
    have, want = cos.shape, x.shape
    if have == sin.shape and 0 < len(have) <= len(want) and 2 * have[-1] <= want[-1] and x.is_floating_point():
        for n, m in zip(have[-2::-1], want[-2::-1]):  # noqa: B905 (tables may have fewer dimensions)
            if n != m and n != 1:
                break
        else:
            return
    came = f"x {tuple(want)} in {x.dtype}, cos {tuple(have)}, sin {tuple(sin.shape)}"
    if not x.is_floating_point():
        fix = "x must be real floating point"
    elif have != sin.shape:
        fix = "cos and sin must have one shape; take both from the same positions and frequencies"
    elif not have or not want or 2 * have[-1] > want[-1]:
        fix = (
            f"P = {have[-1] if have else 0} pairs need 2P = {2 * have[-1] if have else 0} channels, x has "
            f"{want[-1] if want else 0}. Give one column a pair: inverse frequencies of head_dim/2 entries, not "
            "tables repeated to head_dim"
        )
    else:
        fix = (
            f"the tables must broadcast against the leading dimensions {tuple(want[:-1])} of x: (seq, P), or "
            "(1 or batch, 1 or heads, seq, P). Is x (batch, seq, heads, head_dim)? Then transpose(1, 2) it first; "
            "tables (batch, seq, P) need an axis for the heads: cos[:, None]"
        )
    raise ShapeError(f"{came}: {fix}")


def _check_out(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Check that results may be written to ``out``, which may be x."""
    name = "x" if out is x else "out"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, cos, sin, out)):
        learns = "x" if x.requires_grad else "out" if out.requires_grad else "cos or sin"
        raise ConfigError(
            f"{learns} requires grad, and a rotation written to {name} cannot be differentiated. Turn out of place, or "
            "under torch.no_grad()"
        )
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        raise ShapeError(
            f"out is {tuple(out.shape)} in {out.dtype} on {out.device} and x is {tuple(x.shape)} in {x.dtype} on "
            f"{x.device}; they must be alike: torch.empty_like(x)"
        )
    if _must_be_plain(out, cos, sin):
        return  # no memory to look at
    if not _apart(out):
        raise ShapeError(
            f"{name} has strides {out.stride()} for shape {tuple(out.shape)}: some of its elements share memory, as after "
            f"expand, and would be turned more than once. Give {name}.contiguous() (or clone() it)"
        )
    same = out.data_ptr() == x.data_ptr() and out.stride() == x.stride()
    if not same and out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and out.numel():
        ends = [(t.storage_offset(), t.storage_offset() + _extent(t)) for t in (x, out)]
        if max(start for start, _ in ends) < min(end for _, end in ends):
            raise ShapeError(
                "out and x lie in one stretch of memory and are not the same view of it, so that parts of x might be "
                "overwritten before they are read. Give out memory of its own, or out=x"
            )


def _extent(t: Tensor) -> int:
    """Return how many elements of memory lie between the first and the last of t, both included."""
    return 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))


def _apart(t: Tensor) -> bool:
    """Whether every element has memory of its own, as after any slicing and transposing of a whole tensor."""
    reach = 1
    for stride, n in sorted(zip(t.stride(), t.shape, strict=True)):
        if n > 1:
            if stride < reach:
                return False
            reach += (n - 1) * stride
    return True


def _must_be_plain(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch._C._are_functorch_transforms_active()
        or torch._C._functorch.is_legacy_batchedtensor(x)  # autograd.grad(is_grads_batched=True)
        or forward_ad._current_level >= 0
        or (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))
        or (type(x) is not Tensor and type(x) is not torch.nn.Parameter)  # fake, distributed: may have no storage
        or not (x.is_cpu or x.is_cuda)
    )


@functools.cache
def _kernel(device: torch.device) -> ModuleType | None:
    """Return `rotation_triton` where Triton can be imported and runs on the device; asked once for each."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        from ropewalk.core import rotation_triton

        one = torch.ones(1, 2, device=device)
        rotation_triton.rotate(one, one[:, :1], one[:, :1], "half")
    except (
        Exception
    ) as error:  # no C compiler, an old device, a Triton of another torch: whatever it is, there is a way without
        warnings.warn(
            f"Triton is installed and does not run on {device} ({type(error).__name__}: {error}); rotations are done by "
            "PyTorch's own operations, which are right and slower. It needs a C compiler and the version of Triton that came "
            "with torch",
            stacklevel=3,
        )
        return None
    return rotation_triton


def _plain(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, inverse: bool) -> Tensor:
    dtype, pairs = _work(x.dtype), cos.shape[-1]
    cos, sin = cos.to(dtype), sin.to(dtype)
    if inverse:
        sin = -sin
    whole = 2 * pairs == x.shape[-1]
    y = (x if whole else x[..., : 2 * pairs]).to(dtype)
    a, b = y.split(pairs, -1) if pairing == "half" else (y[..., 0::2], y[..., 1::2])
    turned = (a * cos - b * sin, a * sin + b * cos)
    y = (torch.cat(turned, -1) if pairing == "half" else torch.stack(turned, -1).reshape(y.shape)).to(x.dtype)
    return y if whole else torch.cat((y, x[..., 2 * pairs :]), -1)


class _Rotate(torch.autograd.Function):
    """The gradient of a rotation is the rotation back, so that nothing but the tables is kept for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, inverse: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.pairing, ctx.inverse = pairing, inverse
        return _eager(x, cos, sin, pairing, inverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, sin, ctx.pairing, inverse=not ctx.inverse), None, None, None, None


def _eager(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, inverse: bool, out: Tensor | None = None) -> Tensor:
    dtype, width = _work(x.dtype), 2 * cos.shape[-1]
    if width == 0 or x.numel() == 0:
        return x.clone() if out is None else out.copy_(x)
    if cos.dtype != dtype or sin.dtype != dtype:
        cos, sin = cos.to(dtype), sin.to(dtype)
    blocks = 1
    if x.is_cpu and x.ndim > 1:
        blocks = max(1, min(x.shape[-2], -(-x.numel() // (_BLOCK * torch.get_num_threads()))))
    if pairing == "interleaved":
        cis = _cis(cos, sin)
        if inverse:
            cis = torch.conj_physical(cis)  # conj() would be lazy, and more expensive when it is resolved
        if out is None and (blocks == 1 or (x.dtype == dtype and width == x.shape[-1])):
            return _turn_neighbours(x, cis, width)  # a single pass needs no blocks
        return _turn_neighbours_in_blocks(x, cis, width, blocks, out)
    if cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    if out is None and blocks == 1:
        return _turn_halves(x, cos, sin, width, inverse)
    return _turn_halves_in_blocks(x, cos, sin, width, inverse, blocks, out)


def _cis(cos: Tensor, sin: Tensor) -> Tensor:
    """Return cos + i sin: for large tables laid out side by side (as `tables` does if asked) a view."""
    if (
        cos.numel() > 1 << 12  # below, joining is cheaper than asking
        and cos.stride() == sin.stride()
        and cos.stride(-1) == 2
        and sin.data_ptr() - cos.data_ptr() == cos.element_size()
    ):
        try:
            return torch.view_as_complex(cos.as_strided((*cos.shape, 2), (*cos.stride(), 1)))
        except RuntimeError:  # side by side by accident, at an odd offset
            pass
    return torch.complex(cos, sin)


def _as_complex(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return neighbouring channels as complex numbers: a view, or a copy where an offset or a stride is odd."""
    seen = _seen_as_complex(y, dtype)
    return y.clone(memory_format=torch.contiguous_format).view(dtype) if seen is None else seen


def _seen_as_complex(y: Tensor, dtype: torch.dtype) -> Tensor | None:
    try:
        return y.view(dtype)
    except RuntimeError:
        return None


# At once, with as few calls as there can be: for one token they are all the time there is. (`to` costs as much as an
# addition even where it does nothing, hence the questions before it.)


def _turn_neighbours(x: Tensor, cis: Tensor, width: int) -> Tensor:
    dtype, wide, whole = x.dtype, _work(x.dtype), width == x.shape[-1]
    y = x if whole else x[..., :width]
    if dtype != wide:
        y = y.to(wide)
    y = (_as_complex(y, cis.dtype) * cis).view(wide)
    if dtype != wide:
        y = y.to(dtype)
    return y if whole else torch.cat((y, x[..., width:]), -1)


def _turn_halves(x: Tensor, cos: Tensor, sin: Tensor, width: int, inverse: bool) -> Tensor:
    dtype, whole = x.dtype, width == x.shape[-1]
    y = x if whole else x[..., :width]
    if dtype != cos.dtype:
        y = y.to(cos.dtype)
    a, b = y.chunk(2, -1)
    if inverse:  # to turn (a, b) by -φ is to turn (b, a) by φ
        a, b = b, a
    c = a.mul(cos).addcmul_(b, sin, value=-1)
    d = b.mul(cos).addcmul_(a, sin)
    y = torch.cat((d, c) if inverse else (c, d), -1)
    if dtype != cos.dtype:
        y = y.to(dtype)
    return y if whole else torch.cat((y, x[..., width:]), -1)


# In blocks of some tokens, all heads: what one pass over a block wrote, the next one finds in the cache.


def _turn_neighbours_in_blocks(x: Tensor, cis: Tensor, width: int, blocks: int, out: Tensor | None) -> Tensor:
    out, source, target = _result(x, width, out)
    if x.dtype == _work(x.dtype):
        both = _seen_as_complex(source, cis.dtype), _seen_as_complex(target, cis.dtype)
        if both[0] is not None and both[1] is not None:
            torch.mul(both[0], cis, out=both[1])
            return out
    z = _as_complex(_scratch(source, blocks), cis.dtype)
    y = z.view(_work(x.dtype))
    for x_, out_, cis_ in _cut(blocks, source, target, _for_each_token(cis, x)):
        if x_.shape[-2] < y.shape[-2]:
            y, z = y[..., : x_.shape[-2], :], z[..., : x_.shape[-2], :]
        y.copy_(x_)
        z.mul_(cis_)
        out_.copy_(y)
    return out


def _turn_halves_in_blocks(
    x: Tensor, cos: Tensor, sin: Tensor, width: int, inverse: bool, blocks: int, out: Tensor | None
) -> Tensor:
    out, source, target = _result(x, width, out)
    in_place = target.data_ptr() == source.data_ptr()
    cos, sin = _for_each_token(cos, x), _for_each_token(sin, x)

    if x.dtype == cos.dtype and 8 * cos.numel() <= x.numel() and not in_place:
        # Straight from x to the result; needs a table of doubled cosines, which is small where heads share it.
        (a, b), (c, d) = source.chunk(2, -1), target.chunk(2, -1)
        if inverse:
            a, b, c, d = b, a, d, c
        cos = torch.cat((cos, cos), -1)
        for x_, a_, b_, out_, c_, d_, cos_, sin_ in _cut(blocks, source, a, b, target, c, d, cos, sin):
            torch.mul(x_, cos_, out=out_)
            c_.addcmul_(b_, sin_, value=-1)
            d_.addcmul_(a_, sin_)
        return out

    y = _scratch(source, blocks)
    a_sin = torch.empty_like(y[..., : width // 2])
    for x_, out_, cos_, sin_ in _cut(blocks, source, target, cos, sin):
        if x_.shape[-2] < y.shape[-2]:
            y, a_sin = y[..., : x_.shape[-2], :], a_sin[..., : x_.shape[-2], :]
        y = x_ if in_place and x.dtype == cos.dtype else y.copy_(x_)
        a, b = reversed(y.chunk(2, -1)) if inverse else y.chunk(2, -1)
        torch.mul(a, sin_, out=a_sin)
        a.mul_(cos_).addcmul_(b, sin_, value=-1)
        torch.addcmul(a_sin, b, cos_, out=b)
        if y is not x_:
            out_.copy_(y)
    return out


def _result(x: Tensor, width: int, out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, complete but for the channels to turn, and these channels of x and of the result."""
    if out is None:
        out = torch.empty_like(x)
    if width == x.shape[-1]:
        return out, x, out
    if out.data_ptr() != x.data_ptr():
        out[..., width:] = x[..., width:]
    return out, x[..., :width], out[..., :width]


def _scratch(source: Tensor, blocks: int) -> Tensor:
    """Return room for the largest block, in the order of the source in memory."""
    return torch.empty_like(source[..., : -(-source.shape[-2] // blocks), :], dtype=_work(source.dtype))


def _for_each_token(table: Tensor, x: Tensor) -> Tensor:
    return table.expand(*table.shape[:-2], x.shape[-2], table.shape[-1])


def _cut(blocks: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(t.chunk(blocks, -2) for t in tensors), strict=True)
