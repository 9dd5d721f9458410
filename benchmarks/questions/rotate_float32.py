"""`apply_rotary` of q and k, (1, 8, S, 64) each, on ready tables, forward, out of place, eager. A clone has to find
fresh memory too, and costs up to twice a `copy_` for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .._question import Bench, Question, Row
from ._rotation import cases, without_gradients


def rows(bench: Bench) -> Iterator[Row]:
    for c in cases(bench, torch.float32):
        yield from bench.against(c.clone, {c.name: without_gradients(c.turn)}, c.target(1.5))


QUESTION = Question(
    title="Rotate q and k, float32",
    text=__doc__,
    yardstick="`clone()` of q and k",
    rows=rows,
    why="""
    Interleaved pairs are one complex product: one pass. For halves eager PyTorch has no operation that reads both
    halves of a head and writes both; product, and two fused multiply-adds over half the channels each, are two
    passes over the result, the second of them in the cache. At S = 512 clone() itself stays in the cache and
    takes memory that is not fresh.
    """,
)
