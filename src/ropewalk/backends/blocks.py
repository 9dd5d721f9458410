"""Some queries after the other: what holds a Q x K matrix holds a few of its rows at a time.

For terms that fused attention cannot take. Each block is a problem of its own, with the keys that its queries may see
and no others, and is computed by `sdpa` or `dense`. Memory is that of a block at any length, also with gradients, for
which a block is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ropewalk.backends import dense, sdpa
from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core.attention import CAUSAL, Attention, Row
from ropewalk.core.positions import ORDER, Positions

BLOCK = 1 << 20
"""Logits of a block, over rows and heads: on CPUs they stay in the caches between the operations on them."""

FEWEST = 16
"""Queries of a block at least, however many keys there are."""


def run(p: Attention, request: Request) -> Result:
    """Compute the problem block by block."""
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(p))
    again = learns and not torch._C._are_functorch_transforms_active()
    outs, lses = [], []
    for block in _blocks(p):
        parts = checkpoint(_part, block, request, use_reentrant=False) if again else _part(block, request)
        out, lse = cast("tuple[Tensor, Tensor | None]", parts)
        outs.append(out)
        lses.append(lse)
    return Result(torch.cat(outs, 2), lse=torch.cat(cast("list[Tensor]", lses), 2) if request.lse else None)


def _part(p: Attention, request: Request) -> tuple[Tensor, Tensor | None]:
    features = (*p.qf.values(), *p.kf.values())
    held = torch.is_grad_enabled() and any(
        t.requires_grad for t in features
    )  # fused kernels have no gradient for a bias
    fused = not held and sdpa.why_not(p, request) is None
    result = sdpa.run(p, request) if fused else dense.run(p, request)
    return result.out, result.lse


def _tensors(p: Attention) -> Iterator[Tensor]:
    yield from (p.q, p.k, p.v, *p.qf.values(), *p.kf.values())
    if p.sinks is not None:
        yield p.sinks


def _blocks(p: Attention) -> Iterator[Attention]:
    queries, keys = p.q.shape[2], p.k.shape[2]
    rows = max(FEWEST, BLOCK // max(1, p.q.shape[0] * p.num_heads * keys))
    index = torch.arange(queries, device=p.q.device)
    p = p.replace(x=None, x_kv=None)
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        yield _with_keys(p.select_queries(index[start:stop]), *_seen(p, start, stop))


def _seen(p: Attention, start: int, stop: int) -> tuple[int, int]:
    """Return the stretch of keys outside which the queries ``start:stop`` see none, where that is plain arithmetic."""
    keys = p.k.shape[2]
    if p.product is not None or p.where.order is not None or ORDER in p.where.key.columns:
        return 0, keys
    before = keys - p.q.shape[2]  # the queries are the last keys
    masks = p.all_masks()
    first, last = 0, keys
    if CAUSAL in masks:
        last = min(last, before + stop)
    if p.window is not None and not any(m.name == "window" for m in p.masks):
        last = min(last, before + stop - 1 + p.window)
        if not any(isinstance(term, Row) for term in p.terms):
            first = max(first, before + start - p.window + 1)
    return (first, last) if first < last else (0, keys)


def _with_keys(p: Attention, first: int, last: int) -> Attention:
    if (first, last) == (0, p.k.shape[2]):
        return p
    keys = p.where.key.slice(first, last)
    if first:
        keys = keys.with_columns(**{ORDER: torch.arange(first, last, device=p.k.device)[None]})

    def cut(t: Tensor) -> Tensor:
        return t[:, :, first:last]

    changes: dict[str, Any] = {"k": cut(p.k), "v": cut(p.v), "kf": {name: cut(t) for name, t in p.kf.items()}}
    if p.mask is not None:
        changes["mask"] = p.mask[..., first:last]
    return p.replace(positions=Positions.pair(p.where.query, keys, p.where.order), **changes)


def why_not(p: Attention, request: Request) -> str | None:
    """Say what cannot be done a few queries at a time."""
    if p.kernel is not None:
        return "linear attention holds no matrix of logits"
    if p.product is not None and p.product.rows_coupled:
        return "the scores couple the rows"
    if request.weights:
        return "the weights of all queries were asked for"
    if p.q.shape[2] == 0 or p.k.shape[2] == 0:
        return "an empty problem"
    return dense.why_not(p, request)


def prefer_not(p: Attention, request: Request) -> str | None:
    """Say when one block is enough."""
    if p.q.shape[0] * p.num_heads * p.q.shape[2] * p.k.shape[2] <= BLOCK or p.q.shape[2] <= FEWEST:
        return "the whole matrix is no larger than a block"
    if torch.compiler.is_compiling():
        return "a compiled graph would hold each block anew"
    return None


BACKEND = Backend("blocks", run, why_not, prefer_not)
