"""Causal attention whose near and far keys are turned by other angles, under one softmax: one call of the fused kernel a
score, merged by log-sum-exp. The window is a quarter of the sequence; forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ropewalk as rw

from .._question import Bench, Question, Row
from ._attention import WIDTH, forward, plain, qkv, solved

TARGET, TARGET_FROM = 2.2, 2048


def encodings(length: int) -> dict[str, Callable[[], rw.Encoding]]:
    quarter = length // 4
    return {
        "STRING": lambda: rw.STRINGShifted(WIDTH, shift=quarter, local=quarter // 4),
        "ReRoPE": lambda: rw.ReRoPE(WIDTH, window=quarter),
        "SelfExtend": lambda: rw.SelfExtend(WIDTH, group=4, window=quarter),
    }


def rows(bench: Bench) -> Iterator[Row]:
    for length in bench.pick((512, 2048, 4096), (32,)):
        tensors = qkv(length)
        calls = {
            f"{name}, S = {length}": forward(solved(make(), length), tensors)
            for name, make in encodings(length).items()
        }
        yield from bench.against(forward(plain, tensors), calls, TARGET if length >= TARGET_FROM else None)


QUESTION = Question(
    title="Attention with STRING and other pairs of scores",
    text=__doc__,
    yardstick="causal `scaled_dot_product_attention` of the same q, k and v",
    rows=rows,
    why="""
    Each score is a call with a mask that leaves its own pairs, in blocks of queries with the keys they see. The fused kernel
    skips hidden pairs where causality says so and not where a mask does: each of two calls does more than one causal one, the
    masks are computed, written and read, and the halves are merged. The kernel that takes one product where a tile is wholly
    near or far is for CUDA devices.
    """,
)
