"""Answers as a page of Markdown, and whether they got worse since the page was written."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ._question import TIMES, Question, Row

START, END = "<!-- measured: python -m benchmarks --write -->", "<!-- end of measured -->"

Answers = Mapping[str, list[Row]]


def section(question: Question, rows: list[Row]) -> str:
    """Return one question with its answer."""
    lines = [f"### {question.title}", "", flowed(question.text or ""), ""]
    if question.yardstick:
        lines += [f"1 {TIMES} is {question.yardstick}.", ""]
    lines += ["| | figure (quartiles) | target | ms | peak MiB (yardstick) |", "|---|---|---|---|---|"]
    lines += [line(row) for row in rows]
    if any(not row.alone for row in rows):
        lines += ["", "\\* Other processes used the machine meanwhile."]
    if question.why and any(row.missed for row in rows):
        lines += ["", flowed(f"Beyond a target: {question.why}")]
    return "\n".join(lines)


def flowed(text: str) -> str:
    """Return prose in lines of the page's width."""
    return textwrap.fill(" ".join(text.split()), 140, break_on_hyphens=False, break_long_words=False)


def line(row: Row) -> str:
    """Return a row of the table; a figure beyond its target is bold."""
    figure = "–" if row.figure is None else amount(row.figure, row.unit)
    if row.missed:
        figure = f"**{figure}**"
    if row.low is not None and row.high is not None:
        figure += f" ({number(row.low)}–{number(row.high)})"
    target = "" if row.target is None else f"≤ {number(row.target)}"
    took = "" if row.milliseconds is None else number(row.milliseconds)
    used = "" if row.memory is None else number(row.memory)
    if row.memory is not None and row.yardstick_memory is not None:
        used += f" ({number(row.yardstick_memory)})"
    note = f" {row.note}" if row.note else ""
    mark = "" if row.alone else r" \*"
    return f"| {row.name} | {figure}{mark}{note} | {target} | {took} | {used} |"


def amount(value: float, unit: str) -> str:
    """Return a figure with its unit; ratios go without."""
    return number(value) if unit == TIMES else f"{number(value)} {unit}".rstrip()


def number(value: float) -> str:
    """Return three digits or so."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.1e}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.3f}"


def measured(questions: Mapping[str, Question], answers: Answers, said: str) -> str:
    """Return everything between the markers of the page."""
    parts = [section(questions[name], rows) for name, rows in answers.items()]
    return "\n\n".join([START, said, *parts, END])


def write_page(page: Path, text: str) -> None:
    """Replace what stands between the markers of the page."""
    old = page.read_text(encoding="utf-8")
    before, start, rest = old.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"{page} has lost its markers {START!r} and {END!r}: put them where the tables belong")
    page.write_text(before + text + after, encoding="utf-8")


# ---- no slower than before -------------------------------------------------------------------------------------------

KEPT = ("figure", "low", "high", "unit", "memory")


def write_baseline(path: Path, answers: Answers, machine: str) -> None:
    """Keep the figures to which later runs are compared."""
    rows = {
        name: {
            row.name: {field: rounded(getattr(row, field)) for field in KEPT}
            for row in answer
            if row.figure is not None
        }
        for name, answer in answers.items()
    }
    text = json.dumps({"machine": machine, "questions": rows}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Round numbers to what is worth a line in a diff."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def worse(baseline: Mapping[str, Any], name: str, rows: Iterable[Row], tolerance: float) -> list[str]:
    """Say which rows of a question got slower or bigger than they were, and which are gone.

    Slower is a median beyond the tolerance whose lower quartile also lies above the former upper one: scatter alone
    does not count. Memory does not scatter, and has to stay within a twentieth.
    """
    before = baseline["questions"].get(name, {})
    now = {row.name: row for row in rows}
    said = []
    for row_name, old in before.items():
        row, where = now.get(row_name), f"{name}: {row_name}"
        if row is None:
            said.append(f"{where}: the row is gone")
            continue
        if row.figure is None:  # a peer that is not installed here: the progress says so
            continue
        low = row.figure if row.low is None else row.low
        high = old["figure"] if old["high"] is None else old["high"]
        if row.figure > old["figure"] * (1 + tolerance) and low > high:
            aside = "" if row.alone else " (others were using the machine)"
            said.append(f"{where}: {amount(row.figure, row.unit)}, was {amount(old['figure'], old['unit'])}{aside}")
        if row.memory is not None and old["memory"] is not None and row.memory > old["memory"] * 1.05 + 0.1:
            said.append(f"{where}: {number(row.memory)} MiB, was {number(old['memory'])} MiB")
    return said
