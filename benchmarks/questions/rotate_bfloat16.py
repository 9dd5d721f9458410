"""The same in bfloat16. The arithmetic is float32, rounded once: widened block by block, since eager PyTorch has no
operation that multiplies bfloat16 by float32 without rounding first. The last rows let `torch.compile` fuse
everything into one pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .._question import Bench, Question, Row, absent
from ._rotation import PAIRINGS, case, cases, without_gradients

EAGER = {"interleaved": 5.0, "half": 6.2}
"""What the eager form cost when it was found; one head after the other in a float32 scratch costs 5.2 and 7.2."""
COMPILED = 1.5


def rows(bench: Bench) -> Iterator[Row]:
    for c in cases(bench, torch.bfloat16):
        yield from bench.against(c.clone, {c.name: without_gradients(c.turn)}, c.target(EAGER[c.pairing]))
    for pairing in PAIRINGS:
        yield from compiled(bench, pairing)


def compiled(bench: Bench, pairing: str) -> Iterator[Row]:
    c = case(8192, torch.bfloat16, pairing)
    name = f"{c.name}, torch.compile"
    if bench.tiny:
        yield absent(name, "compiles for half a minute: left out of a tiny run")
        return
    call = without_gradients(torch.compile(c.turn, dynamic=False))
    try:
        call()
    except Exception as error:  # no C++ compiler, or one that inductor does not like
        yield absent(name, f"does not compile here ({type(error).__name__})")
        return
    yield from bench.against(c.clone, {name: call}, COMPILED)


QUESTION = Question(
    title="Rotate q and k, bfloat16",
    text=__doc__,
    yardstick="`clone()` of q and k",
    rows=rows,
    why="""
    Widening, turning and rounding are passes of their own in eager mode, and the float32 copy is twice the size
    of the tensor; in blocks these passes stay in the cache, where each still costs about what clone() costs.
    Where that is too much, compile the region that rotates.
    """,
)
