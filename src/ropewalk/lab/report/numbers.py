"""What encodings learned, and what they derive from their settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ropewalk.lab.measured import Results
from ropewalk.lab.report.figures import SOFT, Style, Styles, figure, log_axis
from ropewalk.lab.report.html import Html, element, join
from ropewalk.lab.results import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURES = 24  # of one kind; the rest is counted


def learned(results: Results, styles: Styles) -> list[Html]:
    """What the encodings learned, before and after, with a line a layer; numbers that stand alone are in a table."""
    groups = _numbers(results, "learned")
    pictures, rows = [], []
    for i, ((name, number), records) in enumerate(groups.items()):
        if all(len(r["after"]) == 1 for r in records):
            rows += [(name, r["name"], f"{r['before'][0]:.4g}", f"{r['after'][0]:.4g}") for r in records]
        else:
            pictures.append(_series(f"learned-{i}", name, number, records, styles[name], ("before", "after")))
    out = _some(pictures)
    if rows:
        out.append(_table(("encoding", "number", "before", "after"), rows))
    return out


def fixed(results: Results, styles: Styles) -> list[Html]:
    """Numbers that encodings derive from their settings."""
    groups = _numbers(results, "fixed")
    pictures, rows = [], []
    for i, ((name, number), records) in enumerate(groups.items()):
        if len({tuple(r["values"]) for r in records}) == 1:
            records = records[:1]
        if all(len(r["values"]) == 1 for r in records):
            rows += [(name, r["name"], f"{r['values'][0]:.4g}") for r in records]
        else:
            pictures.append(_series(f"fixed-{i}", name, number, records, styles[name], ("values",)))
    out = _some(pictures)
    if rows:
        out.append(_table(("encoding", "number", "value"), rows))
    return out


def places(results: Results) -> Html | None:
    """Right answers about objects by their size: the mean, worst and best place of the pictures, seeds averaged."""
    rows = []
    asked = sorted({(r["size"], r["side"]) for r in results.of("places")})
    for name in results.encodings:
        for size, side in asked:
            maps = [r["right"] for r in results.of("places", encoding=name, size=size, side=side)]
            if maps:
                cells = [
                    sum(column) / len(maps) for row in zip(*maps, strict=True) for column in zip(*row, strict=True)
                ]
                shown = (f"{100 * n:.0f} %" for n in (sum(cells) / len(cells), min(cells), max(cells)))
                rows.append((name, str(size), f"{side} × {side}", *shown))
    if not rows:
        return None
    note = "Pictures that have the object: who always says yes is right at every place."
    titles = ("encoding", results.size_name or "size", "object", "mean", "worst place", "best place")
    return join(_table(titles, rows), element("p", note, class_="soft note"))


def _series(name: str, encoding: str, number: str, records: list[Record], style: Style, parts: Sequence[str]) -> Html:
    """Draw flat lists of numbers against their index, a line a record, from light to dark."""
    everything = [value for r in records for part in parts for value in r[part]]
    positive = min(everything) > 0 and max(everything) / min(everything) > 30

    def draw(axes: Axes) -> None:
        for i, record in enumerate(records):
            after = record[parts[-1]]
            if len(parts) == 2:
                axes.plot(record[parts[0]], color=SOFT, linestyle=(0, (2, 2)), linewidth=1)
            marker = style.marker if len(after) <= 40 else ""
            strength = 0.4 + 0.6 * (i + 1) / len(records)
            axes.plot(after, color=style.colour, alpha=strength, linewidth=1.3, marker=marker, markersize=3)
        if positive:
            axes.set_yscale("log")
            log_axis(axes.yaxis, everything)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("index")

    shape = "×".join(map(str, records[0]["shape"])) or "1"
    layers = f"; {len(records)} layers, first to last from light to dark" if len(records) > 1 else ""
    dashed = "; dashed before training" if len(parts) == 2 else ""
    first, last = records[0][parts[0]], records[-1][parts[-1]]
    alt = (
        f"{number} of {encoding}: from {_range(first)} before to {_range(last)} after."
        if len(parts) == 2
        else _range(last)
    )
    svg = figure(name, f"{encoding}: {number}", alt, draw, width=290, height=190)
    caption = element("figcaption", element("b", encoding), f" {number} ({shape}){layers}{dashed}")
    return element("figure", svg, caption)


def _numbers(results: Results, kind: str) -> dict[tuple[str, str], list[Record]]:
    """Group the numbers of the first seed by encoding and by name, with the layers of one name together."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for name in results.encodings:
        records = results.of(kind, encoding=name)
        first = min((r["seed"] for r in records), default=None)
        for r in records:
            if r["seed"] == first:
                groups.setdefault((name, re.sub(r"\d+", "*", r["name"])), []).append(r)
    return groups


def _some(pictures: list[Html]) -> list[Html]:
    if not pictures:
        return []
    out = [element("div", pictures[:_FIGURES], class_="figures small")]
    if len(pictures) > _FIGURES:
        out.append(element("p", f"{len(pictures) - _FIGURES} more are in results.jsonl.", class_="soft note"))
    return out


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    head = element("thead", element("tr", [element("th", title, scope="col") for title in titles]))
    body = element("tbody", [element("tr", [element("td", cell) for cell in row]) for row in rows])
    return element("div", element("table", head, body), class_="scroll")


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"
