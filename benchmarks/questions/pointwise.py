"""Causal attention with terms that are any function of the two positions, as "auto" runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ropewalk as rw

from .._question import Bench, Question, Row
from ._attention import HIDDEN, WIDTH, forward, forward_backward, heads, plain, qkv, solved

TARGET = 2.5

SLUGS = {
    "T5": "t5",
    "FIRE": "fire",
    "KERPLE, logarithmic": "kerple_log",
    "KERPLE, power": "kerple_power",
    "ALiBi at random positions": "randomized_alibi",
    "clipped relative": "clipped_relative",
    "wavelets": "wavelet_pe",
}
LONG = ("T5", "FIRE")


def rows(bench: Bench) -> Iterator[Row]:
    short, long = bench.pick((1024, 2048), (16, 32))
    yield from forwards(bench, short, tuple(SLUGS))
    yield from forwards(bench, long, LONG)
    tensors = qkv(short)
    made = {name: build(name, short) for name in LONG}
    backward = {
        f"{name}, S = {short}, forward and backward": forward_backward(solved(e, short), tensors, e.parameters())
        for name, e in made.items()
    }
    yield from bench.against(forward_backward(plain, tensors), backward)


def build(name: str, length: int) -> rw.Encoding:
    shape = {"num_heads": heads(length), "head_dim": WIDTH, "hidden_size": HIDDEN, "max_length": 2 * length}
    return rw.build(SLUGS[name], **shape)


def forwards(bench: Bench, length: int, names: tuple[str, ...]) -> Iterator[Row]:
    tensors = qkv(length)
    calls: dict[str, Callable[[], object]] = {
        f"{name}, S = {length}, forward": forward(solved(build(name, length), length), tensors) for name in names
    }
    yield from bench.against(forward(plain, tensors), calls, TARGET)


QUESTION = Question(
    title="Attention with T5's bias, FIRE and other functions of two positions",
    text=__doc__,
    yardstick="causal `scaled_dot_product_attention` of the same q, k and v",
    rows=rows,
    why="""
    The fused kernel for CPUs skips what causality hides and never holds the logits; with a bias it takes a mask, in blocks of
    queries with the keys they see. The masked kernel alone takes 1.3 to 1.6 times the causal one, and the block's bias is written
    and read besides. A bias of distances alone is evaluated once a distance; FIRE's depends on both places, and is a sum over
    the 32 hidden units of its network for each pair.
    """,
)
