"""Causal attention with `RoPE`, from q, k and v to the output: encoding and `attend`, eager. The tables are made once, as in
a model whose layers share positions. "With projections" puts both sides into a layer: 512 channels to q, k and v and back.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import ropewalk as rw

from .._question import Bench, Question, Row
from ._attention import HIDDEN, WIDTH, Attend, forward, forward_backward, heads, plain, qkv, solved

LENGTHS = (512, 2048, 8192)
TARGET, TARGET_FROM = 1.10, 2048


def rows(bench: Bench) -> Iterator[Row]:
    for dtype, short in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        for length in bench.pick(LENGTHS, (16,)):
            target = TARGET if length >= TARGET_FROM else None
            rope, tensors = solved(rw.RoPE(WIDTH), length), qkv(length, dtype)
            name = f"{short}, S = {length}"
            yield from bench.against(forward(plain, tensors), {f"{name}, forward": forward(rope, tensors)}, target)
            yield from bench.against(
                forward_backward(plain, tensors),
                {f"{name}, forward and backward": forward_backward(rope, tensors)},
                target,
            )
    yield from with_projections(bench)


def with_projections(bench: Bench) -> Iterator[Row]:
    length = bench.pick(2048, 16)
    x, count = torch.randn(1, length, HIDDEN), heads(length)
    into, back = nn.Linear(HIDDEN, 3 * count * WIDTH, bias=False), nn.Linear(count * WIDTH, HIDDEN, bias=False)

    def layer(attend: Attend) -> Attend:
        def call(x: Tensor) -> Tensor:
            q, k, v = into(x).unflatten(-1, (3, count, WIDTH)).movedim(2, 0).transpose(2, 3)
            return back(attend(q, k, v).transpose(1, 2).flatten(2))

        return call

    ours, theirs = layer(solved(rw.RoPE(WIDTH), length)), layer(plain)
    name = f"fp32, S = {length}, with projections"
    yield from bench.against(forward(theirs, (x,)), {f"{name}, forward": forward(ours, (x,))}, TARGET)
    yield from bench.against(
        forward_backward(theirs, (x,)), {f"{name}, forward and backward": forward_backward(ours, (x,))}, TARGET
    )


QUESTION = Question(
    title="Attention with RoPE",
    text=__doc__,
    yardstick="causal `scaled_dot_product_attention` of the same q, k and v",
    rows=rows,
    why="""
    Attention grows with S², the rotation with S: what is above 1 is the rotation of q and k as in the tables above, and
    shrinks with the length. In bfloat16 processors with matrix units are several times faster at the products and no
    faster at the rotation, so that its share is larger.
    """,
)
