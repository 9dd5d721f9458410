"""Ask what ropewalk costs, question by question, each in a process of its own.

    python -m benchmarks                       # all of them, in 15 minutes on two quiet cores
    python -m benchmarks --only decode peers   # some
    python -m benchmarks --tiny                # seconds: does each question run?
    python -m benchmarks --write               # and write docs/performance.md and benchmarks/baseline.json
    python -m benchmarks --check               # exit 1 where something is slower or bigger than the baseline

What a question answered is kept in runs/benchmarks until the code changes, so that the same command goes on after a kill;
--again measures anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import ropewalk

from . import _report
from ._question import Bench, Row, load
from ._timing import header, prepare
from .questions import NAMES

HERE = Path(__file__).parent
PAGE, BASELINE, KEPT = HERE.parent / "docs" / "performance.md", HERE / "baseline.json", Path("runs", "benchmarks")


# ---- in the process of one question ----------------------------------------------------------------------------------


def answer(name: str, bench: Bench, threads: int) -> None:
    """Print the rows of a question as lines of JSON, each as soon as it is there."""
    question = load(name)
    prepare(question.flush)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    for row in question.rows(bench):
        print(json.dumps(row.as_dict()), flush=True)


# ---- in the process that asks ----------------------------------------------------------------------------------------


def ask(name: str, bench: Bench, threads: int) -> list[Row]:
    """Run a question in a fresh process, and show its rows as they come."""
    command = [sys.executable, "-m", __package__, "--answer", json.dumps([name, asdict(bench), threads])]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    rows, said = [], []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                try:
                    rows.append(Row(**json.loads(text)))
                except (ValueError, TypeError):
                    said.append(text)  # warnings and tracebacks
                else:
                    print(f"  {shown(rows[-1])}", flush=True)
        except BaseException:
            process.kill()
            raise
    if process.returncode or not rows:
        raise QuestionFailed(f"{name} ended with {process.returncode} after {len(rows)} rows:\n{''.join(said[-30:])}")
    return rows


class QuestionFailed(Exception):
    """A question raised, or answered nothing."""


def shown(row: Row) -> str:
    """Return a row for the terminal."""
    if row.figure is None:
        return f"{row.name}: {row.note}"
    figure = _report.amount(row.figure, row.unit)
    spread = "" if row.low is None or row.high is None else f" ({row.low:.2f}-{row.high:.2f})"
    target = "" if row.target is None else f", target {row.target:g}{' MISSED' if row.missed else ''}"
    return f"{row.name}: {figure}{spread}{target}{'' if row.alone else ' *'}"


def fingerprint(bench: Bench, threads: int) -> str:
    """Return what the answers depend on, but for the machine: the code, torch, and how it was measured."""
    seen = hashlib.sha256(repr((torch.__version__, bench, threads)).encode())
    for root in (Path(ropewalk.__file__).parent, HERE):
        for file in sorted(root.rglob("*.py")):
            seen.update(file.read_bytes())
    return seen.hexdigest()[:16]


def answered(name: str, bench: Bench, threads: int, folder: Path, again: bool) -> list[Row]:
    """Return a question's rows, those that were kept from before unless they are asked again."""
    file = folder / f"{name}.json"
    if file.exists() and not again:
        rows = [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
        print(f"  kept: {len(rows)} rows (--again measures anew)")
        return rows
    rows = ask(name, bench, threads)
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")  # a kill leaves a whole answer or none
    part.write_text(json.dumps([row.as_dict() for row in rows], indent=1), encoding="utf-8")
    part.replace(file)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=NAMES, help=f"of {', '.join(NAMES)}")
    parser.add_argument("--tiny", action="store_true", help="small sizes, seconds in all; the figures mean nothing")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md and benchmarks/baseline.json")
    parser.add_argument("--check", action="store_true", help="compare with benchmarks/baseline.json")
    parser.add_argument("--again", action="store_true", help="measure anew what was answered before")
    parser.add_argument("--tolerance", type=float, default=0.15, help="of --check (default 0.15: 15%% slower)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, help=f"for each candidate (default {Bench.seconds})")
    parser.add_argument(
        "--wait", type=float, help=f"seconds to wait for others on the machine (default {Bench.patience:g})"
    )
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        name, bench, threads = json.loads(args.answer)
        answer(name, Bench(**bench), threads)
        return 0
    if args.tiny and (args.write or args.check):
        parser.error("--tiny measures sizes of its own: there is nothing to write or to compare")
    if args.write and args.only:
        parser.error("the page holds the answers to all questions from one machine: --write goes without --only")
    full = Bench(True, 0.01, 0.0) if args.tiny else Bench()
    given = {n: v for n, v in (("seconds", args.seconds), ("patience", args.wait)) if v is not None}
    bench = replace(full, **given)
    return run(args, bench)


def run(args: argparse.Namespace, bench: Bench) -> int:
    """Ask, report, and return the exit status."""
    torch.set_num_threads(args.threads)  # for the header; each question's process sets its own
    names, started, machine = args.only or NAMES, time.monotonic(), header()
    folder = KEPT / fingerprint(bench, args.threads)
    baseline = read_baseline() if args.check else None
    print(f"{machine}\nanswers are kept in {folder}; * marks what other processes disturbed\n", flush=True)
    answers: dict[str, list[Row]] = {}
    failed: list[str] = []
    slower: list[str] = []
    for n, name in enumerate(names, 1):
        print(f"[{n}/{len(names)}, {time.monotonic() - started:.0f} s] {name}: {load(name).title}", flush=True)
        try:
            answers[name] = answered(name, bench, args.threads, folder, args.again)
            if baseline is not None and _report.worse(baseline, name, answers[name], args.tolerance):
                print("  worse than the baseline: asked once more, since neighbours on the machine go away", flush=True)
                answers[name] = answered(name, bench, args.threads, folder, True)
                slower += _report.worse(baseline, name, answers[name], args.tolerance)
        except QuestionFailed as error:
            print(error, file=sys.stderr, flush=True)
            failed.append(name)
    missed = [f"{name}: {shown(row)}" for name, rows in answers.items() for row in rows if row.missed]
    tell("beyond their targets", missed)
    tell("without an answer", failed)
    if args.write:
        write(answers, machine, failed)
    if baseline is not None:
        tell(f"slower or bigger, twice, than on {baseline['machine']}", slower)
        if not slower and not failed:
            print(f"\nnothing is slower than on {baseline['machine']} by more than {args.tolerance:.0%}")
    return 1 if failed or slower else 0


def read_baseline() -> dict[str, Any]:
    """Return the figures to compare with."""
    if not BASELINE.exists():
        raise SystemExit(f"there is no {BASELINE} to compare with: --write makes one, on quiet processors")
    baseline: dict[str, Any] = json.loads(BASELINE.read_text(encoding="utf-8"))
    return baseline


def tell(what: str, lines: list[str]) -> None:
    """Print a list, if there is something in it."""
    if lines:
        print(f"\n{what}:", *lines, sep="\n  ", flush=True)


def write(answers: dict[str, list[Row]], machine: str, failed: list[str]) -> None:
    """Write the page and the baseline, unless something is missing."""
    if failed:
        print("\nnothing was written: without these answers the page would look whole", file=sys.stderr)
        return
    now = time.gmtime()
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    said = f"ropewalk {ropewalk.__version__}, {now.tm_mday} {time.strftime('%B %Y', now)}, `{command}`: {machine}."
    questions = {name: load(name) for name in answers}
    _report.write_page(PAGE, _report.measured(questions, answers, said))
    _report.write_baseline(BASELINE, answers, machine)
    print(f"\nwrote {PAGE} and {BASELINE}")


if __name__ == "__main__":
    sys.exit(main())
