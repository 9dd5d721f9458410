"""torch's FlexAttention: elementwise terms and masks, evaluated inside a compiled kernel.

The same definitions that the reference broadcasts are gathered here one (query, key) pair at a time, so authors never
write an index modification themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.backends.request import Backend, Request, Result
from ropewalk.backends.sdpa import FEW_QUERIES
from ropewalk.core.attention import Attention, Mask, Pointwise, Ref

Gather = Callable[[Tensor, Tensor, Tensor], Tensor]

# Compiled for AVX2, torch 2.13 leaves some outputs wrong or NaN where tables are read; with AVX-512 all tests pass.
CPU_HOLDS = torch.backends.cpu.get_cpu_capability() == "AVX512"


def run(p: Attention, request: Request) -> Result:
    """Compute the problem by ``flex_attention``, compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    call: Any = flex_attention if is_compiling() else _compiled(p.q.device.type)
    out = call(
        p.q,
        p.k,
        p.v,
        score_mod=_score_mod(p),
        block_mask=_block_mask(p),
        scale=p.logit_scale,
        enable_gqa=p.num_heads != p.num_kv_heads,
    )
    return Result(out)


def _compiled(device: str) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # torch keeps what it compiled with the function it compiled, so that wrapping again costs nothing. On the CPU
    # its kernel for sizes left open does not compile for a single query.
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False if device == "cpu" else None)
    return compiled


def _score_mod(p: Attention) -> Callable[..., Tensor] | None:
    terms = [t for t in p.terms if isinstance(t, Pointwise)]
    if not terms and p.softcap is None:
        return None
    inputs = [(t, [_gather(p, r, "q") for r in t.q], [_gather(p, r, "k") for r in t.k], _lookup(p, t)) for t in terms]
    cap = p.softcap

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        for term, q, k, lookup in inputs:
            scalars: list[Any] = [g(b, h, i) for g in q] + [g(b, h, j) for g in k]
            if lookup is not None:
                scalars.append(lambda index, look=lookup, b=b, h=h, i=i: look(b, h, i, index))
            score = score + term.fn(*scalars) if term.additive else term.fn(score, *scalars)
        return score

    return score_mod


def _values(p: Attention, ref: Ref, side: str) -> Tensor:
    """Return one scalar a token, (B|1, h, S|1), in a dtype of the kernel."""
    value = p.read(ref, side, centre=True)[..., 0]
    return (value.float() if value.dtype == torch.float64 else value).contiguous()


def _reader(p: Attention, value: Tensor, side: str) -> Gather:
    """Return a reader of one scalar; axes of length 1 are not indexed, since they hold for all."""
    sizes, group = value.shape, p.num_heads // p.num_kv_heads
    per_kv = side == "k" and sizes[1] == p.num_kv_heads != p.num_heads

    def read(b: Tensor, h: Tensor, s: Tensor) -> Tensor:
        head = h // group if per_kv else h
        return value[b if sizes[0] > 1 else 0, head if sizes[1] > 1 else 0, s if sizes[2] > 1 else 0]

    return read


def _gather(p: Attention, ref: Ref, side: str) -> Gather:
    return _reader(p, _values(p, ref, side), side)


def _lookup(p: Attention, term: Pointwise) -> Callable[..., Tensor] | None:
    if term.table is None:
        return None
    table = p.qf[term.table.name].float().contiguous()
    sizes = table.shape

    def look(b: Tensor, h: Tensor, i: Tensor, index: Tensor) -> Tensor:
        return table[
            b if sizes[0] > 1 else 0, h if sizes[1] > 1 else 0, i if sizes[2] > 1 else 0, index.to(torch.int64)
        ]

    return look


def _block_mask(p: Attention) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    masks = p.all_masks()
    if not masks and p.mask is None:
        return None

    def make() -> Any:
        mod, rows, heads = _mask_mod(p, masks)
        return create_block_mask(mod, rows, heads, p.q.shape[2], p.k.shape[2], device=p.q.device.type)

    if p.masks or p.mask is not None:
        return make()
    window, causal = p.window, p.causal  # built-in masks depend on the positions alone
    return p.where.memo(lambda: ("blocks", causal, window), make)


def _mask_mod(p: Attention, masks: tuple[Mask, ...]) -> tuple[Callable[..., Tensor], int | None, int | None]:
    """Return the mask modification, and the rows and heads it tells apart (None: it is the same for all)."""
    tests: list[tuple[Callable[..., Tensor], list[Gather], list[Gather]]] = []
    shapes = []
    for m in masks:
        q, k = [_values(p, r, "q") for r in m.q], [_values(p, r, "k") for r in m.k]
        shapes += [t.shape for t in (*q, *k)]
        tests.append((m.fn, [_reader(p, t, "q") for t in q], [_reader(p, t, "k") for t in k]))
    user = None
    if p.mask is not None:
        user = (p.mask if p.mask.ndim == 4 else p.mask[None, None]).contiguous()
        shapes.append(user.shape)

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = None
        for fn, q, k in tests:
            here = fn(*(g(b, h, i) for g in q), *(g(b, h, j) for g in k))
            seen = here if seen is None else seen & here
        if user is not None:
            here = user[b if user.shape[0] > 1 else 0, h if user.shape[1] > 1 else 0, i, j]
            seen = here if seen is None else seen & here
        assert seen is not None
        return seen

    by_row, by_head = any(s[0] > 1 for s in shapes), any(s[1] > 1 for s in shapes)
    return mask_mod, p.q.shape[0] if by_row else None, p.num_heads if by_head else None


def why_not(p: Attention, request: Request) -> str | None:
    """Say what FlexAttention cannot do here."""
    if p.kernel is not None:
        return "linear attention has no softmax"
    if p.product is not None or p.branches:
        return "the scores are not one dot product"
    for term in p.terms:
        if not isinstance(term, Pointwise):
            return f"a {type(term).__name__} term needs the whole row"
    if p.sinks is not None or request.weights or request.lse:
        return "sinks, weights and log-sum-exps are not wired up"
    if request.dropout:
        return "it has no dropout"
    kind = p.q.device.type
    if kind not in ("cpu", "cuda"):
        return f"it runs on CPUs and CUDA devices, not {kind}"
    if p.q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it computes in float32 and below, not {p.q.dtype}"
    if kind == "cpu":
        if p.q.dtype == torch.float16:
            return "on the CPU it takes float32 and bfloat16"
        tensors = [p.q, p.k, p.v, *p.qf.values(), *p.kf.values()]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return "on the CPU it has no backward"
        if not CPU_HOLDS:
            return "on CPUs without AVX-512 its compiled kernel was seen to compute wrong numbers"
    if min(*p.q.shape[:3], p.k.shape[2]) == 0:
        return "an empty problem"
    return None


def prefer_not(p: Attention, request: Request) -> str | None:
    """Say when it is asked for by name only."""
    if p.q.device.type == "cpu":
        return "on the CPU each new shape is compiled for seconds, so it is taken by name only"
    if not (p.terms or p.masks or p.softcap is not None or len(p.all_masks()) > 1 or p.mask is not None):
        return "there is nothing in the problem that needs it"
    if p.q.shape[2] <= FEW_QUERIES:
        return "a step of a few queries is not worth compiling for"
    return None


BACKEND = Backend("flex", run, why_not, prefer_not)
