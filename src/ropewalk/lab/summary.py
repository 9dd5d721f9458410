"""What the trials of a run say together: one row an encoding, best first, for the terminal, for JSON and for the report.

Text is ranked by its loss at the trained length (or at `rank`), a task by the exact matches, averaged over its sizes (or at
the size `rank`). Every encoding is compared with the reference, which is the best one unless the settings name another.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError, UnknownNameError, suggest
from ropewalk.lab.results import Record, read_results, read_settings
from ropewalk.lab.statistics import ONE_SEED, SAME, WORSE, Interval, difference, mean, verdict


class Results:
    """The records of one run and what was asked for.

    Numbers that are not finite are taken out and listed among the failures: they are no measurements, and one diverged
    trial must not hide the others.

    Args:
        records: as in `ropewalk.lab.results`.
        settings: as in ``settings.json``.
    """

    def __init__(self, records: Iterable[Record], settings: Mapping[str, Any] | None = None) -> None:
        self.settings: Mapping[str, Any] = settings or {}
        self.asked: Mapping[str, Any] = self.settings.get("settings") or {}
        self.records: list[Record] = []
        self.failures: list[Record] = []
        for record in _latest(records):
            if record["kind"] == "failed":
                self.failures.append(record)
            elif (bad := _not_finite(record)) is not None:
                self.failures.append({**record, "kind": "failed", "step": None, "reason": bad})
            else:
                self.records.append(record)

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read the folder of a run, finished or not."""
        return cls(read_results(folder), read_settings(folder))

    def of(self, kind: str, **fields: object) -> list[Record]:
        """Return the records of a kind whose fields have these values."""
        return [r for r in self.records if r["kind"] == kind and all(r.get(name) == v for name, v in fields.items())]

    @cached_property
    def encodings(self) -> list[str]:
        """Encodings in the order they were asked for."""
        return list(
            dict.fromkeys([*self.asked.get("encodings", ()), *(r["encoding"] for r in self.records + self.failures)])
        )

    @property
    def task(self) -> str:
        """The task, or "text"."""
        return str(next((r["task"] for r in self.records), self.asked.get("task", "text")))

    @cached_property
    def metric(self) -> str:
        """Kind of record that the encodings are ranked by: "exact" where answers are right or wrong, else "loss"."""
        return "exact" if self.of("exact") else "loss"

    @cached_property
    def split(self) -> str:
        """Split of the losses: "test", or "validation" as long as nothing was tested."""
        return "test" if self.of("loss", split="test") else "validation"

    @cached_property
    def sizes(self) -> list[int]:
        """Lengths of text, or sizes of a task, that were scored."""
        return sorted({r[_size(self.metric)] for r in self.scores()})

    @cached_property
    def trained(self) -> int | None:
        """The trained length of text, or the largest trained size of a task; None if nothing says."""
        if self.metric == "exact":
            return max((r["size"] for r in self.of("exact") if r["trained"]), default=None)
        length = self.asked.get("train_length")
        return None if length is None else int(length)

    def scores(self, encoding: str | None = None, size: int | None = None) -> list[Record]:
        """Return the records that rank, of one encoding and size or of all."""
        fields: dict[str, object] = {"split": self.split} if self.metric == "loss" else {}
        if encoding is not None:
            fields["encoding"] = encoding
        if size is not None:
            fields[_size(self.metric)] = size
        return self.of(self.metric, **fields)

    @cached_property
    def missing(self) -> list[str]:
        """Trials that were asked for and have neither scores nor a failure, as "encoding, seed n"."""
        seeds = self.asked.get("seeds")
        if seeds is None:
            return []
        first = self.asked.get("first_seed", 0)
        seen = {(r["encoding"], r["seed"]) for r in [*self.scores(), *self.failures]}
        wanted = [(name, seed) for name in self.encodings for seed in range(first, first + seeds)]
        return [f"{name}, seed {seed}" for name, seed in wanted if (name, seed) not in seen]


@dataclass(frozen=True)
class Row:
    """One encoding.

    Attributes:
        encoding: its name.
        scores: mean at every length or size; None where it has none.
        marks: "best" at a length, "close" where the difference to the best leaves zero in, else "".
        score: what ranks it; None for an encoding without scores.
        versus: its difference to the reference, in what ranks; None for the reference itself and where nothing pairs.
        verdict: what the difference shows.
        extra_parameters: numbers the encoding learns; None if not recorded.
        train, decode: tokens a second, the median over seeds.
        memory: bytes, the median over seeds.
    """

    encoding: str
    scores: dict[int, Interval | None]
    marks: dict[int, str]
    score: Interval | None
    versus: Interval | None
    verdict: str
    extra_parameters: int | None
    train: float | None
    decode: float | None
    memory: float | None


@dataclass(frozen=True)
class Board:
    """All encodings, best first; those without scores last.

    Attributes:
        rows: an encoding each.
        metric: "loss" (nats a token, lower is better) or "exact" (fraction of answers, higher is better).
        sizes: the lengths or sizes of `Row.scores`.
        trained: the trained one; None if nothing says.
        rank: the length or size that ranks; None: the mean over sizes.
        reference: the encoding the others are compared with; None while there are no scores.
        lengths: the sequence length that speed and memory were measured at, by what.
    """

    rows: list[Row]
    metric: str
    sizes: list[int]
    trained: int | None
    rank: int | None
    reference: str | None
    lengths: dict[str, int]

    @property
    def lower_is_better(self) -> bool:
        """Whether small scores are good ones."""
        return self.metric == "loss"

    @property
    def ranked_by(self) -> str:
        """What ranks, in words."""
        if self.rank is None:
            return "mean over sizes" if self.metric == "exact" else "loss"
        return f"size {self.rank}" if self.metric == "exact" else f"{self.rank} tokens"

    def text(self, interval: Interval | None, *, signed: bool = False) -> str:
        """Write a score, or a difference of scores, with its half-width."""
        if interval is None:
            return "–"
        unit, digits = (100, 1) if self.metric == "exact" else (1, 3)
        half = interval.half_width * unit
        if signed and 0 < half < 1:  # a small difference keeps two figures
            digits = min(max(digits, 1 - math.floor(math.log10(half))), 6)
        value = f"{interval.mean * unit:{'+' if signed else ''}.{digits}f}".replace("-", "−")
        return f"{value} ±?" if math.isinf(half) else f"{value} ±{half:.{digits}f}"


def board(results: Results, *, rank: int | None = None, reference: str | None = None) -> Board:
    """Rank the encodings of a run.

    Args:
        results: the run.
        rank: length of text or size of a task to rank by; None: the settings', else the trained length, or all sizes of a
            task.
        reference: encoding to compare with; None: the settings', else the best.
    """
    rank = rank if rank is not None else results.settings.get("rank")
    reference = reference if reference is not None else results.settings.get("reference")
    if rank is not None and rank not in results.sizes:
        raise ConfigError(f"rank is one of what was measured, {', '.join(map(str, results.sizes))}; got {rank!r}")
    if reference is not None and reference not in results.encodings:
        raise UnknownNameError(
            f"no encoding of this run is called {reference!r}; there are {', '.join(results.encodings)}."
            f"{suggest(reference, results.encodings)}"
        )
    loss = results.metric == "loss"
    if rank is None and loss and results.sizes:
        rank = results.trained if results.trained in results.sizes else results.sizes[0]
    ranking = {name: results.scores(name, rank) for name in results.encodings}
    means = {name: mean(records) for name, records in ranking.items()}
    order = sorted(results.encodings, key=lambda name: _badness(means[name], lower_is_better=loss))
    if reference is None or means[reference] is None:
        reference = next((name for name in order if means[name] is not None), None)
    marks = {size: _marks(results, size) for size in results.sizes}
    speed = {what: _comparable(results, "speed", what) for what in ("train", "decode")}
    kinds = [what for what in ("saved for backward", "cache") if results.of("memory", what=what)]
    memory = _comparable(results, "memory", kinds[0] if kinds else "")
    rows = []
    for name in order:
        versus = None
        if reference not in (None, name):
            versus = difference(ranking[name], ranking[reference])
        rows.append(
            Row(
                encoding=name,
                scores={size: mean(results.scores(name, size)) for size in results.sizes},
                marks={size: marks[size].get(name, "") for size in results.sizes},
                score=means[name],
                versus=versus,
                verdict="reference" if name == reference else verdict(versus, lower_is_better=loss),
                extra_parameters=next((r["extra_parameters"] for r in results.of("model", encoding=name)), None),
                train=_median(speed["train"], name, "tokens_per_second"),
                decode=_median(speed["decode"], name, "tokens_per_second"),
                memory=_median(memory, name, "bytes"),
            )
        )
    measured = {**speed, (kinds[0] if kinds else "memory"): memory}
    lengths = {what: records[0]["length"] for what, records in measured.items() if records}
    return Board(rows, results.metric, results.sizes, results.trained, rank, reference, lengths)


def headlines(results: Results, board: Board) -> list[str]:
    """Say what was seen, in sentences: the best, its lead, and whether the order holds where nothing was trained."""
    scored = [row for row in board.rows if row.score is not None]
    if not scored:
        return ["No encoding has been scored yet."]
    best, said = scored[0], []
    better, unit = ("lowest loss", " nats a token") if board.lower_is_better else ("most exact matches", " %")
    where = _where(board, board.rank)
    said.append(f"{where}, {best.encoding} had the {better}: {board.text(best.score)}{unit}.")
    if len(scored) > 1:
        top = results.scores(best.encoding, board.rank)
        gaps = {row.encoding: difference(results.scores(row.encoding, board.rank), top) for row in scored[1:]}
        said.append(_lead(board, gaps))
    for size in {board.sizes[-1]} - {board.rank}:
        if (sentence := _at(results, board, size, best.encoding)) is not None:
            said.append(sentence)
    if max(row.score.seeds for row in scored if row.score is not None) < 2:
        said.append(
            "One seed was trained: differences between seeds were not measured. The intervals cover the choice of test "
            "documents only, and another seed may change the order."
        )
    return said


def as_json(results: Results, *, rank: int | None = None, reference: str | None = None) -> dict[str, Any]:
    """Return the summary as plain data."""
    table = board(results, rank=rank, reference=reference)
    return {
        "task": results.task,
        "metric": table.metric,
        "lower_is_better": table.lower_is_better,
        "sizes": table.sizes,
        "trained": table.trained,
        "rank": table.rank,
        "reference": table.reference,
        "headlines": headlines(results, table),
        "encodings": [
            {
                "encoding": row.encoding,
                "scores": {str(size): _plain(score) for size, score in row.scores.items()},
                "marks": {str(size): mark for size, mark in row.marks.items()},
                "score": _plain(row.score),
                "difference": _plain(row.versus),
                "verdict": row.verdict,
                "extra_parameters": row.extra_parameters,
                "train_tokens_per_second": row.train,
                "decode_tokens_per_second": row.decode,
                "memory_bytes": row.memory,
            }
            for row in table.rows
        ],
        "measured_at": table.lengths,
        "failed": [
            {
                "trial": f["trial"],
                "encoding": f["encoding"],
                "seed": f["seed"],
                "step": f.get("step"),
                "reason": f["reason"],
            }
            for f in results.failures
        ],
        "missing": results.missing,
    }


def _lead(board: Board, gaps: Mapping[str, Interval | None]) -> str:
    """Say what separates the best from the others; gaps are theirs − its own."""
    verdicts = {name: verdict(gap, lower_is_better=board.lower_is_better) for name, gap in gaps.items()}
    clear = [name for name, word in verdicts.items() if word == WORSE]
    same = [name for name, word in verdicts.items() if word == SAME]
    unsure = [name for name, word in verdicts.items() if word == ONE_SEED]
    said = []
    if same:
        said.append(f"no difference was seen between it and {_list(same)}")
    if clear:
        said.append(f"it was better than {_list([f'{n} (by {_size_of(board, gaps[n])})' for n in clear])}")
    if unsure:
        said.append(f"it was ahead of {_list([f'{n} (by {_size_of(board, gaps[n])})' for n in unsure])} on one seed")
    if not said:
        return "Nothing else can be compared with it: no seed is on both sides."
    text = "; ".join(said)
    return text[0].upper() + text[1:] + "."


def _at(results: Results, board: Board, size: int, best: str) -> str | None:
    """Say who was best at a length other than the ranked one, and how the overall best did there."""
    first = next((row.encoding for row in board.rows if row.marks[size] == "best"), None)
    if first is None:
        return None
    scores = {row.encoding: row.scores[size] for row in board.rows}
    better, unit = ("lowest loss", " nats") if board.lower_is_better else ("most exact matches", " %")
    where = _where(board, size)
    if board.trained and size > board.trained:
        where += f" ({size / board.trained:.3g} × what was trained)"
    said = f"{where}, {first} had the {better}: {board.text(scores[first])}{unit}"
    if first == best:
        return said + ", so the order at the top is the same."
    gap = difference(results.scores(best, size), results.scores(first, size))
    word = verdict(gap, lower_is_better=board.lower_is_better)
    if gap is None:
        return f"{said}; {best} was not scored there."
    if word == SAME:
        return f"{said}; no difference was seen between it and {best}."
    also = " (one seed)" if word == ONE_SEED else ""
    return f"{said}; {best} was behind it by {_size_of(board, gap)}{also}."


def _where(board: Board, size: int | None) -> str:
    if size is None:
        return "Averaged over all sizes"
    what = f"size {size}" if board.metric == "exact" else f"{size} tokens"
    return f"At {what}, as trained" if size == board.trained else f"At {what}"


def _size_of(board: Board, gap: Interval | None) -> str:
    if gap is None:
        return "–"
    return board.text(Interval(abs(gap.mean), abs(gap.mean) - gap.half_width, abs(gap.mean) + gap.half_width, 0, 0))


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _marks(results: Results, size: int) -> dict[str, str]:
    """Mark the best encoding at a size, and those whose difference to it leaves zero in."""
    loss = results.metric == "loss"
    records = {name: results.scores(name, size) for name in results.encodings}
    means = {name: score for name in records if (score := mean(records[name])) is not None}
    if not means:
        return {}
    best = min(means, key=lambda name: _badness(means[name], lower_is_better=loss))
    gaps = {name: difference(records[name], records[best]) for name in means if name != best}
    return {best: "best"} | {name: "close" for name, gap in gaps.items() if gap is not None and gap.spans_zero}


def _badness(score: Interval | None, *, lower_is_better: bool) -> float:
    if score is None:
        return math.inf
    return score.mean if lower_is_better else -score.mean


def _comparable(results: Results, kind: str, what: str) -> list[Record]:
    """Return the records at the longest length that most encodings were measured at."""
    records = results.of(kind, what=what)
    reach = {r["length"]: 0 for r in records}
    for length in reach:
        reach[length] = len({r["encoding"] for r in records if r["length"] == length})
    length = max(reach, key=lambda n: (reach[n], n), default=None)
    return [r for r in records if r["length"] == length]


def _median(records: list[Record], encoding: str, field: str) -> float | None:
    values = [float(r[field]) for r in records if r["encoding"] == encoding]
    return plain.median(values) if values else None


def _plain(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else interval.as_dict()


def _size(metric: str) -> str:
    return "size" if metric == "exact" else "length"


# What tells records of a kind apart, within a trial.
_KEYS: dict[str, tuple[str, ...]] = {
    "loss": ("split", "length"),
    "positions": ("length",),
    "retrieval": ("length", "depth", "metric"),
    "exact": ("size",),
    "speed": ("what", "length"),
    "memory": ("what", "length"),
    "learned": ("name",),
    "fixed": ("name",),
    "sweep": ("lr",),
    "failed": ("reason",),
}


def _latest(records: Iterable[Record]) -> list[Record]:
    """Keep the later of records that measure the same: a trial that was resumed may repeat itself."""
    kept: dict[tuple[object, ...], Record] = {}
    for record in records:
        key = (record["kind"], record["trial"], *(record.get(name) for name in _KEYS.get(record["kind"], ())))
        kept[key] = record
    return list(kept.values())


def _not_finite(record: Record) -> str | None:
    """Return the reason why a record is no measurement, or None."""
    for name, value in record.items():
        if name == "context" or _all_finite(value):
            continue
        where = ", ".join(f"{key} {record[key]}" for key in _KEYS.get(record["kind"], ()) if key in record)
        return f"{name} of {record['kind']}{f' ({where})' if where else ''} is not a finite number"
    return None


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_all_finite, value.values()))
    if isinstance(value, list):
        return all(map(_all_finite, value))
    return True
