"""`rotary_tables` of positions 0 … 999,999 with 64 pairs, float32 from float64 angles, and its error against forty
digits. The result itself is 488 MiB.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from ropewalk import functional as RF

from .._memory import memory
from .._question import Bench, Question, Row
from .._timing import spread, undisturbed

WIDTH, BASE = 128, 10_000
TWO_PI = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def rows(bench: Bench) -> Iterator[Row]:
    count = bench.pick(1_000_000, 1000)
    positions = torch.arange(count)

    def make() -> tuple[Tensor, Tensor]:
        return RF.rotary_tables(positions, head_dim=WIDTH, base=BASE)

    (first, alone) = timed(make), True
    yield Row("first use in a process", first, unit="s", target=0.5)
    took, alone = undisturbed(lambda: [timed(make) for _ in range(bench.pick(7, 3))], bench.patience)
    seconds = spread(took)
    used = memory(make)
    yield Row("again", seconds.median, seconds.low, seconds.high, unit="s", target=0.5, memory=used.peak, alone=alone)
    half = memory(lambda: RF.rotary_tables(positions[: count // 2], head_dim=WIDTH, base=BASE))
    yield Row(
        "peak memory a position, all to half of them", used.peak / count / (half.peak / (count // 2)), target=1.05
    )
    cos, sin = make()
    yield Row("largest error", largest_error(cos, sin, bench.pick(200, 10)), unit="", target=1e-7)


def timed(make) -> float:
    start = time.perf_counter()
    make()
    return time.perf_counter() - start


def largest_error(cos: Tensor, sin: Tensor, sample: int) -> float:
    """Compare with angles of forty digits, at the last positions and at some in between."""
    last, worst = cos.shape[0] - 1, 0.0
    with localcontext() as context:
        context.prec = 40
        frequencies = [Decimal(BASE) ** (-Decimal(2 * i) / WIDTH) for i in range(WIDTH // 2)]
        for n in range(sample):
            position = last - n * (last // sample)
            for i, frequency in enumerate(frequencies):
                angle = float(position * frequency % TWO_PI)
                worst = max(worst, abs(float(cos[position, i]) - math.cos(angle)))
                worst = max(worst, abs(float(sin[position, i]) - math.sin(angle)))
    return worst


QUESTION = Question(
    title="Tables for a million positions",
    text=__doc__,
    yardstick="",
    rows=rows,
    why="""
    Half a gigabyte of fresh memory: finding its pages takes as long as adding up the angles (cosines and sines of a few
    thousand positions are multiplied in float64). The next calls with the same positions in a model take nothing: tables are
    kept with the positions.
    """,
)
