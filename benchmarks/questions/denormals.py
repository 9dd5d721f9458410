"""The question before, asked in a process that does not flush denormal numbers. Weights far from the query underflow, and
processors take many times longer over such numbers. `torch.set_flush_denormal(True)` before the first parallel operation of a
process is the remedy; ropewalk never calls it for you.
"""

from __future__ import annotations

from collections.abc import Iterator

from .._question import Bench, Question, Row
from .low_rank import compared


def rows(bench: Bench) -> Iterator[Row]:
    for length in bench.pick((1024, 2048), (32,)):
        yield from compared(bench, length, ("ALiBi", "FoX", "GRAPE-A", "PaPE"))


QUESTION = Question(
    title="The same without flushing denormal numbers",
    text=__doc__,
    yardstick="causal `scaled_dot_product_attention` of the same q, k and v, not flushed either",
    rows=rows,
    why="""
    The exponentials of the softmax end in subnormal numbers wherever a bias falls steadily, as the plain attention of random
    vectors does not. No formula of the bias avoids them: the weights are that small.
    """,
    flush=False,
)
