"""Causal attention with terms that are sums of products, folded into a few channels or into a row of numbers, eager. Gradients
are those of q, k, v and of what the encoding learns; denormal numbers are flushed to zero (the next question is what they
cost otherwise). PaPE has places of two axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

import ropewalk as rw

from .._memory import memory
from .._question import Bench, Call, Question, Row
from ._attention import HIDDEN, WIDTH, Attend, forward, forward_backward, heads, plain, qkv, solved

LENGTHS = (1024, 2048, 8192)
TARGET = 1.25

ENCODINGS: dict[str, Callable[[int], rw.Encoding]] = {
    "ALiBi": rw.ALiBi,
    "FoX": partial(rw.FoX, hidden_size=HIDDEN),
    "GRAPE-A": lambda n: rw.build("grape_a_qk", num_heads=n, head_dim=WIDTH, hidden_size=HIDDEN),
    "GAPE": lambda n: rw.GAPE(WIDTH, n, context_length=2048),
    "PaPE": lambda n: rw.PaPE(HIDDEN, n),
}


def made(name: str, length: int) -> tuple[Attend, list[nn.Parameter]]:
    """Return attention with an encoding, and what it learns."""
    encoding, positions = ENCODINGS[name](heads(length)), None
    if name == "PaPE":
        cell = torch.arange(length)
        positions = rw.Positions(torch.stack((cell // 32, cell % 32), -1)[None])
    return solved(encoding, length, positions), list(encoding.parameters())


def rows(bench: Bench) -> Iterator[Row]:
    for length in bench.pick(LENGTHS, (32,)):
        yield from compared(bench, length)
    yield from compared(bench, bench.pick(2048, 32), dtype=torch.bfloat16, short="bf16 ")
    yield from growth(*bench.pick((4096, 8192), (32, 64)))


def compared(
    bench: Bench,
    length: int,
    names: tuple[str, ...] = tuple(ENCODINGS),
    dtype: torch.dtype = torch.float32,
    short: str = "",
) -> Iterator[Row]:
    """Compare encodings at one length, forward, then with backward."""
    for way, call in calls(length, dtype).items():
        candidates = {f"{short}{name}, S = {length}, {way}": call(*made(name, length)) for name in names}
        yield from bench.against(call(plain), candidates, TARGET)


def calls(length: int, dtype: torch.dtype = torch.float32) -> dict[str, Callable[..., Call]]:
    """Return the two ways to run attention on the same q, k and v."""
    tensors = qkv(length, dtype)
    return {
        "forward": lambda attend, learned=(): forward(attend, tensors),
        "forward and backward": lambda attend, learned=(): forward_backward(attend, tensors, learned),
    }


def growth(short: int, long: int) -> Iterator[Row]:
    """Say how memory beyond that of plain attention grows, a token: not at all if it is proportional to S."""
    ways = {length: calls(length) for length in (short, long)}
    for way in ways[long]:
        for name in ENCODINGS:
            extra = {
                length: (memory(of[way](*made(name, length))).peak - memory(of[way](plain)).peak) / length
                for length, of in ways.items()
            }
            grown = extra[long] / extra[short] if extra[short] > 0 else float(extra[long] > 0)
            yield Row(f"{name}, {way}: extra memory a token, S = {long} to {short}", grown, target=1.1)


QUESTION = Question(
    title="Attention with ALiBi, FoX and other sums of products",
    text=__doc__,
    yardstick="causal `scaled_dot_product_attention` of the same q, k and v",
    rows=rows,
    why="""
    Folding widens q, k and v from 64 channels to 72 (in bfloat16, where a factor is split into three parts, to 88), an eighth
    more arithmetic in every product of the attention, and copies all three. What the coefficients need (projections, PaPE's
    fifty parabolas a query) comes on top, and backward all of it once more. What grows with S alone weighs less the longer the
    sequence.
    """,
)
