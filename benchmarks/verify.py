"""Plants faults in a correct rotation and lets `rw.verify` find them: ``python benchmarks/verify.py [--full] [--write]``.

Each fault alone and in pairs with others, at random sizes and dtypes (tests/analysis/verify/faults.py), and correct rotations,
which must pass. A fault counts where its output differs from the correct one of the same arithmetic by more than rounding, 12
units of the dtype. For pairs, either fault may be named first. Counts by the cause that `Finding.cause` gives. ``--write`` puts
the table into docs/verify.md; ``--held-out`` plants those of tests/analysis/verify/held_out.py instead, at other sizes.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import random
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "analysis" / "verify"))

from faults import BF16, FAULTS, FP16, FP32, FP64, Port, largest_change, port_of, run, setting  # noqa: E402
from held_out import HELD_OUT  # noqa: E402

import ropewalk as rw  # noqa: E402

MEASURABLE = 12.0
SAME = (
    ({"position-scale", "position-offset"}, lambda s: len(s.positions.flatten().unique()) == 1),
    ({"positions-ignored", "not-rotated", "position-zero"}, lambda s: s.seq == 1),
    ({"positions-ignored", "rows"}, lambda s: s.positions.ndim == 2 and s.positions[0].tolist() == list(range(s.seq))),
    ({"width", "base"}, lambda s: float(s.positions.max()) / s.base < MEASURABLE * torch.finfo(s.dtype).eps / 4),
    ({"width", "rest-scaled"}, lambda s: not s.positions.any()),
    (
        {"position-scale", "scaling-ignored"},
        lambda s: (s.scaling.get("rope_type"), s.scaling.get("factor")) == ("linear", 2.0),
    ),
)
"""Causes that are the same thing measured, and where they are."""
DTYPES = {"fp32": FP32, "bf16": BF16, "fp16": FP16, "fp64": FP64}


def fitting(faults, seed, dtype, tries=200):
    """Draw a setting in which all the faults can show, and do."""
    r = random.Random(seed)
    for _ in range(tries):
        s = setting(r, dtype)
        if not all(f.needs(s) for f in faults):
            continue
        right = run(s, Port())
        if all(
            largest_change(s, run(s, port_of(f, setting=s)), right) > MEASURABLE or f.part == "dtype" for f in faults
        ):
            got = run(s, port_of(*faults, setting=s))
            if largest_change(s, got, right) > MEASURABLE or "dtype" in {f.part for f in faults}:
                return s, got
    return None


def check(faults, s, got):
    begin = time.process_time()
    verdict = rw.verify(got, reference=s.config)
    seconds = time.process_time() - begin
    wanted = {c for f in faults for c in f.causes}
    for these, where in SAME:
        if these & wanted and where(s):
            wanted |= these
    first = verdict.errors[0].cause if verdict.errors else ""
    return not verdict.same, first in wanted, first, seconds, verdict


def about(s):
    size = f"D={s.head_dim} W={s.width} H={s.heads}/{s.kv_heads} B={s.batch} S={s.seq} max={float(s.positions.max()):g}"
    return f"{s.scaling.get('rope_type', '')} {size} b={s.base:g} {s.style} {s.pairing}"


def pairs(r, count, among):
    possible = [(a, b) for a, b in itertools.combinations(among, 2) if a.part != b.part]
    return r.sample(possible, min(count, len(possible)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--singles", type=int, default=1, help="settings for each fault and dtype")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of faults for each dtype")
    parser.add_argument("--correct", type=int, default=40, help="correct rotations for each dtype")
    parser.add_argument("--full", action="store_true", help="6 settings, 300 pairs, 300 correct rotations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="faults whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the table into docs/verify.md")
    parser.add_argument("--held-out", action="store_true", help="faults on which nothing was tuned")
    parser.add_argument("--jobs", type=int, default=1, help="dtypes at the same time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="do not list what went wrong")
    o = parser.parse_args()
    if o.full:
        o.singles, o.pairs, o.correct = 6, 300, 300
    if o.held_out:
        o.seed = f"held out {o.seed}"
    with ProcessPoolExecutor(o.jobs, mp_context=get_context("spawn")) as pool:
        found = dict(zip(DTYPES, pool.map(of_dtype, DTYPES, itertools.repeat(o)), strict=True))
    times = [seconds for _, taken in found.values() for seconds in taken]
    report({name: count for name, (count, _) in found.items()}, times, len(HELD_OUT if o.held_out else FAULTS), o)


def of_dtype(name, o):
    """Plant all the faults in rotations of one dtype; return what was counted, and the seconds of each verdict."""
    torch.set_num_threads(1)
    planted, dtype = HELD_OUT if o.held_out else FAULTS, DTYPES[name]
    count, times = collections.Counter(), []
    cases = [((f,), f"{o.seed} {name} {f.name} {i}") for f in planted for i in range(o.singles)]
    cases += [
        (p, f"{o.seed} {name} {p[0].name} {p[1].name}")
        for p in pairs(random.Random(f"{o.seed} {name}"), o.pairs, planted)
    ]
    for faults, seed in cases:
        if o.only and not any(o.only in f.name for f in faults):
            continue
        drawn = fitting(faults, seed, dtype)
        kind = "single" if len(faults) == 1 else "pair"
        title = " + ".join(f.name for f in faults)
        if drawn is None:
            count[f"{kind} not drawn"] += 1
            continue
        try:
            detected, named, first, seconds, verdict = check(faults, *drawn)
        except Exception:
            detected, named, first, seconds, verdict = False, False, "crash", 0.0, traceback.format_exc(limit=-3)
        times.append(seconds)
        count[kind] += 1
        count[f"{kind} detected"] += detected
        count[f"{kind} named"] += named
        if not (detected and named) and not o.quiet:
            s = drawn[0]
            also = [f.cause for f in verdict.errors] if not isinstance(verdict, str) else verdict
            print(f"{name} | {title} | first: {first or 'nothing'} | {also} | {about(s)} [{seed}]", flush=True)
    for i in range(0 if o.only else o.correct):
        s = setting(random.Random(f"{o.seed} {name} right {i}"), dtype)
        begin = time.process_time()
        verdict = rw.verify(run(s, Port()), reference=s.config)
        times.append(time.process_time() - begin)
        count["correct"] += 1
        count["false"] += not verdict.same
        if not verdict.same and not o.quiet:
            print(f"{name} | FALSE ALARM | {[f.cause for f in verdict.errors]} | {about(s)}", flush=True)
    return count, times


def report(rows, times, planted, o):
    lines = [
        "| dtype | single faults | detected | named first | pairs | detected | named first | correct | false alarms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, c in rows.items():

        def share(kind, what, c=c):
            return f"{100 * c[f'{kind} {what}'] / max(c[kind], 1):.1f} %"

        cells = [name]
        for kind in ("single", "pair"):
            cells += [c[kind], share(kind, "detected"), share(kind, "named")]
        cells += [c["correct"], c["false"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    times = sorted(times)
    lines.append("")
    middle, most = times[len(times) // 2], times[int(0.99 * (len(times) - 1))]
    took = f"median {middle:.2f} s, 99 % below {most:.2f} s, longest {times[-1]:.2f} s of one core"
    lines.append(f"{planted} faults, seed {o.seed}; {len(times)} verdicts, {took}.")
    text = "\n".join(lines)
    print(json.dumps(rows, indent=2) if o.json else text)
    if o.write:
        page = ROOT / "docs" / "verify.md"
        mark = "held-out table" if o.held_out else "table"
        head, _, rest = page.read_text().partition(f"<!-- {mark} -->\n")
        _, _, tail = rest.partition(f"<!-- end of {mark} -->")
        page.write_text(f"{head}<!-- {mark} -->\n{text}\n<!-- end of {mark} -->{tail}")


if __name__ == "__main__":
    main()
