"""What processes send each other, with gradients that go back the way the numbers came.

Each exchange takes all tensors of a layer at once, so that every process runs the same exchanges in the same order, forward
and backward; otherwise they would wait for each other forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from ropewalk.parallel.shard import Shard


def join(shard: Shard, tensors: Sequence[Tensor], dim: int) -> tuple[Tensor, ...]:
    """Return for each tensor the whole sequence, in its order, from what every process holds along ``dim``."""
    made: tuple[Tensor, ...] = _Join.apply(shard, dim, *tensors)
    return made


def shift(shard: Shard, step: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Hand what is held on to the next process and take what the one before held; axis 2 is that of the tokens.

    ``step`` counts the shifts from 0: what is held before it belongs to process (rank − step).
    """
    made: tuple[Tensor, ...] = _Shift.apply(shard, step, *tensors)
    return made


def after(out: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return ``out``, whose gradient passes through the exchange of ``tensors`` even where nothing of them was used.

    Under causality a process may see no key of those it was handed last; its neighbours still wait for its gradient.
    """
    made: Tensor = _After.apply(out, *tensors)
    return made


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Shard, dim: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.shard, ctx.dim = shard, dim
        whole = []
        longest = max(shard.lengths)
        for x in tensors:
            shape = list(x.shape)
            shape[dim] = longest
            own = x.new_zeros(shape)  # all are equally long on the way
            own.narrow(dim, 0, x.shape[dim]).copy_(x)
            parts = [torch.empty_like(own) for _ in range(shard.size)]
            dist.all_gather(parts, own, group=shard.group)
            laid = torch.cat([part.narrow(dim, 0, n) for part, n in zip(parts, shard.lengths, strict=True)], dim)
            whole.append(laid.index_select(dim, shard.back))
        ctx.mark_non_differentiable(*(t for t in whole if not t.is_floating_point()))
        return tuple(whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        own: list[Tensor | None] = []
        for grad, needed in zip(grads, ctx.needs_input_grad[2:], strict=True):
            if not needed:
                own.append(None)
                continue
            total = grad.contiguous().clone()  # each process used all tokens: the sum is what they are worth
            dist.all_reduce(total, group=ctx.shard.group)
            own.append(ctx.shard.take(total, ctx.dim))
        return None, None, *own


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Shard, step: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.shard, ctx.shapes = shard, [t.shape for t in tensors]
        arriving = shard.lengths[(shard.rank - step - 1) % shard.size]
        taken = [t.new_empty((*t.shape[:2], arriving, *t.shape[3:])) for t in tensors]
        _pass_on(shard, tensors, taken, 1)
        ctx.mark_non_differentiable(*(t for t in taken if not t.is_floating_point()))
        return tuple(taken)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        given = [g for g, need in zip(grads, needed, strict=True) if need]
        taken = [g.new_empty(s) for g, s, need in zip(grads, ctx.shapes, needed, strict=True) if need]
        _pass_on(ctx.shard, given, taken, -1)
        queue = iter(taken)
        return None, None, *(next(queue) if need else None for need in needed)


class _After(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, *tensors: Tensor) -> Tensor:
        ctx.like = [(t.shape, t.dtype) for t in tensors]
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        zeros = (
            grad.new_zeros(shape, dtype=dtype) if need else None
            for (shape, dtype), need in zip(ctx.like, ctx.needs_input_grad[1:], strict=True)
        )
        return grad, *zeros


def _pass_on(shard: Shard, given: Sequence[Tensor], taken: Sequence[Tensor], by: int) -> None:
    """Send to the process ``by`` places further on, and receive from the one as far behind."""

    def peer(rank: int) -> int:
        return rank % shard.size if shard.group is None else dist.get_global_rank(shard.group, rank % shard.size)

    there, here = peer(shard.rank + by), peer(shard.rank - by)
    ops = []
    for tag, (out, into) in enumerate(zip(given, taken, strict=True)):
        ops.append(dist.P2POp(dist.isend, out.contiguous(), there, shard.group, tag))
        ops.append(dist.P2POp(dist.irecv, into, here, shard.group, tag))
    for work in dist.batch_isend_irecv(ops) if ops else ():
        work.wait()
