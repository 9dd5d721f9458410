"""What an inspection says, as plain data: for a page, for JSON, and for whoever measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One sentence, the number behind it, and what to change.

    Attributes:
        severity: "error" is wrong, "warning" may be, "note" is how things are.
        title: the sentence.
        number: behind it; None where there is none.
        evidence: what was measured or read, with the numbers beside it.
        fix: what to change.
    """

    severity: Severity
    title: str
    number: float | None
    evidence: str
    fix: str


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Heat:
    """A heat map, such as layer × head or head × plane.

    Attributes:
        title: what it shows.
        rows: their names.
        columns: their names.
        values: a row of numbers each.
        unit: of the numbers.
        note: what a reader must know.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One subject of an inspection.

    Attributes:
        name: of the subject.
        source: whose method it is.
        summary: what is looked at, for somebody who does not know it.
        findings: what came out, the most important first.
        tables: numbers.
        heats: maps.
    """

    name: str
    source: str
    summary: str
    findings: Sequence[Finding] = field(default_factory=tuple)
    tables: Sequence[Table] = field(default_factory=tuple)
    heats: Sequence[Heat] = field(default_factory=tuple)
