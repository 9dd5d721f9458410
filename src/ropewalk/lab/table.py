"""The table that ``ropewalk compare`` prints: best first, in as many columns as fit."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ropewalk.lab.measured import Results
from ropewalk.lab.statistics import ONE_SEED, SAME
from ropewalk.lab.summary import Board, Row, board, headlines

_GAP = 2
_NAME = 24  # a longer name of an encoding is folded
_VERDICTS = {SAME: "no difference", ONE_SEED: "one seed only"}  # below "seen"
_MARKS = {"best": "*", "close": "≈", "": " "}


@dataclass(frozen=True)
class Column:
    """A column that may be left out.

    Attributes:
        title: what stands above it, on one or two lines.
        cells: a text for each encoding.
        importance: columns with the smallest are left out first.
        right: aligned to the right.
    """

    title: str
    cells: list[str]
    importance: float
    right: bool = True

    @property
    def width(self) -> int:
        """Terminal cells it takes."""
        return max(map(cell_len, [*self.title.splitlines(), *self.cells]), default=0)

    @property
    def name(self) -> str:
        """Title on one line."""
        return self.title.replace("\n", " ")


def render(
    results: Results, *, width: int = 100, rank: int | None = None, reference: str | None = None
) -> RenderableType:
    """Return the table, what it left out, and the failures, for a console of `width` cells.

    Args:
        results: a run, finished or not.
        width: cells of the terminal.
        rank: length or size to rank by, see `ropewalk.lab.summary.board`.
        reference: encoding to compare with, likewise.
    """
    summary = board(results, rank=rank, reference=reference)
    every = columns(summary)
    shown, dropped = _fit(every, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for column in shown:
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=column is not every[0],
            overflow="fold",
            max_width=_NAME if column is every[0] else None,
        )
    for i, row in enumerate(summary.rows):
        cells = [Text(column.cells[i]) for column in shown]
        for cell in cells:
            if cell.plain.endswith(_MARKS["best"]):
                cell.stylize("bold")
        table.add_row(*cells, style="" if row.score is not None else "dim")
    lines = [*headlines(results, summary), "", *notes(summary)]
    if dropped:
        lines.append(f"Left out to fit {width} columns: {'; '.join(column.name for column in dropped)}.")
    lines += _troubles(results)
    return Group(table, Text(""), *(Text(line) for line in lines))


def columns(summary: Board) -> list[Column]:
    """Return all columns in the order they are read; the first names the encoding."""
    rows = summary.rows
    out = [Column("encoding", [row.encoding for row in rows], math.inf, right=False)]
    if summary.rank is None and summary.metric == "exact":
        out.append(Column("mean", [summary.text(row.score) for row in rows], 10))
    for i, size in enumerate(summary.sizes):
        cells = [f"{summary.text(row.scores[size])} {_MARKS[row.marks[size]]}" for row in rows]
        important = {summary.rank: 10.0, summary.trained: 7.8, summary.sizes[-1]: 7.5}.get(size, 6 + i / 1000)
        out.append(Column(_title(summary, size), cells, important))
    if summary.reference is not None and len(rows) > 1:
        out.append(Column(f"against\n{summary.reference}", [_versus(summary, row) for row in rows], 9))
        out.append(Column("seen", [_VERDICTS.get(row.verdict, row.verdict) for row in rows], 8, right=False))
    for title, cells, importance in (
        ("own\nparams", ["–" if r.extra_parameters is None else f"{r.extra_parameters:,}" for r in rows], 4.0),
        (_at(summary, "train\ntok/s", "train"), [count(row.train) for row in rows], 5.0),
        (_at(summary, "decode\ntok/s", "decode"), [count(row.decode) for row in rows], 3.0),
        (_memory_title(summary), [size_of(row.memory) for row in rows], 2.0),
    ):
        if any(cell != "–" for cell in cells):
            out.append(Column(title, cells, importance))
    return out


def count(number: float | None) -> str:
    """Write a count in three figures: 12.3k."""
    if number is None:
        return "–"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{letter}"
    return f"{number:.3g}"


def size_of(number: float | None) -> str:
    """Write a number of bytes: 12.3 MiB."""
    if number is None:
        return "–"
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if number >= 1024**power:
            return f"{number / 1024**power:.3g} {unit}"
    return f"{number:.0f} B"


def _fit(every: list[Column], width: int) -> tuple[list[Column], list[Column]]:
    """Leave out the least important columns until the rest fits; the name and the ranked score always stay."""
    kept = list(every)

    def taken() -> int:
        widths = [min(c.width, _NAME) if c is every[0] else c.width for c in kept]
        return sum(widths) + _GAP * (len(widths) - 1)

    while taken() > width and len(kept) > 2:
        kept.remove(min(kept, key=lambda column: column.importance))
    return kept, [column for column in every if column not in kept]


def _title(summary: Board, size: int) -> str:
    unit = "exact" if summary.metric == "exact" else "loss"
    return f"{unit} @{size}" + ("\ntrained" if size == summary.trained else "")


def _versus(summary: Board, row: Row) -> str:
    return "–" if row.versus is None else summary.text(row.versus, signed=True)


def _at(summary: Board, title: str, what: str) -> str:
    return f"{title} @{summary.lengths[what]}" if what in summary.lengths else title


def _memory_title(summary: Board) -> str:
    what = next((w for w in ("saved for backward", "cache") if w in summary.lengths), None)
    return "memory" if what is None else textwrap.fill(f"{what} @{summary.lengths[what]}", 12)


def notes(summary: Board) -> list[str]:
    """Return what a reader of the table must know."""
    if not summary.sizes:
        return []
    unit = "exact matches in %" if summary.metric == "exact" else "loss in nats a token"
    lines = [
        f"{unit[0].upper()}{unit[1:]}, ranked by {summary.ranked_by}. ± is half of a 95 % interval over seeds and "
        f"{'examples' if summary.metric == 'exact' else 'documents'}. * best, ≈ no difference seen to the best."
    ]
    if summary.reference is not None and len(summary.rows) > 1:
        lines.append(
            f"Differences to {summary.reference} are paired by seed and "
            f"{'example' if summary.metric == 'exact' else 'document'}, so they are surer than two scores side by side."
        )
    said: dict[str, list[str]] = {}
    for row in summary.rows:
        for note in dict.fromkeys(n for i in (row.score, row.versus) if i is not None for n in i.note.split("; ") if n):
            said.setdefault(note, []).append(row.encoding)
    scored = sum(row.score is not None for row in summary.rows)
    for note, names in said.items():
        who = "" if len(names) == scored else f" ({', '.join(names)})"
        lines.append(f"{note[0].upper()}{note[1:]}{who}.")
    return lines


def _troubles(results: Results) -> list[str]:
    lines = []
    if results.failures:
        lines += ["", f"Failed ({len(results.failures)}):"]
        for failure in results.failures:
            lines.append(f"  {failure['encoding']}, seed {failure['seed']} ({failure['trial']}): {failure['reason']}")
    if results.refusals:
        lines += ["", f"Refused ({len(results.refusals)}):"]
        lines += [f"  {r['encoding']}, {r['what']}: {r['reason']}" for r in results.refusals]
    if results.missing:
        lines += ["", f"Not measured yet ({len(results.missing)}): {'; '.join(results.missing)}."]
    return lines
