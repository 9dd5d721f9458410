"""``report.html`` of an extension, in the style of the comparison's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.lab.extend.settings import UNCHANGED
from ropewalk.lab.extend.summary import Summary, headlines, percent, summarise, verdict, written
from ropewalk.lab.files import write_bytes
from ropewalk.lab.measured import Results
from ropewalk.lab.report import heatmaps, pictures
from ropewalk.lab.report.document import document
from ropewalk.lab.report.figures import Style, Styles
from ropewalk.lab.report.html import Html, element, join
from ropewalk.lab.report.page import REPORT, facts, legend, rows
from ropewalk.lab.results import Record
from ropewalk.lab.runs import read_results, read_settings
from ropewalk.lab.statistics import WORSE
from ropewalk.lab.summary import board, fixed_point


def write_report(folder: Path, chosen: str | None = None, told: Mapping[str, Any] | None = None) -> Path:
    """Write the report of a run, finished or not, into its folder.

    Args:
        folder: of the run.
        chosen: the method whose model was written.
        told: what `write_model` said of it.

    Raises:
        RunError: the folder holds no run, or one that cannot be read.
        ConfigError: matplotlib is not installed.
    """
    path = folder / REPORT
    write_bytes(path, page(read_results(folder), read_settings(folder), chosen, told).encode())
    return path


def page(
    records: Sequence[Record],
    about: Mapping[str, Any],
    chosen: str | None = None,
    told: Mapping[str, Any] | None = None,
) -> str:
    """Return the report as HTML."""
    summary = summarise(records, about)
    model = about["workload"]["checkpoint"]
    title = f"{Path(model['path']).name}, from {summary.trained:,} to {summary.wanted:,} tokens"
    said = headlines(summary, chosen)
    intro = [
        element("p", _subtitle(model), class_="soft"),
        _warnings(summary, model, chosen),
        element("div", [element("p", line) for line in said], class_="seen"),
    ]
    sections = [(name, body) for name, body in _sections(summary, records, chosen, told) if body]
    made_by = "Made by ropewalk extend from results.jsonl and settings.json, which hold every number."
    return document(title, intro, sections, made_by)


def _subtitle(model: Mapping[str, Any]) -> str:
    bases = ", ".join(f"{base:g}" for base in model["base"].values())
    return (
        f"{model['architecture']} · {model['layers']} layers · {model['heads']} heads, {model['kv_heads']} key heads of "
        f"{model['head_dim']} channels · trained for {model['trained_length']:,} tokens · base {bases}"
    )


def _warnings(summary: Summary, model: Mapping[str, Any], chosen: str | None) -> Html | None:
    said = []
    if model["quantised"]:
        said.append(f"The weights are quantised, {model['quantised']}: every number here is of the quantised model.")
    if model["scaling"]:
        said.append(f"The model was extended before ({model['scaling']}): one scaling is stacked on another.")
    row = summary.row(chosen) if chosen else None
    gap = row.gaps.get(summary.trained) if row else None
    if gap is not None and verdict(gap) == WORSE:
        said.append(f"At the trained length {chosen} is worse than the model as it is, by {written(gap)} nats a token.")
    failed = [row.name for row in summary.rows if row.failed]
    if failed:
        said.append(f"Not measured in full: {', '.join(failed)}.")
    return element("div", [element("p", text) for text in said], class_="partial", role="status") if said else None


def _sections(
    summary: Summary, records: Sequence[Record], chosen: str | None, told: Mapping[str, Any] | None
) -> Iterable[tuple[str, Html | None]]:
    names = [row.name for row in summary.rows]
    styles = {name: Style.of(i) for i, name in enumerate(names)}
    asked = {"encodings": names, "train_length": summary.trained}
    results = Results(records, {"settings": asked, "rank": None, "reference": None, "workload": {}})
    yield "Results", _losses(summary)
    yield "Written", _written(chosen, told)
    yield "Loss", _figures("loss", summary, results, styles)
    yield "Hidden sentences", _retrieval(summary, results, names)
    yield "Definitions", _definitions(summary, results)
    yield "Tuning", legend("tuning", styles, pictures.training(results, styles))
    yield "Tasks", _tasks(summary)
    yield "Methods", rows(("method", "as applied"), list(summary.about["workload"]["methods"].items()))
    yield "Failed", rows(("method", "reason"), [(row.name, row.failed or "") for row in summary.rows if row.failed])
    command = summary.about.get("command")
    yield "Settings", join(element("pre", command) if command else None, facts(summary.about["settings"]))
    yield "Model, text and measurements", facts({k: v for k, v in summary.about["workload"].items() if k != "methods"})
    yield "Versions and hardware", facts({k: summary.about.get(k) for k in ("versions", "hardware")})
    yield "How to read this", _reading(summary)


def _losses(summary: Summary) -> Html:
    """One row a method, with the loss at each length and what it gained or lost there."""
    head = ["method"]
    for n in summary.lengths:
        head += [f"loss at\n{n:,}", "against\nunchanged", "seen"]
    body = []
    for row in summary.rows:
        cells = []
        for n in summary.lengths:
            least = min((r.losses[n].mean for r in summary.rows if n in r.losses), default=None)
            own = row.losses.get(n)
            kind = "number best" if own is not None and own.mean == least else "number"
            gap = row.gaps.get(n)
            cells += [
                element("td", written(own), class_=kind),
                element("td", written(gap, signed=True), class_="number"),
                element("td", "–" if row.name == UNCHANGED or gap is None else verdict(gap), class_="word"),
            ]
        body.append(element("tr", element("th", row.name, scope="row"), cells))
    top = element(
        "tr",
        [element("th", cell, scope="col", class_="number" if "at" in cell or "ag" in cell else None) for cell in head],
    )
    table = element("table", element("thead", top), element("tbody", body))
    first = f"{summary.trained:,} tokens is what the model was trained for: what a method costs there is its price."
    return join(
        element("div", table, class_="scroll", tabindex="0", role="region", aria_label="Results"),
        element("p", first, class_="soft note"),
    )


def _written(chosen: str | None, told: Mapping[str, Any] | None) -> Html | None:
    if chosen is None or told is None:
        return None
    said = {"method": chosen, "folder": told["path"], "load it with": told.get("loads_with")}
    if told.get("difference") is not None:
        said["logits in plain transformers differ by"] = f"{told['difference']:.1e} of the largest"
    if told.get("lost"):
        said["what the checkpoint cannot say"] = "; ".join(told["lost"])
    return facts(said)


def _figures(name: str, summary: Summary, results: Results, styles: Styles) -> Html | None:
    if not results.scores():
        return None
    table = board(results, rank=summary.trained, reference=UNCHANGED if results.scores(UNCHANGED) else None)
    return legend(name, styles, pictures.positions(results, table, styles) + pictures.by_size(results, table, styles))


def _retrieval(summary: Summary, results: Results, names: Sequence[str]) -> Html | None:
    parts = []
    for metric in ("accuracy", "nats gained"):
        found = results.of("retrieval", metric=metric)
        if found:
            maps = heatmaps.retrieval(found, names)
            parts.append(join(element("h3", metric), Html(str(maps).replace("retrieval-", f"{metric[:4]}-"))))
    if not parts:
        return None
    return join(_fractions(summary, "needles"), parts)


def _definitions(summary: Summary, results: Results) -> Html | None:
    if not results.of("definition"):
        return None
    gained = [
        (r["encoding"], f"{r['length']:,}", fixed_point(r["value"], 2, signed=True))
        for r in results.of("definition", metric="nats gained")
    ]
    text = (
        "The parameters of a function, asked for at the end of a context that begins with its header and does not name it "
        "again."
    )
    return join(
        element("p", text, class_="soft note"),
        _fractions(summary, "definitions"),
        rows(("method", "tokens", "nats gained by having read it"), gained),
    )


def _tasks(summary: Summary) -> Html | None:
    """Return results of lm-eval, those of one task and metric together."""
    kinds = dict.fromkeys((score.task, score.metric) for row in summary.rows for score in row.tasks)
    body = [
        (
            f"{task}, {metric}" + (f" ({score.better} is better)" if score.better else ""),
            row.name,
            written(score.value),
            written(score.gap, signed=True),
            "–" if score.gap is None else score.seen,
        )
        for task, metric in kinds
        for row in summary.rows
        for score in row.tasks
        if (score.task, score.metric) == (task, metric)
    ]
    text = f"Tasks of lm-eval, with inputs of up to {summary.wanted:,} tokens for every method."
    return (
        join(
            element("p", text, class_="soft note"), rows(("task", "method", "value", "against unchanged", "seen"), body)
        )
        if body
        else None
    )


def _fractions(summary: Summary, what: str) -> Html | None:
    """Return answers that are right, a row a method and a column a length."""
    body = []
    for row in summary.rows:
        of = getattr(row, what)
        if of:
            body.append((row.name, *(percent(of[n]) if n in of else "–" for n in summary.lengths)))
    return rows(("right at", *(f"{n:,}" for n in summary.lengths)), body)


def _reading(summary: Summary) -> Html:
    scored = summary.about["workload"]["scored"]
    said = [
        f"A loss is in nats a token, of the last {scored:,} tokens of each window: the same tokens at every length, with more or "
        "less text before them. A model that uses its context has a lower loss the more it reads.",
        "± is half of a 95 % interval over the choice of documents: windows of one document are resampled together. Differences "
        "are taken document by document, so that what is hard for every method drops out. Nothing else is random in a method "
        "that is not trained.",
        "Fractions have Wilson's 95 % interval in brackets. An answer is right if greedy decoding would write all of it. “Nats "
        "gained” is what a token of the answer costs less than when the text holds another answer in the same place.",
        "The loss hardly sees retrieval: most of it is decided by the nearest few hundred tokens. Read both.",
    ]
    if summary.about["settings"].get("tune"):
        said.append(
            "Tuned models have also learned from the same kind of text, which lowers their loss at every length. The model as it "
            "is, tuned in the same way, shows how much of a gain that is."
        )
    return join([element("p", text) for text in said])
