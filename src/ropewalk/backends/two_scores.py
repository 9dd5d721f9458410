"""Two scores chosen by distance under one softmax (ReRoPE, SelfExtend, STRING, HiRoPE), by a Triton kernel.

FlexAttention changes a score and cannot make a second one; the reference holds both matrices. The kernel holds neither.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ropewalk.backends.merge import merge
from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core import rotation
from ropewalk.core.attention import CAUSAL, DOCUMENTS, VALID, AtLeast, Attention, Branch, Coordinate, Mask

Sides = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def run(p: Attention, request: Request) -> Result:
    """Compute the problem by one kernel; sinks are merged by log-sum-exp."""
    from ropewalk.backends import two_scores_triton as kernel

    near, far = p.branches
    where = cast("Mask", far.where)
    columns = kernel.columns_of(p.q.dtype, max(p.q.shape[-1], p.v.shape[-1]))
    names = {m.name for m in p.all_masks()}
    q, k = _of(p, near)
    far_q, far_k = _of(p, far)
    out, lse = kernel.two_scores(
        *(q, far_q, k, None if far.k == near.k else far_k, p.v),
        *_sides(p, cast("Coordinate", where.k[0]), columns),
        cast("AtLeast", where.fn).distance,
        p.logit_scale,
        p.softcap,
        CAUSAL.name in names,
        p.window if "window" in names else None,
        DOCUMENTS.name in names,
        VALID.name in names,
    )
    if p.sinks is not None:
        out, lse = merge([(out, lse)], p.sinks)
    return Result(out, lse=lse)


def _of(p: Attention, branch: Branch) -> tuple[Tensor, Tensor]:
    """Return the queries and the keys of one score, (B, H, Q, D) and (B, H_kv, K, D) in the dtype of q."""
    q = p.q if branch.q is None else p.qf[branch.q].to(p.q.dtype).expand(p.q.shape)
    k = p.k if branch.k is None else p.kf[branch.k].to(p.q.dtype).expand(p.k.shape)
    return q, k


def _sides(p: Attention, place: Coordinate, columns: int) -> Sides:
    """Return what the kernel reads of the tokens: coordinates, whole numbers, and the ranges of tiles of keys.

    The same for all layers, so it is made once.
    """
    from ropewalk.backends.two_scores_triton import tile_facts

    def make() -> Sides:
        query, key = p.where.query.columns, p.where.key.columns
        order_q, order_k = p.where.index().long(), p.where.key_index().long()
        zero = order_k.new_zeros(())
        documents = "document" in query and "document" in key
        document_q, document_k = (side["document"].long() if documents else zero for side in (query, key))
        valid = key.get("valid")
        places = [p.read(place, side)[:, 0, :, 0].double() for side in ("q", "k")]
        rows = max(t.shape[0] for t in (*places, order_q, order_k, *query.values(), *key.values()))
        facts_q, facts_k = (
            torch.stack([t.expand(rows, n) for t in ts], 1)
            for n, ts in (
                (p.q.shape[2], (order_q, document_q)),
                (p.k.shape[2], (order_k, document_k, zero if valid is None else valid.long())),
            )
        )
        place_q, place_k = (t.expand(rows, -1).contiguous() for t in places)
        tiles = tile_facts(place_k, facts_k[:, 0], facts_k[:, 1], valid, columns).contiguous()
        return place_q, place_k, facts_q, facts_k, tiles

    if any(m.learned for m in place.chain):
        return make()
    return p.where.memo(lambda: ("two scores", *(m.key for m in place.chain), columns), make)


def runs_on(device: torch.device) -> bool:
    """Whether Triton's kernels run on a device."""
    return device.type == "cuda" and _compiles_on(device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
def _compiles_on(device: torch.device) -> bool:
    return rotation._kernel(device) is not None


def why_not(p: Attention, request: Request) -> str | None:
    """Say what the kernel cannot do here."""
    if (reason := _not_two_scores(p)) is not None:
        return reason
    if not runs_on(p.q.device):
        return f"it runs on CUDA devices with Triton, not on {p.q.device.type}" + (
            ", where Triton is missing or does not run" if p.q.device.type == "cuda" else ""
        )
    if p.q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it computes in float32 and below, not {p.q.dtype}"
    if p.terms:
        return "there are further terms"
    masks = [m.name for m in p.all_masks() if m in p.masks] + (["user"] if p.mask is not None else [])
    if masks:
        return f"it knows causality, windows, documents and padding, and there is another mask ({', '.join(masks)})"
    if request.weights or request.dropout:
        return "it never holds the weights (asked for, or to be dropped)"
    tensors = [p.q, p.k, p.v, *p.qf.values(), *p.kf.values(), *([] if p.sinks is None else [p.sinks])]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "it has no backward"
    if min(*p.q.shape[:3], *p.k.shape[2:], p.v.shape[-1]) == 0:
        return "an empty problem"
    if (reason := _too_large(p)) is not None:
        return reason
    return None


def _not_two_scores(p: Attention) -> str | None:
    if p.kernel is not None or p.product is not None or len(p.branches) != 2:
        return "it is for two scores under one softmax"
    near, far = p.branches
    where = far.where
    if near.where is not None or where is None or not isinstance(where.fn, AtLeast):
        return "the scores are not chosen by AtLeast(distance)"
    if where.q != where.k or len(where.q) != 1 or not isinstance(where.q[0], Coordinate):
        return "the distance is not one of coordinates"
    if any(p.read(where.q[0], side).shape[-1] != 1 for side in ("q", "k")):
        return "the coordinates have several axes"
    widths = [p.qf[b.q] for b in p.branches if b.q is not None] + [p.kf[b.k] for b in p.branches if b.k is not None]
    if any(t.shape[-1] != p.q.shape[-1] for t in widths):
        return "scores of different widths"
    heads = [p.kf[b.k].shape[1] for b in p.branches if b.k is not None]
    if any(h not in (1, p.num_kv_heads) for h in heads):
        return "keys of one score that are one for each query head"
    return None


def _too_large(p: Attention) -> str | None:
    from ropewalk.backends.two_scores_triton import LARGEST_GROUP, LARGEST_TILE, LARGEST_WIDTH

    size, group = max(p.q.shape[-1], p.v.shape[-1]) * p.q.dtype.itemsize, p.num_heads // p.num_kv_heads
    if size > LARGEST_WIDTH:
        return f"heads wider than {LARGEST_WIDTH // 2}, in float32 {LARGEST_WIDTH // 4}, leave the memory of a block"
    if group > LARGEST_GROUP or group * size > LARGEST_TILE:
        return f"too many query heads share a key head ({group}): they are rows of one block"
    return None


BACKEND = Backend("triton", run, why_not)
