"""Linear attention by running sums, O(S) in time and memory for fixed widths.

    o_i = sum_{j <= i} <q_i, k_j> v_j / sum_{j <= i} <n_i, n_j>

computed in chunks: what came before a chunk is one matrix, what is inside is a small masked product.
"""

from __future__ import annotations

import torch

from ropewalk.backends import dense
from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core.attention import CAUSAL, Attention
from ropewalk.core.encoding import table_dtype

CHUNK = 128


def run(p: Attention, request: Request) -> Result:
    """Compute linear attention by chunks (causal) or by two sums (not)."""
    assert p.kernel is not None
    dtype, h = table_dtype(p.q), p.num_heads
    n_k = dense.per_query_head(p.kf[p.kernel.normaliser].to(dtype), h)
    n_q = p.qf[p.kernel.normaliser].to(dtype)
    q = p.q.to(dtype)
    k, v = (dense.per_query_head(t.to(dtype), h) for t in (p.k, p.v))
    if not p.causal:
        total = (n_q * n_k.sum(2, keepdim=True)).sum(-1, keepdim=True)
        return Result(dense.divide(q @ (k.transpose(-1, -2) @ v), total).to(p.q.dtype), lse=dense.log_of_sum(total))
    out, sums = [q.new_zeros(*q.shape[:2], 0, v.shape[-1])], [q.new_zeros(*q.shape[:2], 0, 1)]
    state = q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    weight = q.new_zeros(*k.shape[:2], n_k.shape[-1], 1)
    for start in range(0, q.shape[2], CHUNK):
        part = slice(start, start + CHUNK)
        qc, kc, vc, nq, nk = q[:, :, part], k[:, :, part], v[:, :, part], n_q[:, :, part], n_k[:, :, part]
        inside = (qc @ kc.transpose(-1, -2)).tril()
        norms = (nq @ nk.transpose(-1, -2)).tril()
        top = inside @ vc + qc @ state
        bottom = norms.sum(-1, keepdim=True) + nq @ weight
        out.append(dense.divide(top, bottom))
        sums.append(bottom)
        state = state + kc.transpose(-1, -2) @ vc
        weight = weight + nk.sum(2)[..., None]
    return Result(torch.cat(out, 2).to(p.q.dtype), lse=dense.log_of_sum(torch.cat(sums, 2)))


def why_not(p: Attention, request: Request) -> str | None:
    """Say what running sums cannot do."""
    if p.kernel is None:
        return "the problem is a softmax"
    if (reason := dense.why_not(p, request)) is not None:
        return reason
    masks = [m.name for m in p.all_masks() if m is not CAUSAL] + (["user"] if p.mask is not None else [])
    if masks:
        return f"running sums see every key so far, and there is a mask ({', '.join(masks)})"
    if p.causal and (p.where.order is not None or p.q.shape[2] != p.k.shape[2]):
        return "causal running sums need one query for each key, in order"
    if request.weights or request.dropout:
        return "running sums never hold the weights (asked for, or to be dropped)"
    return None


BACKEND = Backend("linear", run, why_not)
