"""The page of an inspection: findings first, then what each section measured."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.analysis.inspection.configuration import ORDER, Inspection
from ropewalk.analysis.inspection.findings import Finding, Heat, Section, Severity, Table
from ropewalk.lab.files import write_bytes
from ropewalk.lab.report.document import document
from ropewalk.lab.report.figures import figure, short
from ropewalk.lab.report.html import Html, element, join

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDED = 7
"""Tables with more rows are opened by whoever wants to see them."""

NAMES: dict[Severity, str] = {"error": "Error", "warning": "Warning", "note": "Note"}


def write_inspection(folder: Path, inspection: Inspection) -> Path:
    """Write report.html into a folder that exists, and return where it is."""
    path = folder / "report.html"
    write_bytes(path, inspection_page(inspection).encode())
    return path


def inspection_page(inspection: Inspection) -> str:
    """Return the report as HTML."""
    found = inspection.findings
    intro = [
        element("p", _subtitle(inspection), class_="soft"),
        element("div", element("p", _verdict(found)), class_="partial" if found and _grave(found) else "seen"),
    ]
    sections = [("Findings", _findings(found))] if found else []
    drawn: dict[str, int] = {}
    for section in inspection.sections:
        body = _section(section, len(drawn))
        if body is not None:
            # Sections of one name, as of two equal parts, keep links of their own.
            drawn[section.name] = drawn.get(section.name, 0) + 1
            count = drawn[section.name]
            sections.append((section.name if count == 1 else f"{section.name} {count}", body))
    return document(
        f"Positions in {inspection.subject}", intro, sections, "Made by ropewalk inspect; --json prints every number."
    )


def _grave(findings: Sequence[Finding]) -> bool:
    return any(finding.severity != "note" for finding in findings)


def _subtitle(inspection: Inspection) -> str:
    context = "no context given" if inspection.context is None else f"{inspection.context} tokens"
    return f"{context}, tables in {inspection.dtype}"


def _verdict(findings: Sequence[Finding]) -> str:
    counts = {kind: sum(f.severity == kind for f in findings) for kind in ORDER}
    if not findings:
        return "Nothing was found."
    said = [f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in counts.items() if n]
    return f"{', '.join(said)}."


def _findings(findings: Sequence[Finding]) -> Html:
    """Return what is to be done as cards; notes are plain text."""
    cards = []
    for finding in findings:
        title = element("p", element("b", f"{NAMES[finding.severity]}: {finding.title}."))
        rest = [
            element("p", _sentence(finding.evidence), class_="note") if finding.evidence else None,
            element("p", element("b", "Change: "), _sentence(finding.fix), class_="note") if finding.fix else None,
        ]
        style = {"error": "partial", "warning": "partial", "note": "soft"}[finding.severity]
        cards.append(element("div", title, rest, class_=style))
    return join(cards)


def _sentence(text: str) -> str:
    # No capital: it may begin with a name, such as vLLM.
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _section(section: Section, number: int) -> Html | None:
    if not section.tables and not section.heats:
        return None
    names = [f"heat-{number}-{re.sub('[^a-z0-9]+', '-', section.name.lower())}-{i}" for i in range(len(section.heats))]
    heats = [_heat(name, heat) for name, heat in zip(names, section.heats, strict=True)]
    return join(
        element("p", section.summary),
        element("div", heats, class_="figures") if heats else None,
        [_table(table) for table in section.tables],
        element("p", f"Source: {section.source}.", class_="soft note"),
    )


def _table(table: Table) -> Html:
    head = element("thead", element("tr", [element("th", title, scope="col") for title in table.header]))
    lines = [
        element("tr", element("th", row[0], scope="row"), [element("td", cell, class_="value") for cell in row[1:]])
        for row in table.rows
    ]
    box = element(
        "div",
        element("table", head, element("tbody", lines)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=table.title,
    )
    note = element("p", table.note, class_="soft note") if table.note else None
    if len(table.rows) > FOLDED:
        return element("details", element("summary", f"{table.title} ({len(table.rows)} rows)"), box, note)
    return join(element("h3", table.title), box, note)


def _heat(name: str, heat: Heat) -> Html:
    """Draw a map; cells without a number stay empty."""
    from matplotlib import colormaps

    ramp = colormaps["cividis"]
    every = [v for row in heat.values for v in row if math.isfinite(v)]
    low, high = (min(every), max(every)) if every else (0.0, 1.0)
    masked = [[v if math.isfinite(v) else math.nan for v in row] for row in heat.values]

    def draw(axes: Axes) -> None:
        axes.grid(False)
        axes.imshow(masked, cmap=ramp, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
        for axis, names in ((axes.xaxis, heat.columns), (axes.yaxis, heat.rows)):
            step = max(1, math.ceil(len(names) / 12))
            axis.set_ticks(range(0, len(names), step), [_cut(n) for n in names[::step]])
        axes.tick_params(length=0)
        if max(map(len, heat.columns), default=0) > 3:
            axes.tick_params(axis="x", rotation=90)

    alt = f"{heat.title}: from {short(low)} to {short(high)} {heat.unit}" if every else f"{heat.title}: no numbers"
    height = 60 + min(300, max(90, 11 * len(heat.rows)))
    stops = ", ".join(_hex(ramp(i / 6)) for i in range(7))
    scale = element(
        "p",
        element("span", short(low)),
        element("i", style=f"background: linear-gradient(90deg, {stops})"),
        element("span", f"{short(high)} {heat.unit}".strip()),
        class_="ramp",
    )
    caption = element("figcaption", element("b", heat.title), f" {heat.note}" if heat.note else None)
    return element("figure", caption, figure(name, heat.title, alt, draw, height=height), scale)


def _cut(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def _hex(colour: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour[:3])
