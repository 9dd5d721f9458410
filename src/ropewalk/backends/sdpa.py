"""torch's fused attention. Sums of products in the logits are folded into extra channels of q and k.

A term ``sum_r a_r(i) b_r(j)`` is a dot product: [q, a / scale] . [k, b]. Folding keeps memory O(S) where a bias would
take O(S^2). What makes it exact: coordinates are centred in float64 first (only differences matter), factors are split
into three parts where channels have few bits, and q, k and v get one width that is a multiple of 8, since unequal widths
leave the fused path. Cheaper still on the CPU: what is left of ALiBi and FoX once row constants are dropped is one number
a head and key, and its kernel adds such a row by itself.
"""

from __future__ import annotations

import functools
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.backends import dense
from ropewalk.backends.merge import merge
from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core.attention import CAUSAL, Attention, Coordinate, Feature, Pointwise
from ropewalk.core.encoding import table_dtype

FEW_QUERIES = 16
"""Up to here a bias row is cheaper than a copy of all keys with extra channels."""

LARGEST_WIDTH = 256
"""Head width of the fused kernels on accelerators."""


def run(p: Attention, request: Request) -> Result:
    """Compute the problem by one fused call, or one a branch."""
    plain = not _needs_lse(p, request)
    folded, held = _split(p)
    factors = _factors(p, folded, all_of_them=not plain)
    causal, visible = _visibility(p)
    row = _key_row(p, factors) if plain and visible is None and not (held or request.dropout) else None
    q, k, v = _to_width(p, [c for a, b in factors for c in _channels(p, a, b)] if row is None else [])
    if row is not None:
        return Result(_kernel(q, k, v, causal, row, p.logit_scale)[0][..., : p.v.shape[-1]])
    mask = visible
    if held:
        bias = functools.reduce(torch.add, [_bias(p, term) for term in held])
        if causal:
            causal, visible = False, dense.allowed(p)
        # The kernel takes a mask in float32 beside low-precision queries, and misreads one beside float64.
        mask = bias.to(table_dtype(q))
        if visible is not None:
            mask = mask.masked_fill(~visible, -torch.inf)
    if mask is not None:
        mask = mask.expand(-1, -1, q.shape[2], k.shape[2])  # fused kernels want the last axes whole
    if not plain:
        return _merged(p, q, k, v, causal, mask)
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, mask, request.dropout, causal, scale=p.logit_scale, enable_gqa=grouped
    )
    return Result(out[..., : p.v.shape[-1]])


def _needs_lse(p: Attention, request: Request) -> bool:
    return request.lse or bool(p.branches) or p.sinks is not None


def _split(p: Attention) -> tuple[list[Pointwise], list[Pointwise]]:
    """Return the terms to be folded and those to be held as a bias."""
    terms = [cast("Pointwise", t) for t in p.terms]
    if not terms:
        return [], []
    if p.q.shape[2] <= FEW_QUERIES and not _coarse(p):
        return [], terms
    return [t for t in terms if t.factors is not None], [t for t in terms if t.factors is None]


def _coarse(p: Attention) -> bool:
    """Whether a bias would have to be in the low precision of q: only the CPU's kernel takes one in float32."""
    return p.q.device.type != "cpu" and p.q.dtype in (torch.float16, torch.bfloat16)


# ---- held as a bias ------------------------------------------------------------------------------------------------


def _bias(p: Attention, term: Pointwise) -> Tensor:
    """Return the bias of a term, (B|1, h, Q|1, K): evaluated once a distance where that says it all, or once a pair."""
    distances = _distances(p, term)
    if distances is None:
        return dense.pointwise(p, term)
    place = term.k[0]
    inputs: list[object] = [distances if ref == place else p.read(ref, "q") for ref in term.q]
    inputs.append(torch.zeros_like(distances[..., :1]))
    if term.table is not None:
        inputs.append(dense.lookup_in(p.qf[term.table.name]))
    row = term.fn(*inputs).to(table_dtype(p.q))
    row = row.expand(*row.shape[:3], distances.shape[-1])
    return row[..., 0, :].unfold(-1, p.k.shape[2], 1).flip(-2)


def _distances(p: Attention, term: Pointwise) -> Tensor | None:
    """Return the falling distances i − j, (1, 1, 1, Q + K − 1), where a term reads nothing else of pairs of tokens.

    That is so for centred coordinates of tokens that follow each other one by one.
    """
    if p.q.shape[2] <= FEW_QUERIES or p.q.device.type != "cpu" or type(p.q) is not Tensor or len(term.k) != 1:
        return None
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    place = term.k[0]
    if not isinstance(place, Coordinate) or not place.centred or place not in term.q:
        return None
    others = [ref for ref in term.q if ref != place] + ([] if term.table is None else [term.table])
    if not all(isinstance(ref, Feature) and p.qf[ref.name].shape[2] == 1 for ref in others):
        return None
    i, j = p.read(place, "q"), p.read(place, "k")
    if i.shape[0] != 1 or j.shape[0] != 1 or i.shape[-1] != 1 or i.requires_grad or j.requires_grad:
        return None
    i, j = i[0, 0, :, 0], j[0, 0, :, 0]
    if not (bool((i.diff() == 1).all()) and bool((j.diff() == 1).all())):
        return None
    return (i[0] - j[0] + torch.arange(len(i) - 1, -len(j), -1, dtype=i.dtype))[None, None, None]


# ---- visibility ----------------------------------------------------------------------------------------------------


def _visibility(p: Attention) -> tuple[bool, Tensor | None]:
    """Return (is_causal, mask): the cheapest form of what may be seen."""
    masks = p.all_masks()
    if not masks and p.mask is None:
        return False, None
    if masks == (CAUSAL,) and p.mask is None and p.where.order is None:
        if p.q.shape[2] == p.k.shape[2]:
            return True, None
        if p.q.shape[2] == 1:
            return False, None  # the newest token sees everything
    if p.masks or p.mask is not None:
        return False, dense.allowed(p)
    # Built-in masks depend on the positions alone: one evaluation for all layers.
    window = p.window
    made = p.where.memo(lambda: ("visible", p.causal, window), lambda: cast("Tensor", dense.allowed(p)))
    return False, made


# ---- folding -------------------------------------------------------------------------------------------------------


def _factors(p: Attention, terms: list[Pointwise], all_of_them: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the factors in float64, (B|1, h, Q|1) and (B|1, h, K|1).

    A product whose key part is the same for all keys adds a number to a whole row: the softmax does not see it, so it
    is left out unless ``all_of_them`` are asked for.
    """
    out = []
    for term in terms:
        rows = [p.read(ref, "q", centre=True)[..., 0] for ref in term.q]
        columns = [p.read(ref, "k", centre=True)[..., 0] for ref in term.k]
        assert term.factors is not None
        for pair in term.factors(*rows, *columns):
            a, b = (_column(part, p.q.device) for part in pair)
            if all_of_them or b.shape[-1] != 1:
                out.append((a, b))
    return out


def _key_row(p: Attention, factors: list[tuple[Tensor, Tensor]]) -> Tensor | None:
    """Return the bias as one number a head and key, (B|1, h, 1, K), where it is no more than that.

    The CPU's kernel adds such a row beside its causality, and nothing has to be widened; it has no gradient for it.
    """
    if p.q.device.type != "cpu" or p.num_heads != p.num_kv_heads or not factors:
        return None
    if any(a.shape[-1] != 1 for a, _ in factors):
        return None
    row = cast("Tensor", sum(a * b for a, b in factors))
    return None if row.requires_grad else row[:, :, None].to(table_dtype(p.q))


def _channels(p: Attention, a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return a product as channels (B|1, h, Q|1, r) and (B|1, h, K|1, r) in the dtype of q."""
    heads, kv = p.num_heads, p.num_kv_heads
    a = a / p.logit_scale
    if b.shape[1] not in (1, kv):
        # Per query head on the key side: each member of a group gets a channel of its own and selects it, so that
        # the keys themselves need not be repeated.
        group = heads // kv
        chosen = torch.eye(group, dtype=a.dtype, device=a.device).repeat(kv, 1)[None, :, None]  # (1, H, 1, group)
        a = a[..., None] * chosen
        b = dense.per_query_head(b, heads).unflatten(1, (kv, group)).movedim(2, -1)
    else:
        a, b = a[..., None], b[..., None]
    pairs = [(a, b)]
    if p.q.dtype == torch.float16:  # its range ends at 65504: share the size out evenly, by a power of two
        size = [t.detach().abs().amax().clamp(min=2.0**-24) for t in (a, b)]
        shift = (size[1] / size[0]).sqrt().log2().round().exp2()
        a, b = a * shift, b / shift
    if p.q.dtype in (torch.bfloat16, torch.float16):
        xs, ys = _three_parts(a, p.q.dtype), _three_parts(b, p.q.dtype)
        pairs = [(xs[i], ys[j]) for i, j in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))]
    return [(x.to(p.q.dtype), y.to(p.k.dtype)) for x, y in pairs]


def _column(value: Tensor | float, device: torch.device) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((1, 1, 1), float(value), dtype=torch.float64, device=device)
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
        b, h, n, _ = x.shape
        blocks = [x, *(e.expand(b, h, n, e.shape[-1]) for e in extra)]
        left = full - sum(t.shape[-1] for t in blocks)
        if left:
            blocks.append(x.new_zeros(()).expand(b, h, n, left))
        return torch.cat(blocks, -1) if len(blocks) > 1 else x

    return joined(p.q, [a for a, _ in channels]), joined(p.k, [b for _, b in channels]), joined(p.v, [])


# ---- several scores, sinks, log-sum-exp ---------------------------------------------------------------------------


def _kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Call the CPU's kernel itself: it returns the log-sum-exp, and takes a bias beside causality."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def _with_lse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=table_dtype(q), device=q.device).masked_fill(~mask, -torch.inf)
    out, lse = _kernel(q, k, v, causal, mask, scale)
    # The kernel reports 0 for a row that sees nothing; the logarithm of an empty sum is -inf.
    if mask is not None:
        lse = lse.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
    return out, lse


def _merged(p: Attention, q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Result:
    """One call a branch, merged by log-sum-exp."""
    k, v = (dense.per_query_head(t, p.num_heads) for t in (k, v))
    if not p.branches:
        parts = [_with_lse(q, k, v, causal, mask, p.logit_scale)]
    else:
        bias = mask if mask is not None and mask.is_floating_point() else None
        rest = dense.allowed(p)
        if rest is None:
            rest = torch.ones((1, 1, q.shape[2], k.shape[2]), dtype=torch.bool, device=q.device)
        parts = []
        for branch in reversed(p.branches):  # the last one to claim a pair has it
            here = rest
            if branch.where is not None:
                taken = dense.evaluate_mask(p, branch.where)
                here, rest = rest & taken, rest & ~taken
            bq = q if branch.q is None else _swap(q, p.qf[branch.q])
            bk = k if branch.k is None else _swap(k, dense.per_query_head(p.kf[branch.k], p.num_heads))
            own = here if bias is None else bias.masked_fill(~here, -torch.inf)
            own = own.expand(-1, -1, q.shape[2], k.shape[2])
            parts.append(_with_lse(bq, bk, v, False, own, p.logit_scale))
    out, total = merge(parts, p.sinks)
    return Result(out.to(q.dtype)[..., : p.v.shape[-1]], lse=total)


def _swap(folded: Tensor, own: Tensor) -> Tensor:
    """Replace the problem's own channels by a branch's, leaving the folded ones."""
    own = own.to(folded.dtype).expand(*folded.shape[:3], own.shape[-1])
    return torch.cat([own, folded[..., own.shape[-1] :]], -1)


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
        if term.factors is None and _coarse(p):
            return f"a bias without factors would be rounded to {p.q.dtype} there"
    if _needs_lse(p, request):
        what = "log-sum-exp" if request.lse else "several scores" if p.branches else "sinks"
        if p.q.device.type != "cpu":
            return f"{what}: the kernel's log-sum-exp is wired up on the CPU only"
        if torch.is_grad_enabled() and _needs_grad(p):
            return f"{what}: the kernel's log-sum-exp has no gradient"
        if request.dropout:
            return f"{what} under dropout"
        if min(p.q.shape[0], p.q.shape[2], p.k.shape[2]) == 0:
            return f"{what} of an empty problem"
        widths = [p.qf[b.q] for b in p.branches if b.q is not None] + [p.kf[b.k] for b in p.branches if b.k is not None]
        if any(t.shape[-1] != p.q.shape[-1] for t in widths):
            return "branches of different widths"
    if p.q.shape[2] == 0 or p.k.shape[2] == 0:
        return "an empty problem"
    if p.q.device.type != "cpu" and max(p.q.shape[-1], p.v.shape[-1]) > LARGEST_WIDTH:
        return f"heads wider than {LARGEST_WIDTH} leave the fused kernels"
    return None


def prefer_not(p: Attention, request: Request) -> str | None:
    """Say what would make it slow."""
    if any(isinstance(t, Pointwise) and t.factors is None for t in p.terms) and p.q.shape[2] > FEW_QUERIES:
        return "a bias without factors has to be held as a whole Q x K matrix"
    return None


def _needs_grad(p: Attention) -> bool:
    tensors = [p.q, p.k, p.v, *p.qf.values(), *p.kf.values()]
    return any(t.requires_grad for t in tensors) or (p.sinks is not None and p.sinks.requires_grad)


BACKEND = Backend("sdpa", run, why_not, prefer_not)
