"""What the questions about attention share: a problem of some heads of width 64, plain attention, and the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ropewalk as rw

WIDTH, HIDDEN = 64, 512

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def heads(length: int) -> int:
    """Eight heads; two where eight would take seconds a call. A ratio does not depend on it."""
    return 8 if length <= 2048 else 2


def qkv(length: int, dtype: torch.dtype = torch.float32, count: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q, k and v of ``count`` heads, or as many as `heads` says."""
    q, k, v = (torch.randn(1, count or heads(length), length, WIDTH).to(dtype) for _ in range(3))
    return q, k, v


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention without positions."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def solved(encoding: rw.Encoding, length: int, positions: rw.Positions | None = None, backend: str = "auto") -> Attend:
    """Return attention with an encoding; positions are made once, as by a model for all its layers."""
    where = encoding.draw(rw.Positions.arange(length) if positions is None else positions)
    x = torch.randn(1, length, HIDDEN)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rw.attend(encoding(rw.Attention(q, k, v, where, x=x)), backend=backend)

    return call


def forward(call: Attend, tensors: tuple[Tensor, ...]) -> Callable[[], object]:
    """Return a call without gradients."""

    def run() -> Tensor:
        with torch.no_grad():
            return call(*tensors)

    return run


def forward_backward(
    call: Attend, tensors: tuple[Tensor, ...], parameters: Iterable[nn.Parameter] = ()
) -> Callable[[], object]:
    """Return a call with gradients for q, k, v and for what the encoding learns."""
    learned = list(parameters)

    def run() -> tuple[Tensor, ...]:
        inputs = [t.detach().requires_grad_() for t in tensors]
        out = call(*inputs)
        return torch.autograd.grad(out, [*inputs, *learned], out)

    return run
