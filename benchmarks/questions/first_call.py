"""What a fresh process waits for: an encoding is constructed and attention with it called for the first time, after plain
attention has started torch's threads. Each figure is the median over processes. "Compilers" counts the modules of TorchDynamo,
Inductor and Triton that the first call brought in: eager encodings compile nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from .._question import Bench, Question, Row
from .._timing import quiet, spread

ENCODINGS = {"RoPE": "rw.RoPE(64)", "ALiBi": "rw.ALiBi(8)", "T5": "rw.T5(8)"}

PROGRAM = """
import json, statistics, sys, time
import torch
import torch.nn.functional as F
import ropewalk as rw
rw.Attention, rw.attend, rw.Positions, {encoding}
q, k, v = (torch.randn(1, 8, {length}, 64) for _ in range(3))
with torch.no_grad():
    for _ in range(3):
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
    before = set(sys.modules)
    times = [time.perf_counter()]
    encoding = {encoding}
    for _ in range({calls}):
        rw.attend(encoding(rw.Attention(q, k, v)))
        times.append(time.perf_counter())
new = [n for n in set(sys.modules) - before if n.split(".")[0] == "triton" or n.startswith(("torch._dynamo", "torch._inductor"))]
took = [b - a for a, b in zip(times, times[1:])]
print(json.dumps([took[0], statistics.median(took[2:]), len(new)]))
"""


def rows(bench: Bench) -> Iterator[Row]:
    length, processes = bench.pick((2048, 3), (32, 1))
    for name in bench.pick(tuple(ENCODINGS), ("RoPE",)):
        alone = quiet(bench.patience)
        got = [fresh_process(ENCODINGS[name], length) for _ in range(processes)]
        first, later = ([row[i] * 1e3 for row in got] for i in (0, 1))
        ratio = [a / b for a, b in zip(first, later, strict=True)]
        middle = spread(ratio) if len(ratio) > 1 else None
        yield Row(
            f"{name}, S = {length}",
            middle.median if middle else ratio[0],
            middle.low if middle else None,
            middle.high if middle else None,
            milliseconds=sorted(first)[len(first) // 2],
            alone=alone,
        )
        yield Row(f"{name}: modules of compilers", float(max(row[2] for row in got)), unit="", target=0.0)


def fresh_process(encoding: str, length: int) -> tuple[float, float, int]:
    """Return the seconds of construction and first call, those of a later call, and how many compiler modules came."""
    program = PROGRAM.format(encoding=encoding, length=length, calls=9)
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    first, later, modules = json.loads(done.stdout)
    return first, later, modules


QUESTION = Question(
    title="Construction and first call",
    text=__doc__,
    yardstick="a later call in the same process",
    rows=rows,
    why="""
    Something in the first call imported a compiler; it has to wait until a compiled backend is asked for.
    """,
)
