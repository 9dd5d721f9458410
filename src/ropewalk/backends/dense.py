"""The reference: every problem, any dtype up to float64, readable. It holds the whole Q x K matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core.attention import Attention, Branch, Linear, Mask, Pointwise, Ref, Row, ValueTerm
from ropewalk.core.encoding import table_dtype


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """Repeat something per key head, (B|1, h, ...), for the query heads that share it."""
    return x if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], 1)


def scalars(p: Attention, q: tuple[Ref, ...], k: tuple[Ref, ...], centre: bool = False) -> list[Tensor]:
    """Return the inputs of an elementwise function: queries as (B|1, h, Q, 1), keys as (B|1, h, 1, K)."""
    rows = [p.read(ref, "q", centre) for ref in q]
    columns = [per_query_head(p.read(ref, "k", centre), p.num_heads).transpose(-1, -2) for ref in k]
    return [*rows, *columns]


def allowed(p: Attention) -> Tensor | None:
    """Which keys each query may see, (B|1, H|1, Q, K) boolean; None: all."""
    masks = [evaluate_mask(p, m) for m in p.all_masks()]
    if p.mask is not None:
        masks.append(p.mask if p.mask.ndim == 4 else p.mask[None, None])
    if not masks:
        return None
    out = masks[0]
    for m in masks[1:]:
        out = out & m
    return out


def evaluate_mask(p: Attention, mask: Mask) -> Tensor:
    """Evaluate one named mask, (B|1, H|1, Q|1, K)."""
    return mask.fn(*scalars(p, mask.q, mask.k))


def lookup_in(table: Tensor) -> Callable[[Tensor], Tensor]:
    """Return ``lookup(index)`` for a table (B|1, H|1, Q|1, n) and whole-number indices (B|1, H|1, Q, K)."""

    def lookup(index: Tensor) -> Tensor:
        index = index.long()
        lead = torch.broadcast_shapes(table.shape[:3], index.shape[:3])
        return table.expand(*lead, table.shape[-1]).gather(-1, index.expand(*lead, index.shape[-1]))

    return lookup


def pointwise(p: Attention, term: Pointwise, score: Tensor | None = None) -> Tensor:
    """Evaluate an elementwise term on all pairs: the bias, or the new score."""
    inputs: list[object] = [*scalars(p, term.q, term.k)]
    if term.table is not None:
        inputs.append(lookup_in(p.qf[term.table.name]))
    return term.fn(*inputs) if term.additive else term.fn(score, *inputs)


def logits(p: Attention, visible: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the logits before masking, (B, H, Q, K)."""
    q = p.q.to(dtype)

    def dot(q: Tensor, k: Tensor) -> Tensor:
        return q @ per_query_head(k.to(dtype), p.num_heads).transpose(-1, -2)

    if p.product is not None:
        t = p.product
        sides = [p.read(r, "q") for r in t.q] + [per_query_head(p.read(r, "k"), p.num_heads) for r in t.k]
        s = t.fn(q, per_query_head(p.k.to(dtype), p.num_heads), *sides).to(dtype)
    else:
        s = q.new_zeros(())
        for branch in p.branches or (Branch(),):
            bq = q if branch.q is None else p.qf[branch.q].to(dtype)
            bk = p.k if branch.k is None else p.kf[branch.k]
            own = dot(bq, bk) * p.logit_scale
            s = own if branch.where is None else torch.where(evaluate_mask(p, branch.where), own, s)
    if p.softcap is not None:
        s = p.softcap * torch.tanh(s / p.softcap)
    for term in p.terms:
        if isinstance(term, Pointwise):
            value = pointwise(p, term, s)
            s = s + value.to(dtype) if term.additive else value.to(dtype)
        elif isinstance(term, Row):
            inputs = [p.read(r, "q") for r in term.q] + [per_query_head(p.read(r, "k"), p.num_heads) for r in term.k]
            seen = torch.ones((1, 1, *s.shape[-2:]), dtype=torch.bool, device=s.device) if visible is None else visible
            s = term.fn(s, seen, *inputs).to(dtype)
    return s


def run(p: Attention, request: Request) -> Result:
    """Compute the problem as it is written."""
    dtype = table_dtype(p.q)
    visible = allowed(p)
    v = per_query_head(p.v.to(dtype), p.num_heads)
    lse = None
    if p.kernel is not None:
        weights, lse = _linear_weights(p, visible, dtype)
    else:
        s = logits(p, visible, dtype)
        if visible is not None:
            s = s.masked_fill(~visible, -torch.inf)
        sinks = None if p.sinks is None else p.sinks.to(dtype)[None, :, None, None].expand(*s.shape[:3], 1)
        wide = s if sinks is None else torch.cat([s, sinks], -1)
        # A softmax over nothing is NaN, and so is its gradient: give such rows finite logits, then zero weights.
        blank = None if visible is None or sinks is not None else ~visible.any(-1, keepdim=True)
        if blank is not None:
            wide = wide.masked_fill(blank, 0.0)
        if request.lse:
            lse = wide.logsumexp(-1)
            lse = lse if blank is None else lse.masked_fill(blank[..., 0], -torch.inf)
        weights = wide.softmax(-1)
        if sinks is not None:
            weights = weights[..., :-1]
        elif visible is not None:
            weights = weights.masked_fill(~visible, 0.0)
    kept = drop(weights, request.dropout, training=True) if request.dropout else weights
    out = kept @ v
    for term in p.terms:
        if isinstance(term, ValueTerm):
            inputs = [p.read(r, "q") for r in term.q] + [per_query_head(p.read(r, "k"), p.num_heads) for r in term.k]
            out = out + term.fn(kept, *inputs).to(dtype)
    return Result(out.to(p.q.dtype), weights.to(p.q.dtype) if request.weights else None, lse)


def _linear_weights(p: Attention, visible: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights of linear attention, and the logarithm of what they were divided by."""
    assert p.kernel is not None
    name = p.kernel.normaliser
    n_k = per_query_head(p.kf[name].to(dtype), p.num_heads)
    weights = p.q.to(dtype) @ per_query_head(p.k.to(dtype), p.num_heads).transpose(-1, -2)
    sums = p.qf[name].to(dtype) @ n_k.transpose(-1, -2)
    if visible is not None:
        weights, sums = weights.masked_fill(~visible, 0.0), sums.masked_fill(~visible, 0.0)
    total = sums.sum(-1, keepdim=True)
    return divide(weights, total), log_of_sum(total)


def divide(top: Tensor, total: Tensor) -> Tensor:
    """Divide by the sums of linear attention, (..., 1); zero where a sum is."""
    return torch.where(total > 0, top / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)


def log_of_sum(total: Tensor) -> Tensor:
    """Return the logarithms of sums of linear attention, (..., 1) → (...): its parts merge by them as those of a softmax."""
    total = total[..., 0]
    return torch.where(total > 0, total.clamp(min=torch.finfo(total.dtype).tiny).log(), -torch.inf)


def why_not(p: Attention, request: Request) -> str | None:
    """The reference knows every field; what it cannot give is said here."""
    for term in p.terms:
        if not isinstance(term, Pointwise | Row | ValueTerm):
            return f"it does not know {type(term).__name__} terms"
    if p.kernel is not None:
        if not isinstance(p.kernel, Linear):
            return f"it does not know the kernel {type(p.kernel).__name__}"
        if p.terms or p.branches or p.product is not None or p.softcap is not None or p.sinks is not None:
            return "terms, branches, products, soft caps and sinks act on a softmax, and this is linear attention"
        if p.scale is not None or p.own_scale is not None:
            return "linear attention has no logits that a scale could act on"
    return None


BACKEND = Backend("dense", run, why_not)
