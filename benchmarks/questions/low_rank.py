"""Causal attention with terms that are sums of products, folded into a few channels or into a row of numbers, eager. Gradients
are those of q, k, v and of what the encoding learns; denormal numbers are flushed to zero (the next question is what they
cost otherwise). PaPE has places of two axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

import ropewalk as rw

from .._question import Bench, Question, Row
from ._attention import HIDDEN, WIDTH, forward, forward_backward, heads, plain, qkv, solved

LENGTHS = (1024, 2048, 8192)
TARGET = 1.25

ENCODINGS: dict[str, Callable[[int], rw.Encoding]] = {
    "ALiBi": rw.ALiBi,
    "FoX": partial(rw.FoX, hidden_size=HIDDEN),
    "GRAPE-A": lambda n: rw.build("grape_a_qk", num_heads=n, head_dim=WIDTH, hidden_size=HIDDEN),
    "GAPE": lambda n: rw.GAPE(WIDTH, n, context_length=2048),
    "PaPE": lambda n: rw.PaPE(HIDDEN, n),
}


def made(name: str, length: int) -> tuple[rw.Encoding, rw.Positions | None]:
    """Return an encoding and the positions that it wants, None: plain ones."""
    if name != "PaPE":
        return ENCODINGS[name](heads(length)), None
    cell = torch.arange(length)
    return ENCODINGS[name](heads(length)), rw.Positions(torch.stack((cell // 32, cell % 32), -1)[None])


def rows(bench: Bench) -> Iterator[Row]:
    extra: dict[tuple[str, str], list[float]] = {}
    lengths = bench.pick(LENGTHS, (32, 64))
    for length in lengths:
        for row, key in compared(bench, length, tuple(ENCODINGS)):
            yield row
            extra.setdefault(key, []).append((row.memory - row.yardstick_memory) / (length * heads(length)))
    for (name, way), each in extra.items():
        # Memory that grows with S alone is the same for every token at every length.
        growth = each[-1] / each[0] if each[0] > 0 else float(each[-1] > 0)
        yield Row(
            f"{name}, {way}: memory beyond plain attention a token, S = {lengths[-1]} to {lengths[0]}",
            growth,
            target=1.1,
        )


def compared(bench: Bench, length: int, names: tuple[str, ...]) -> Iterator[tuple[Row, tuple[str, str]]]:
    """Compare encodings at one length, each row with what it is of."""
    tensors = qkv(length)
    calls = {}
    for name in names:
        encoding, positions = made(name, length)
        calls[name] = solved(encoding, length, positions), list(encoding.parameters())
    ways = {
        "forward": lambda call, learned: forward(call, tensors),
        "forward and backward": lambda call, learned: forward_backward(call, tensors, learned),
    }
    for way, call in ways.items():
        candidates = {f"{name}, S = {length}, {way}": call(*calls[name]) for name in names}
        for name, row in zip(names, bench.against(call(plain, ()), candidates, TARGET), strict=True):
            yield row, (name, way)


QUESTION = Question(
    title="Attention with ALiBi, FoX and other sums of products",
    text=__doc__,
    yardstick="causal `scaled_dot_product_attention` of the same q, k and v",
    rows=rows,
    why="""
    Folding widens q, k and v from 64 channels to 72, an eighth more arithmetic in every product of the attention, and copies all
    three; what the gates need (a projection, a sum over the tokens) comes on top, and backward all of it once more. Both
    weigh less the longer the sequence.
    """,
)
