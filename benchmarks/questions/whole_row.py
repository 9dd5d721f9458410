"""Causal attention with terms that read a whole row of logits, as "auto" runs it, forward. Memory may grow with S, but not
with S²: what is held at one time is to be bounded by blocks of queries.
"""

from __future__ import annotations

from collections.abc import Iterator

import ropewalk as rw

from .._memory import memory
from .._question import Bench, Call, Question, Row
from ._attention import HIDDEN, WIDTH, forward, qkv, solved

SLUGS = {"contextual CoPE": "contextual_cope", "GRAPE-AP": "grape_ap"}
HEADS = 2


def rows(bench: Bench) -> Iterator[Row]:
    few, some, many = bench.pick((512, 2048, 4096), (32, 64, 128))
    for name in SLUGS:
        for length in (few, some):
            yield from bench.against(call(name, length, "dense"), {f"{name}, S = {length}": call(name, length, "auto")})
        grown = (memory(call(name, many, "auto")).peak / many) / (memory(call(name, few, "auto")).peak / few)
        yield Row(f"{name}: peak memory a token, S = {many} to {few}", grown, target=1.5)


def call(name: str, length: int, backend: str) -> Call:
    encoding = rw.build(SLUGS[name], num_heads=HEADS, head_dim=WIDTH, hidden_size=HIDDEN)
    return forward(solved(encoding, length, backend=backend), qkv(length, count=HEADS))


QUESTION = Question(
    title="Attention with contextual CoPE and other terms over whole rows",
    text=__doc__,
    yardstick="the `dense` backend, which is the readable reference",
    rows=rows,
    why="""
    A block of queries is taken at a time with the keys it sees, so that memory is that of a block; but the logits of a block
    are written and read some ten times in float32 (gates, their sums along the row, two gathers, the softmax), where fused
    attention never writes them.
    """,
)
