"""What an extension's measurements say: a row a method, for the terminal, for JSON and for the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.lab.extend.settings import UNCHANGED
from ropewalk.lab.results import Record
from ropewalk.lab.statistics import BETTER, SAME, WORSE, Interval, difference, mean, proportion
from ropewalk.lab.student import LEVEL, student_quantile
from ropewalk.lab.summary import fixed_point

NOT_MEASURED = "not measured"

TOLD = 8
"""Results of tasks that are told in sentences."""


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
        name: as the user gave it.
        losses: at each length.
        gaps: less the loss of the model as it is, at the same length.
        needles: fraction of hidden sentences found, over all depths, at each length.
        definitions: fraction of definitions recalled.
        gained: nats that knowing the needle saves, at each length; empty without a control.
        tasks: results of lm-eval.
        failed: why there is nothing.
    """

    name: str
    losses: dict[int, Interval]
    gaps: dict[int, Interval]
    needles: dict[int, Interval]
    definitions: dict[int, Interval]
    gained: dict[int, float]
    tasks: list[Score]
    failed: str | None = None


@dataclass(frozen=True)
class Score:
    """What a model has in one metric of one task.

    Attributes:
        task: of lm-eval.
        metric: likewise.
        better: "higher", "lower", or None where lm-eval does not say.
        value: over the task's documents.
        gap: less that of the model as it is, document by document; None for the model as it is.
    """

    task: str
    metric: str
    better: str | None
    value: Interval
    gap: Interval | None

    @property
    def seen(self) -> str:
        """What the difference shows."""
        return verdict(self.gap, lower_is_better=self.better == "lower") if self.better else NOT_MEASURED


@dataclass(frozen=True)
class Summary:
    """All methods, in the order they were asked for.

    Attributes:
        rows: a method each.
        trained: tokens of the trained context.
        wanted: tokens of the wanted one.
        lengths: that were measured.
        about: what ``settings.json`` says of the run.
    """

    rows: list[Row]
    trained: int
    wanted: int
    lengths: list[int]
    about: Mapping[str, Any]

    def row(self, name: str) -> Row | None:
        """Return the row of a method."""
        return next((row for row in self.rows if row.name == name), None)


def summarise(records: Sequence[Record], about: Mapping[str, Any]) -> Summary:
    """Put records of a run together.

    Args:
        records: as `ropewalk.lab.runs.read_results` gives them.
        about: the content of ``settings.json``.
    """
    workload = about["workload"]
    lengths = [int(n) for n in workload["lengths"]]
    asked = [UNCHANGED, *(about["settings"].get("methods") or ())]
    names = list(dict.fromkeys([*asked, *(r["encoding"] for r in records)]))
    losses = {name: _at(lengths, "loss", name, records) for name in names}
    own = losses[UNCHANGED]
    rows = []
    for name in names:
        mine = losses[name]
        gaps = {n: difference([mine[n][-1]], [own[n][-1]]) for n in lengths if mine[n] and own[n] and name != UNCHANGED}
        failed = next((r["reason"] for r in records if r["kind"] == "failed" and r["encoding"] == name), None)
        rows.append(
            Row(
                name,
                {n: found for n in lengths if mine[n] and (found := mean([mine[n][-1]])) is not None},
                {n: gap for n, gap in gaps.items() if gap is not None},
                _fractions(lengths, "retrieval", name, records),
                _fractions(lengths, "definition", name, records),
                _gained(lengths, name, records),
                _scores(name, records),
                failed,
            )
        )
    return Summary(rows, int(workload["checkpoint"]["trained_length"]), int(workload["wanted"]), lengths, about)


def best(summary: Summary) -> str | None:
    """Return the method with the lowest loss at the wanted length; None: nothing was measured there."""
    scored = {row.name: row.losses[summary.wanted].mean for row in summary.rows if summary.wanted in row.losses}
    return min(scored, key=lambda name: scored[name], default=None)


def verdict(gap: Interval | None, *, lower_is_better: bool = True) -> str:
    """Say what a difference to the model as it is shows. Nothing is drawn in it but the documents, so one seed is enough."""
    if gap is None or math.isinf(gap.half_width):
        return NOT_MEASURED
    if gap.mean == 0 == gap.half_width:
        return "the same"
    if gap.spans_zero:
        return SAME
    return BETTER if (gap.mean < 0) == lower_is_better else WORSE


def headlines(summary: Summary, chosen: str | None = None) -> list[str]:
    """Say what was seen, in sentences; what happens at the trained length is always one of them.

    Args:
        summary: of the run.
        chosen: the method whose model is written; None: the best.
    """
    name = chosen or best(summary)
    row = summary.row(name) if name else None
    if row is None or name is None or summary.wanted not in row.losses:
        return ["Nothing has been measured at the wanted length yet."]
    own = summary.row(UNCHANGED)
    said = []
    where = f"At {summary.wanted:,} tokens, {summary.wanted / summary.trained:.3g} × what was trained"
    lowest = "has the lowest loss" if name == best(summary) else "was chosen"
    said.append(f"{where}, {name} {lowest}: {written(row.losses[summary.wanted])} nats a token.")
    if own is not None and summary.wanted in own.losses and name != UNCHANGED:
        gap = row.gaps.get(summary.wanted)
        said.append(
            f"The model as it is has {written(own.losses[summary.wanted])} there; the difference is "
            f"{written(gap, signed=True)} ({verdict(gap)})."
        )
    if name != UNCHANGED and (gap := row.gaps.get(summary.trained)) is not None:
        word = {
            WORSE: "gets worse",
            BETTER: "gets better",
            SAME: "no difference was seen",
            "the same": "nothing changes",
        }.get(verdict(gap), verdict(gap))
        said.append(
            f"At {summary.trained:,} tokens, as trained: {word}, {written(row.losses[summary.trained])} after and "
            f"{written(gap, signed=True)} against before."
        )
    for what, of in (("hidden sentences", row.needles), ("definitions", row.definitions)):
        if summary.wanted in of:
            said.append(f"It finds {percent(of[summary.wanted])} of the {what} at {summary.wanted:,} tokens.")
    for score in row.tasks[:TOLD]:
        against = "" if score.gap is None else f", {written(score.gap, signed=True)} against before ({score.seen})"
        said.append(f"{score.task}, {score.metric}: {written(score.value)}{against}.")
    if len(row.tasks) > TOLD:
        said.append(f"The report has {len(row.tasks) - TOLD} more results of tasks.")
    return said


def written(interval: Interval | None, *, signed: bool = False) -> str:
    """Write a loss or a difference with its half-width."""
    if interval is None:
        return "–"
    half = interval.half_width
    digits = 3 if not 0 < half < 0.01 or math.isinf(half) else 4
    return f"{fixed_point(interval.mean, digits, signed=signed)} ±{'?' if math.isinf(half) else f'{half:.{digits}f}'}"


def percent(interval: Interval) -> str:
    """Write a fraction with the ends of its interval."""
    return f"{100 * interval.mean:.0f} % ({100 * interval.low:.0f}–{100 * interval.high:.0f})"


def as_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as plain data."""

    def plain(of: Mapping[int, Interval]) -> dict[str, Any]:
        return {str(n): interval.as_dict() for n, interval in of.items()}

    return {
        "checkpoint": summary.about["workload"]["checkpoint"],
        "trained": summary.trained,
        "wanted": summary.wanted,
        "lengths": summary.lengths,
        "best": best(summary),
        "headlines": headlines(summary),
        "methods": [
            {
                "method": row.name,
                "loss": plain(row.losses),
                "difference": plain(row.gaps),
                "verdict": {str(n): verdict(gap) for n, gap in row.gaps.items()},
                "needles": plain(row.needles),
                "definitions": plain(row.definitions),
                "nats_gained": {str(n): value for n, value in row.gained.items()},
                "tasks": [
                    {
                        "task": score.task,
                        "metric": score.metric,
                        "better": score.better,
                        "value": score.value.as_dict(),
                        "difference": None if score.gap is None else score.gap.as_dict(),
                        "verdict": None if score.gap is None else score.seen,
                    }
                    for score in row.tasks
                ],
                "failed": row.failed,
            }
            for row in summary.rows
        ],
    }


def _at(lengths: Sequence[int], kind: str, name: str, records: Iterable[Record]) -> dict[int, list[Record]]:
    found = [r for r in records if r["kind"] == kind and r["encoding"] == name]
    return {n: [r for r in found if r["length"] == n] for n in lengths}


def _fractions(lengths: Sequence[int], kind: str, name: str, records: Iterable[Record]) -> dict[int, Interval]:
    """Return how many questions were answered right at each length; questions are what is resampled."""
    made = {}
    for n, found in _at(lengths, kind, name, records).items():
        items = [item for r in found if r["metric"] == "accuracy" for item in r["items"]]
        if items:
            made[n] = proportion(round(sum(items)), len(items))
    return made


def _gained(lengths: Sequence[int], name: str, records: Iterable[Record]) -> dict[int, float]:
    made = {}
    for n, found in _at(lengths, "retrieval", name, records).items():
        values = [r["value"] for r in found if r["metric"] == "nats gained"]
        if values:
            made[n] = sum(values) / len(values)
    return made


def _scores(name: str, records: Iterable[Record]) -> list[Score]:
    """Return the results of lm-eval's tasks."""
    found = {
        of: {(r["what"], r["metric"]): r for r in records if r["kind"] == "lm-eval" and r["encoding"] == of}
        for of in (UNCHANGED, name)
    }
    own = found[UNCHANGED]
    return [
        Score(
            task, metric, r["better"], _score(r), None if name == UNCHANGED else _score_gap(r, own.get((task, metric)))
        )
        for (task, metric), r in found[name].items()
    ]


def _score(record: Record) -> Interval:
    """Return a result with its interval over documents, from lm-eval's standard error where there are no documents."""
    items = record["items"]
    if items is not None and set(items) <= {0.0, 1.0}:
        return proportion(round(sum(items)), len(items))
    if items is not None and (found := mean([_as_answers(record)])) is not None:
        return found
    value, error = record["value"], record["error"]
    half = math.inf if error is None else student_quantile((1 + LEVEL) / 2, 1e9) * error
    return Interval(value, value - half, value + half, 1, 0)


def _score_gap(record: Record, own: Record | None) -> Interval | None:
    if own is None:
        return None
    if record["items"] is not None and own["items"] is not None and len(record["items"]) == len(own["items"]):
        return difference([_as_answers(record)], [_as_answers(own)])
    return Interval(record["value"] - own["value"], -math.inf, math.inf, 1, 0, "no numbers of single documents")


def _as_answers(record: Record) -> Record:
    return {**record, "kind": "exact", "size": 0}
