"""The page: sections in the order in which a reader asks, those without data left out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.lab.files import write_bytes
from ropewalk.lab.measured import Results
from ropewalk.lab.report import heatmaps, numbers, pictures
from ropewalk.lab.report.document import anchor, document
from ropewalk.lab.report.figures import Style, Styles, swatch
from ropewalk.lab.report.html import Html, element, join
from ropewalk.lab.summary import Board, board, headlines
from ropewalk.lab.table import columns, notes

REPORT = "report.html"

# Shown in sections of their own.
_ELSEWHERE = ("command", "settings", "task", "workload", "hardware", "versions")
_ABOVE = ("experiment", "claim", "source", "expected", "measured", "verdict", "limits")


def write_report(run_folder: Path, *, rank: int | None = None) -> Path:
    """Write the report of a run, finished or not, into its folder.

    The file is replaced as a whole; the same results give the same bytes.

    Returns:
        Path of ``report.html``.

    Raises:
        RunError: if the folder holds no run, or one that cannot be read.
        MeasurementError: if trials were scored on different documents.
        ConfigError: if matplotlib is not installed.
    """
    path = run_folder / REPORT
    write_bytes(path, page(Results.read(run_folder), rank=rank).encode())
    return path


def page(results: Results, *, rank: int | None = None) -> str:
    """Return the report as HTML."""
    summary = board(results, rank=rank)
    styles = {name: Style.of(i) for i, name in enumerate(results.encodings)}
    sections = [(title, body) for title, body in _sections(results, summary, styles) if body]
    title = f"Positional encodings on {'text' if results.task == 'text' else f'the task {results.task}'}"
    experiment = results.settings.get("experiment")
    intro = [
        element("p", _subtitle(results, summary), class_="soft"),
        _partial(results),
        element("div", [element("p", line) for line in headlines(results, summary)], class_="seen"),
    ]
    if experiment is not None:
        title = f"{experiment}: {results.settings.get('verdict', 'not measured to the end')}"
        intro.insert(0, _claim(results.settings))
    command = "compare" if experiment is None else "reproduce"
    made_by = f"Made by ropewalk {command} from results.jsonl and settings.json, which hold every number."
    return document(title, intro, sections, made_by)


def _claim(said: Mapping[str, Any]) -> Html:
    """Show what a paper claims, what was expected of it here before the run, and what came out."""
    terms = [element("dt", "Claim"), element("dd", said["claim"]), element("dd", said["source"], class_="soft")]
    terms += [element("dt", "Expected"), element("dd", said["expected"])]
    if "measured" in said:
        terms += [element("dt", "Measured"), *(element("dd", line) for line in said["measured"])]
        terms += [element("dt", "Limits"), element("dd", said["limits"])]
    return element("dl", terms, class_="claim")


def _sections(results: Results, summary: Board, styles: Styles) -> Iterable[tuple[str, Html | None]]:
    names = list(styles)

    exact = summary.metric == "exact"
    by_size = pictures.by_size(results, summary, styles)
    yield "Results", _results(summary)
    yield (
        "Exact matches by size",
        legend("exact", styles, by_size + pictures.tokens(results, styles)) if exact else None,
    )
    beyond = pictures.positions(results, summary, styles) + ([] if exact else by_size)
    yield "Beyond the trained length", legend("beyond", styles, beyond)
    yield "Retrieval", heatmaps.retrieval(results.of("retrieval"), names)
    yield "By place", numbers.places(results)
    yield "Speed and memory", legend("costs", styles, pictures.costs(summary, styles))
    yield "Training", legend("training", styles, pictures.training(results, styles) + pictures.sweeps(results, styles))
    yield "What was learned", join(numbers.learned(results, styles))
    yield "Fixed numbers", join(numbers.fixed(results, styles))
    yield "Failed trials", _failures(results)
    yield "Refused measurements", _refusals(results)
    yield "Settings", _settings(results)
    yield "Data" if results.task == "text" else "Task", facts(results.settings.get("workload"))
    yield "Versions and hardware", _context(results)
    yield "How to read this", _reading(results, summary)


def legend(name: str, styles: Styles, drawn: list[Html]) -> Html | None:
    """Return figures below a legend; None without any.

    Args:
        name: prefix of the ids in the legend, unique in the page.
        styles: by encoding.
        drawn: the figures.
    """
    if not drawn:
        return None
    items = [element("li", swatch(f"{name}-swatch-{i}", styles[e]), e) for i, e in enumerate(styles)]
    return join(element("ul", items, class_="legend"), element("div", drawn, class_="figures"))


def _subtitle(results: Results, summary: Board) -> str:
    seeds = {r["seed"] for r in results.scores()}
    parts = [f"{len(results.encodings)} encodings", f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}"]
    if results.trained is not None:
        up_to = "" if results.task == "text" else "up to "
        parts.append(f"trained on {up_to}{summary.at(results.trained)}")
    if "experiment" not in results.settings:  # there trained models may be altered by hand
        parts.append("models that differ in nothing but the encoding")
    return " · ".join(parts)


def _partial(results: Results) -> Html | None:
    said = []
    if results.missing:
        said.append(f"Partial: not measured yet are {'; '.join(results.missing)}.")
    if results.failures:
        count = len({f["trial"] for f in results.failures})
        link = element("a", "Reasons", href=f"#{anchor('Failed trials')}")
        said.append(join(f"{count} {'trial' if count == 1 else 'trials'} failed in part or as a whole. ", link, "."))
    return element("div", [element("p", text) for text in said], class_="partial", role="status") if said else None


def _results(summary: Board) -> Html | None:
    if not summary.sizes:
        return None
    first, *others = columns(summary)
    head = [
        element("th", column.title, scope="col", class_="number" if column.right else None)
        for column in (first, *others)
    ]
    lines = []
    for i, name in enumerate(first.cells):
        cells = []
        for column in others:
            text = column.cells[i].strip()
            kind = "number" if column.right else "word"
            cells.append(element("td", text, class_=f"{kind} best" if text.endswith("*") else kind))
        lines.append(element("tr", element("th", name, scope="row"), cells))
    table = element("table", element("thead", element("tr", head)), element("tbody", lines))
    said = [element("p", line, class_="soft note") for line in notes(summary)]
    return join(element("div", table, class_="scroll", tabindex="0", role="region", aria_label="Results"), said)


def _failures(results: Results) -> Html | None:
    return rows(("encoding", "trial", "reason"), [(f["encoding"], f["trial"], f["reason"]) for f in results.failures])


def _refusals(results: Results) -> Html | None:
    return rows(
        ("encoding", "measurement", "reason"), [(r["encoding"], r["what"], r["reason"]) for r in results.refusals]
    )


def rows(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> Html | None:
    """Return a table of texts; None without any."""
    if not cells:
        return None
    head = element("thead", element("tr", [element("th", title, scope="col") for title in titles]))
    body = [
        element("tr", element("th", row[0], scope="row"), [element("td", cell, class_="value") for cell in row[1:]])
        for row in cells
    ]
    return element("div", element("table", head, element("tbody", body)), class_="scroll")


def _settings(results: Results) -> Html | None:
    command = results.settings.get("command")
    shown = None
    if command:
        shown = element("pre", command if isinstance(command, str) else shlex.join(map(str, command)))
    others = {name: value for name, value in results.settings.items() if name not in (*_ELSEWHERE, *_ABOVE)}
    told = facts({**results.asked, **others})
    return join(shown, told) if shown or told else None


def _context(results: Results) -> Html | None:
    """Show what the trials say of where they ran; where they differ, which trials say what."""
    said: dict[str, dict[str, list[str]]] = {}
    if not results.records:
        return facts({name: results.settings.get(name, {}) for name in ("versions", "hardware")})
    for record in results.records:
        for name, value in _flat(record.get("context") or {}):
            if name.split(".")[0] not in ("settings", "command"):
                trials = said.setdefault(name, {}).setdefault(value, [])
                if record["trial"] not in trials:
                    trials.append(record["trial"])
    told = {}
    for name, values in said.items():
        if len(values) == 1:
            told[name] = next(iter(values))
        else:
            told[name] = "; ".join(f"{value} ({', '.join(trials)})" for value, trials in values.items())
    return facts(told)


def facts(values: object) -> Html | None:
    """Return a table of the leaves of nested objects; None without any."""
    leaves = [
        element("tr", element("th", name, scope="row"), element("td", value, class_="value"))
        for name, value in _flat(values)
    ]
    return element("div", element("table", element("tbody", leaves)), class_="scroll") if leaves else None


def _flat(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """Return the leaves of nested objects, with dotted names."""
    if value is None and not prefix:
        return []
    if isinstance(value, Mapping):
        return [
            leaf for key, inner in value.items() for leaf in _flat(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix or "value", _leaf(value))]


def _leaf(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        # Sentences and examples of a task stand on lines of their own.
        lines = any(isinstance(item, str) and (" " in item or len(item) > 40) for item in value)
        return ("\n" if lines else ", ").join(map(str, value)) or "none"
    return json.dumps(value, ensure_ascii=False)


def _reading(results: Results, summary: Board) -> Html:
    one, many = ("example", "examples") if summary.metric == "exact" else ("document", "documents")
    said = [
        f"± is half of a 95 % interval. It covers another choice of seeds (Student's t over the seeds) and other {many} (whole "
        f"{many} resampled). Encodings are compared by differences within one seed and one {one}: what is hard for all of them "
        "drops out, so a difference is much surer than the scores it is made of.",
        "“Better” and “worse” are said only where the interval of the difference leaves zero out. “No difference” means that "
        f"none was seen with these seeds and {many}, not that there is none. Of twenty comparisons of equals, one is expected "
        "to come out as a difference.",
        "These are small models and short training. An order seen here says what to try first at a larger size, not what will "
        "win there.",
    ]
    if summary.metric == "loss":
        said.insert(
            2,
            "A loss is in nats a token: 0.01 lower means that the right token is about 1 % more likely on average. At every "
            "length the same tokens are scored, so a longer context can only help, and a rise shows what the encoding does "
            "with positions it was not trained on.",
        )
    return join([element("p", text) for text in said])
