"""torch's fused attention. Sums of products in the logits are folded into extra channels of q and k.

A term ``sum_r a_r(i) b_r(j)`` is a dot product: [q, a / scale] . [k, b]. Folding keeps memory O(S) where a bias would
take O(S^2). What makes it exact: coordinates are centred in float64 first (only differences matter), factors are split
into three parts where channels have few bits, and q, k and v get one width that is a multiple of 8, since unequal widths
leave the fused path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.backends import dense
from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core.attention import Attention, Pair, Pointwise

FEW_QUERIES = 16
"""Up to here a bias row is cheaper than a copy of all keys with extra channels."""

LARGEST_WIDTH = 256
"""Head width of the fused kernels on accelerators."""


def run(p: Attention, request: Request) -> Result:
    """Compute the problem by one fused call, or one a branch."""
    terms = [cast("Pointwise", t) for t in p.terms]
    fold, dense_terms = ([], terms) if not _folds(p) else _split(terms)
    q, k, v = _to_width(p, _fold(p, fold))
    bias = None
    for term in dense_terms:
        value = dense.pointwise(p, term)
        bias = value if bias is None else bias + value
    causal, visible = _visibility(p)
    if bias is not None:
        if causal:
            causal, visible = False, dense.allowed(p)
        bias = bias.float() if q.dtype != torch.float64 else bias
        if visible is not None:
            bias = bias.masked_fill(~visible, -torch.inf)
    mask = visible if bias is None else bias
    if mask is not None:
        mask = mask.expand(-1, -1, q.shape[2], k.shape[2])  # fused kernels want the last axes whole
    if not (request.lse or p.branches or p.sinks is not None):
        gqa = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            q, k, v, mask, request.dropout, causal, scale=p.logit_scale, enable_gqa=gqa
        )
        return Result(out[..., : p.v.shape[-1]])
    return _merged(p, q, k, v, causal, mask)


def _folds(p: Attention) -> bool:
    return p.q.shape[2] > FEW_QUERIES


def _split(terms: list[Pointwise]) -> tuple[list[Pointwise], list[Pointwise]]:
    return [t for t in terms if t.factors is not None], [t for t in terms if t.factors is None]


# ---- visibility ----------------------------------------------------------------------------------------------------


def _visibility(p: Attention) -> tuple[bool, Tensor | None]:
    """Return (is_causal, mask): the cheapest form of what may be seen."""
    names = [m.name for m in p.all_masks()] + (["user"] if p.mask is not None else [])
    square = p.where.order is None and p.q.shape[2] == p.k.shape[2]
    if names == ["causal"]:
        if square:
            return True, None
        if p.where.order is None and p.q.shape[2] == 1:
            return False, None  # the newest token sees everything
    if not names:
        return False, None
    if p.masks or p.mask is not None:
        return False, dense.allowed(p)
    # Built-in masks depend on the positions alone: one evaluation for all layers.
    window = p.window
    made = p.where.memo(lambda: ("visible", p.causal, window), lambda: cast("Tensor", dense.allowed(p)))
    return False, made


# ---- folding -------------------------------------------------------------------------------------------------------


def _fold(p: Attention, terms: list[Pointwise]) -> list[tuple[Tensor, Tensor]]:
    """Return the factors as channels (B|1, H, Q, r) and (B|1, H_kv, K, r) in the dtype of q."""
    channels = []
    for term in terms:
        inputs = [p.read(r, "q", centre=True)[..., 0] for r in term.q] + [
            p.read(r, "k", centre=True)[..., 0] for r in term.k
        ]
        assert term.factors is not None
        for a, b in cast("Sequence[Pair]", term.factors(*inputs)):
            channels += _channels(p, a, b)
    return channels


def _channels(p: Attention, a: Tensor | float, b: Tensor | float) -> list[tuple[Tensor, Tensor]]:
    heads, kv = p.num_heads, p.num_kv_heads
    a, b = _column(a, p.q), _column(b, p.k)
    a = a / p.logit_scale
    if b.shape[1] not in (1, kv):
        # Per query head on the key side: each member of a group gets a channel of its own and selects it, so that
        # the keys themselves need not be repeated.
        group = heads // kv
        chosen = torch.eye(group, dtype=a.dtype, device=a.device).repeat(kv, 1)[None, :, None]  # (1, H, 1, group)
        a = a[..., None] * chosen
        b = b.expand(-1, heads, -1).unflatten(1, (kv, group)).movedim(2, -1)
    else:
        a, b = a[..., None], b[..., None]
    pairs = [(a, b)]
    if p.q.dtype in (torch.bfloat16, torch.float16):
        xs, ys = _three_parts(a, p.q.dtype), _three_parts(b, p.q.dtype)
        pairs = [(xs[i], ys[j]) for i, j in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))]
    return [(x.to(p.q.dtype), y.to(p.k.dtype)) for x, y in pairs]


def _column(value: Tensor | float, like: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((1, 1, 1), float(value), dtype=torch.float64, device=like.device)
    return value.double()


def _three_parts(x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    parts = []
    for _ in range(3):
        part = x.to(dtype)
        parts.append(part)
        x = x - part.double()
    return parts


def _to_width(p: Attention, channels: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Join q and k with their channels, and pad q, k and v to one width that the fused kernels like."""
    width = p.q.shape[-1] + sum(a.shape[-1] for a, _ in channels)
    if not channels and width == p.v.shape[-1]:
        return p.q, p.k, p.v
    full = -(-max(width, p.v.shape[-1]) // 8) * 8

    def joined(x: Tensor, extra: list[Tensor]) -> Tensor:
        b, h, n, d = x.shape
        blocks = [x, *(e.expand(b, h, n, e.shape[-1]) for e in extra)]
        left = full - sum(t.shape[-1] for t in blocks)
        if left:
            blocks.append(x.new_zeros(()).expand(b, h, n, left))
        return torch.cat(blocks, -1) if len(blocks) > 1 else x

    return joined(p.q, [a for a, _ in channels]), joined(p.k, [b for _, b in channels]), joined(p.v, [])


# ---- several scores, sinks, log-sum-exp ---------------------------------------------------------------------------


def _with_lse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    heads = q.shape[1]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float32, device=q.device).masked_fill(~mask, -torch.inf)
    if mask is not None:
        mask = mask.to(q.dtype if q.dtype == torch.float64 else torch.float32)
    k, v = dense.per_query_head(k, heads), dense.per_query_head(v, heads)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    # The kernel reports 0 for a row that sees nothing; the logarithm of an empty sum is -inf.
    if mask is not None:
        lse = lse.masked_fill((mask == -torch.inf).all(-1).expand(lse.shape), -torch.inf)
    return out, lse


def _merged(p: Attention, q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Result:
    """One call a branch, merged by log-sum-exp."""
    outs, lses = [], []
    if not p.branches:
        out, lse = _with_lse(q, k, v, causal, mask, p.logit_scale)
        outs, lses = [out], [lse]
    else:
        seen = dense.allowed(p)
        n, m = p.q.shape[2], p.k.shape[2]
        rest = torch.ones((1, 1, n, m), dtype=torch.bool, device=q.device) if seen is None else seen
        for branch in reversed(p.branches):
            bq = q if branch.q is None else _swap(q, p.qf[branch.q])
            bk = k if branch.k is None else _swap(k, p.kf[branch.k])
            here = rest
            if branch.where is not None:
                taken = dense.evaluate_mask(p, branch.where)
                here, rest = rest & taken, rest & ~taken
            bias = mask if mask is not None and mask.is_floating_point() else None
            own = here if bias is None else bias.masked_fill(~here, -torch.inf)
            out, lse = _with_lse(bq, bk, v, False, own.expand(*own.shape[:2], n, m), p.logit_scale)
            outs.append(out)
            lses.append(lse)
    if p.sinks is not None:
        lses.append(p.sinks[None, :, None].to(lses[0].dtype).expand_as(lses[0]))
    total = torch.stack(lses).logsumexp(0)
    shift = total.masked_fill(total == -torch.inf, 0.0)
    merged = sum(o.to(s.dtype) * (s - shift).exp()[..., None] for o, s in zip(outs, lses, strict=False))
    return Result(cast("Tensor", merged).to(q.dtype)[..., : p.v.shape[-1]], lse=total)


def _swap(folded: Tensor, plain: Tensor) -> Tensor:
    """Replace the problem's own channels by a branch's, leaving the folded ones."""
    return torch.cat([plain.to(folded.dtype), folded[..., plain.shape[-1] :]], -1)


# ---- whitelist -----------------------------------------------------------------------------------------------------


def why_not(p: Attention, request: Request) -> str | None:
    """Say what rules the fused kernels out."""
    if p.kernel is not None:
        return "linear attention has no softmax"
    if p.product is not None:
        return "the scores are no dot product"
    if p.softcap is not None:
        return "the soft cap acts on scores inside the kernel"
    if request.weights:
        return "the weights were asked for, and the kernel never holds them"
    for term in p.terms:
        if not isinstance(term, Pointwise):
            return f"a {type(term).__name__} term needs the whole row of weights"
        if not term.additive:
            return "a term changes scores in another way than by adding to them"
    if request.lse or p.branches or p.sinks is not None:
        what = "log-sum-exp" if request.lse else "several scores" if p.branches else "sinks"
        if p.q.device.type != "cpu":
            return f"{what}: the kernel's log-sum-exp is wired up on the CPU only"
        if torch.is_grad_enabled() and _needs_grad(p):
            return f"{what}: the kernel's log-sum-exp has no gradient"
        if request.dropout:
            return f"{what} under dropout"
        if min(p.q.shape[0], p.q.shape[2], p.k.shape[2]) == 0:
            return f"{what} of an empty problem"
        if any(b.k is not None and p.kf[b.k].shape[-1] != p.k.shape[-1] for b in p.branches):
            return "branches of different widths"
    if p.q.shape[2] == 0 or p.k.shape[2] == 0:
        return "an empty problem"
    if p.q.device.type != "cpu" and max(p.q.shape[-1], p.v.shape[-1]) > LARGEST_WIDTH:
        return f"heads wider than {LARGEST_WIDTH} leave the fused kernels"
    return None


def prefer_not(p: Attention, request: Request) -> str | None:
    """Say what would make it slow."""
    if p.q.shape[2] > FEW_QUERIES and any(isinstance(t, Pointwise) and t.factors is None for t in p.terms):
        return "a bias without factors has to be held as a whole Q x K matrix"
    return None


def _needs_grad(p: Attention) -> bool:
    tensors = [p.q, p.k, p.v, *p.qf.values(), *p.kf.values()]
    return any(t.requires_grad for t in tensors) or (p.sinks is not None and p.sinks.requires_grad)


BACKEND = Backend("sdpa", run, why_not, prefer_not)
