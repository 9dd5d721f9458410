"""R(φ)(a, b) = (a cos φ − b sin φ, a sin φ + b cos φ): the one place where pairs of channels are turned.

`tables` makes cos and sin from angles, `rotate` turns by them. There are two ways to turn:

- `_plain`, four products and two sums, for everything that looks at the operations: `torch.compile` and export (which
  fuse them), `torch.func`, forward-mode differentiation, tables that learn, and devices not tried.
- `_eager` for the rest. Eager PyTorch pays for each pass over memory and for each call, so it does complex arithmetic
  where pairs are neighbours, works in blocks that stay in the cache, and widens bf16 and fp16 one block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ropewalk.core.errors import ConfigError, ShapeError, suggest

Pairing = Literal["interleaved", "half"]
"""Which channels form pair i of P: "interleaved" (2i, 2i+1) or "half" (i, i+P)."""

_ALIASES = {
    "half": (
        "half_split",
        "half-split",
        "halves",
        "split",
        "rotate_half",
        "neox",
        "gpt_neox",
        "gpt-neox",
        "llama",
    ),
    "interleaved": ("interleave", "adjacent", "complex", "gptj", "gpt_j", "gpt-j", "roformer"),
}

# Elements a thread turns before it goes on to the next block: as float32 half a megabyte, so that the block, its
# source and its result stay in the second-level cache between the passes. Smaller blocks pay more for the calls.
_BLOCK = 1 << 17

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def check_pairing(pairing: str) -> Pairing:
    """Return ``pairing``, or raise a `ConfigError` that names the likely one."""
    if pairing in ("interleaved", "half"):
        return cast(Pairing, pairing)
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
    if angles.dtype not in _COMPLEX:
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


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, *, inverse: bool = False) -> Tensor:
    """Turn the first P pairs of channels of x; the channels after the first 2P pass through unchanged.

    Differentiable any number of times, also with respect to tables that require grad. Out of place: the result has
    the dtype of x and, in eager mode, its order in memory, so that ``(B, S, H, D).transpose(1, 2)`` stays one.

    Args:
        x: (batch, heads, seq, head_dim), or any number of leading dimensions, with any strides. bf16 and fp16 are
            turned in float32 and rounded once; float64 is turned in float64 whatever the tables are.
        cos: (1 or batch, 1 or heads, seq, P), broadcastable against the leading dimensions of x.
        sin: likewise.
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (channels i, i+P).
        inverse: turn by −φ.

    Raises:
        ConfigError: an unknown pairing.
        ShapeError: tables that do not fit x.
    """
    _check(x, cos, sin, pairing)
    if _must_be_plain(x, cos, sin):
        return _plain(x, cos, sin, pairing, inverse)
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
    fits = have == sin.shape and 0 < len(have) <= len(want) and 2 * have[-1] <= want[-1]
    if fits:
        for n, m in zip(have[-2::-1], want[-2::-1]):  # noqa: B905 (tables may have fewer dimensions)
            fits = fits and (n == m or n == 1)
    if fits and x.is_floating_point():
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


def _must_be_plain(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))
        or (type(x) is not Tensor and type(x) is not torch.nn.Parameter)  # fake, distributed, ...: may lack storage
        or x.device.type not in ("cpu", "cuda")
    )


def _plain(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, inverse: bool) -> Tensor:
    pairs, dtype = cos.shape[-1], _work(x.dtype)
    cos, sin = cos.to(dtype), sin.to(dtype)
    if inverse:
        sin = -sin
    y = x[..., : 2 * pairs].to(dtype)
    a, b = y.split(pairs, -1) if pairing == "half" else y.unflatten(-1, (pairs, 2)).unbind(-1)
    turned = (a * cos - b * sin, a * sin + b * cos)
    y = (torch.cat(turned, -1) if pairing == "half" else torch.stack(turned, -1).flatten(-2)).to(x.dtype)
    return y if 2 * pairs == x.shape[-1] else torch.cat((y, x[..., 2 * pairs :]), -1)


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


def _eager(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, inverse: bool) -> Tensor:
    dtype, width = _work(x.dtype), 2 * cos.shape[-1]
    if width == 0 or x.numel() == 0:
        return x.clone()
    if cos.dtype != dtype or sin.dtype != dtype:
        cos, sin = cos.to(dtype), sin.to(dtype)
    if pairing == "interleaved":
        factors: tuple[Tensor, ...] = (_cis(cos, sin, inverse),)
        if x.dtype == dtype and width == x.shape[-1]:
            try:  # one pass; not if an offset or a stride of x is odd: then the ways below copy before they turn
                return (x.view(_COMPLEX[dtype]) * factors[0]).view(dtype)
            except RuntimeError:
                pass
    else:
        factors = (cos, sin) if cos.stride(-1) == 1 else (cos.contiguous(), sin.contiguous())
    if x.stride(-1) != 1:
        x = x.contiguous()
    blocks = -(-x.numel() // (_BLOCK * torch.get_num_threads())) if x.device.type == "cpu" and x.ndim > 1 else 1
    if blocks > 1:
        return _in_blocks(x, factors, width, inverse, -(-x.shape[-2] // blocks))
    y = _lined_up(x[..., :width].to(dtype, copy=True))
    _turn(y, factors, inverse)
    y = y.to(x.dtype)
    return y if width == x.shape[-1] else torch.cat((y, x[..., width:]), -1)


def _cis(cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """Return cos ± i sin: for large tables laid out side by side (as `tables` does if asked) a view."""
    if (
        cos.numel() > 1 << 12  # below, joining is cheaper than asking
        and cos.stride() == sin.stride()
        and cos.stride(-1) == 2
        and sin.data_ptr() - cos.data_ptr() == cos.element_size()
    ):
        try:
            cis = torch.view_as_complex(cos.as_strided((*cos.shape, 2), (*cos.stride(), 1)))
            return cis.conj() if inverse else cis
        except RuntimeError:  # side by side by accident, at an odd offset
            pass
    return torch.complex(cos, -sin if inverse else sin)


def _turn(y: Tensor, factors: tuple[Tensor, ...], inverse: bool, spare: Tensor | None = None) -> None:
    """Turn y in place: by (cis,) neighbouring channels, by (cos, sin) the halves."""
    if len(factors) == 1:
        y.view(_COMPLEX[y.dtype]).mul_(factors[0])
        return
    cos, sin = factors
    a, b = y.split(cos.shape[-1], -1)
    if inverse:  # to turn (a, b) by -φ is to turn (b, a) by φ
        a, b = b, a
    a_sin = torch.mul(a, sin, out=spare)
    a.mul_(cos).addcmul_(b, sin, value=-1)
    torch.addcmul(a_sin, b, cos, out=b)


def _in_blocks(x: Tensor, factors: tuple[Tensor, ...], width: int, inverse: bool, tokens: int) -> Tensor:
    """Turn ``tokens`` tokens of all heads at a time, so that what one pass wrote the next finds in the cache."""
    out, dtype = torch.empty_like(x), _work(x.dtype)
    if width < x.shape[-1]:
        out[..., width:] = x[..., width:]
    source, target = x[..., :width], out[..., :width]
    factors = tuple(f if f.ndim > 1 and f.shape[-2] == x.shape[-2] else _along(f, x.shape[-2]) for f in factors)

    if x.dtype == dtype and len(factors) == 2 and 8 * factors[0].numel() <= x.numel():
        # From x to the result without a copy; worth a table of doubled cosines, as long as that is small.
        cos, sin = factors
        (a, b), (c, d) = source.split(width // 2, -1), target.split(width // 2, -1)
        if inverse:
            a, b, c, d = b, a, d, c
        doubled = torch.cat((cos, cos), -1)
        for x_, a_, b_, o_, c_, d_, cos_, sin_ in _blocks(tokens, source, a, b, target, c, d, doubled, sin):
            torch.mul(x_, cos_, out=o_)
            c_.addcmul_(b_, sin_, value=-1)
            d_.addcmul_(a_, sin_)
        return out

    y = _lined_up(torch.empty_like(source[..., :tokens, :], dtype=dtype))
    spare = torch.empty_like(y[..., : width // 2])
    for x_, o_, *factors_ in _blocks(tokens, source, target, *factors):
        if x_.shape[-2] < tokens:
            y, spare = y[..., : x_.shape[-2], :], spare[..., : x_.shape[-2], :]
        y.copy_(x_)
        _turn(y, tuple(factors_), inverse, spare)
        o_.copy_(y)
    return out


def _blocks(tokens: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(t.split(tokens, -2) for t in tensors), strict=True)


def _along(table: Tensor, tokens: int) -> Tensor:
    """Return a table that is the same for all tokens once more for each of them."""
    return table.expand(*table.shape[:-2], tokens, table.shape[-1])


def _lined_up(y: Tensor) -> Tensor:
    """Return y with neighbouring channels next to each other at even offsets, as complex numbers want them.

    Results inherit their order in memory from x; only where x overlaps itself, or has odd strides along axes of
    length one, must they be laid out anew.
    """
    *strides, last = y.stride()
    if last == 1 and not any(stride % 2 for stride in strides):
        return y
    return y.clone(memory_format=torch.contiguous_format)
