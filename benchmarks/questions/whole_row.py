"""Causal attention with terms that read a whole row of logits, as "auto" runs it, forward. Memory may grow with S, but not
with S²: what is held at one time is to be bounded by blocks of queries.
"""

from __future__ import annotations

from collections.abc import Iterator

import ropewalk as rw

from .._question import Bench, Question, Row
from ._attention import HIDDEN, WIDTH, forward, heads, qkv, solved

SLUGS = {"contextual CoPE": "contextual_cope", "GRAPE-AP": "grape_ap"}
LENGTHS = (512, 2048, 4096)


def rows(bench: Bench) -> Iterator[Row]:
    lengths = bench.pick(LENGTHS, (32, 128))
    peaks: dict[str, list[float]] = {}
    for length in lengths:
        tensors = qkv(length)
        for name, slug in SLUGS.items():
            encoding = rw.build(slug, num_heads=heads(length), head_dim=WIDTH, hidden_size=HIDDEN)
            ours, reference = (forward(solved(encoding, length, backend=b), tensors) for b in ("auto", "dense"))
            for row in bench.against(reference, {f"{name}, S = {length}": ours}):
                yield row
                peaks.setdefault(name, []).append(row.memory / (length * heads(length)))
    for name, each in peaks.items():
        yield Row(f"{name}: peak memory a token, S = {lengths[-1]} to {lengths[0]}", each[-1] / each[0], target=1.5)


QUESTION = Question(
    title="Attention with contextual CoPE and other terms over whole rows",
    text=__doc__,
    yardstick="the reference, which holds all rows at once",
    rows=rows,
    why="""
    The whole matrix of logits is held, and a few copies of it: no backend of this version takes queries block by block.
    """,
)
