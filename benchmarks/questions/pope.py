"""Causal attention with `PoPE`, whose q and k are twice as wide, against plain attention of that width: what is above 1 is
softplus, cosines and sines of q and k. Eager.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

import ropewalk as rw

from .._question import Bench, Question, Row
from ._attention import WIDTH, forward, forward_backward, heads, plain, qkv, solved

TARGET, TARGET_FROM = 1.15, 2048


def rows(bench: Bench) -> Iterator[Row]:
    for length in bench.pick((512, 2048, 8192), (16,)):
        encoding = rw.PoPE(WIDTH, heads(length))
        tensors, call = qkv(length), solved(encoding, length)
        wide = [torch.cat((t, t), -1) for t in tensors]
        target = TARGET if length >= TARGET_FROM else None
        yield from bench.against(
            forward(plain, tuple(wide)), {f"S = {length}, forward": forward(call, tensors)}, target
        )
        yield from bench.against(
            forward_backward(plain, tuple(wide)),
            {f"S = {length}, forward and backward": forward_backward(call, tensors, encoding.parameters())},
            target,
        )


QUESTION = Question(
    title="Attention with PoPE",
    text=__doc__,
    yardstick="causal `scaled_dot_product_attention` at width 128",
    rows=rows,
    why="""
    softplus of q and k is an exponential and a logarithm a channel, and the products with cosine and sine are four passes over
    tensors of twice the width; it is work that grows with S, so that the ratio falls with the length.
    """,
)
