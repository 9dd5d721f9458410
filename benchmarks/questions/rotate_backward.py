"""`apply_rotary` of q and k and the gradients of both. The backward pass is the rotation back: nothing but the tables
is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._question import Bench, Question, Row
from ._rotation import Case, cases


def rows(bench: Bench) -> Iterator[Row]:
    for dtype, short, target in ((torch.float32, "fp32", 2.0), (torch.bfloat16, "bf16", 4.0)):
        for c in cases(bench, dtype):
            yield from bench.against(twice(c), {f"{short} {c.name}": there_and_back(c)}, c.target(target))


def twice(c: Case):
    def run() -> None:
        made = c.clone()
        c.clone()
        del made  # alive until now, as a result is when its gradient comes

    return run


def there_and_back(c: Case):
    leaves = [x.clone().requires_grad_() for x in (c.q, c.k)]
    up = [torch.randn_like(x) for x in leaves]
    c = c._replace(q=leaves[0], k=leaves[1])

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(c.turn(), leaves, up)

    return run


QUESTION = Question(
    title="Rotate q and k, forward and backward",
    text=__doc__,
    yardstick="`clone()` of q and k, twice",
    rows=rows,
    why="""
    Both passes are the rotations of the tables above: what holds for one holds for two.
    """,
)
