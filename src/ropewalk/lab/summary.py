"""What the trials of a run say together: one row an encoding, best first, for the terminal, for JSON and for the report.

Text is ranked by its loss at the trained length (or at `rank`), a task by the exact matches, averaged over its sizes (or at
the size `rank`). Every encoding is compared with the reference, which is the best one unless the settings name another.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.core.errors import ConfigError, UnknownNameError, suggest
from ropewalk.lab.measured import Results
from ropewalk.lab.results import Record
from ropewalk.lab.statistics import BETTER, ONE_SEED, SAME, WORSE, Interval, difference, mean, verdict

__all__ = ["Board", "Results", "Row", "as_json", "board", "fixed_point", "headlines"]


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
        size_name: what sizes count, see `Results.size_name`.
    """

    rows: list[Row]
    metric: str
    sizes: list[int]
    trained: int | None
    rank: int | None
    reference: str | None
    lengths: dict[str, int]
    size_name: str | None

    @property
    def lower_is_better(self) -> bool:
        """Whether small scores are good ones."""
        return self.metric == "loss"

    @property
    def ranked_by(self) -> str:
        """What ranks, in words."""
        return "the mean over sizes" if self.rank is None else f"the score at {self.at(self.rank)}"

    def at(self, size: int) -> str:
        """Name a length or size."""
        return f"size {size}" if self.size_name is None else f"{size} {self.size_name}"

    def text(self, interval: Interval | None, *, signed: bool = False) -> str:
        """Write a score, or a difference of scores, with its half-width."""
        if interval is None:
            return "–"
        unit, digits = (100, 1) if self.metric == "exact" else (1, 3)
        half = interval.half_width * unit
        if signed and 0 < half < 1:  # a small difference keeps two figures
            digits = min(max(digits, 1 - math.floor(math.log10(half))), 6)
        value = fixed_point(interval.mean * unit, digits, signed=signed)
        return f"{value} ±?" if math.isinf(half) else f"{value} ±{half:.{digits}f}"


def fixed_point(value: float, digits: int, *, signed: bool = False) -> str:
    """Write a number with a typographic minus, and zero without any sign of its own."""
    text = f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "−")
    return text.replace("−", "+" if signed else "") if not any(digit in text for digit in "123456789") else text


def board(results: Results, *, rank: int | None = None, reference: str | None = None) -> Board:
    """Rank the encodings of a run.

    Args:
        results: the run.
        rank: length of text or size of a task to rank by; None: the settings', else the trained length of text or all sizes
            of a task.
        reference: encoding to compare with; None: the settings', else the best.
    """
    rank = rank if rank is not None else results.settings.get("rank")
    reference = reference if reference is not None else results.settings.get("reference")
    if rank is not None and results.sizes and rank not in results.sizes:
        raise ConfigError(f"rank is one of what was measured, {', '.join(map(str, results.sizes))}; got {rank!r}")
    if reference is not None and reference not in results.encodings:
        raise UnknownNameError(
            f"no encoding of this run is called {reference!r}; there are {', '.join(results.encodings)}."
            f"{suggest(reference, results.encodings)}"
        )
    loss = results.metric == "loss"
    # Sizes of a task have examples of their own; lengths of text share their documents and cannot be averaged.
    if rank is None and (loss or results.task == "text") and results.sizes:
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
    return Board(rows, results.metric, results.sizes, results.trained, rank, reference, lengths, results.size_name)


def headlines(results: Results, board: Board) -> list[str]:
    """Say what was seen, in sentences: the best, its lead, and who is best at the longest length."""
    scored = {row.encoding: row.score for row in board.rows if row.score is not None}
    if not scored:
        return ["No encoding has been scored yet."]
    best = next(iter(scored))
    said, where, score = [], _where(board, board.rank), board.text(scored[best])
    better, unit = ("lowest loss", " nats a token") if board.lower_is_better else ("most exact matches", " %")
    level = [name for name, score in scored.items() if score.mean == scored[best].mean]
    if len(level) > 1:
        said.append(f"{where}, {_list(level)} scored exactly the same: {score}{unit}.")
    else:
        said.append(f"{where}, {best} had the {better}: {score}{unit}.")
    others = [name for name in scored if name not in level]
    if others:
        top = results.scores(best, board.rank)
        said.append(_lead(board, best, {n: difference(results.scores(n, board.rank), top) for n in others}))
    for size in {board.sizes[-1]} - {board.rank}:
        if (sentence := _at(results, board, size, best)) is not None:
            said.append(sentence)
    if max(score.seeds for score in scored.values()) < 2:
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
                "reason": f["reason"],
            }
            for f in results.failures
        ],
        "refused": [{"encoding": r["encoding"], "what": r["what"], "reason": r["reason"]} for r in results.refusals],
        "missing": results.missing,
    }


def _lead(board: Board, best: str, gaps: Mapping[str, Interval | None]) -> str:
    """Say what separates the best from the others; gaps are theirs − its own."""
    words = {name: verdict(gap, lower_is_better=board.lower_is_better) for name, gap in gaps.items()}

    def those(word: str) -> str:
        by = "" if word == SAME else " (by {})"
        return _list([name + by.format(_size_of(board, gaps[name])) for name in gaps if words[name] == word])

    said = []
    if same := those(SAME):
        said.append(f"no difference was seen between {best} and {same}")
    if behind := those(WORSE):
        said.append(f"{best} was better than {behind}")
    if unsure := those(ONE_SEED):
        said.append(f"{best} was ahead of {unsure} on one seed")
    if ahead := those(BETTER):  # by its mean it is behind, but that is over other seeds
        said.append(f"on the seeds they share, {best} was worse than {ahead}")
    if not said:
        return "No other encoding shares a seed with it, so none can be compared."
    text = "; ".join(said)
    return text[0].upper() + text[1:] + "." if same else text + "."


def _at(results: Results, board: Board, size: int, best: str) -> str | None:
    """Say who was best at a length other than the ranked one, and how the overall best did there."""
    scores = {row.encoding: score for row in board.rows if (score := row.scores[size]) is not None}
    if not scores:
        return None
    better, unit = ("lowest loss", " nats") if board.lower_is_better else ("most exact matches", " %")
    where = _where(board, size)
    if board.trained and size > board.trained:
        where += f" ({size / board.trained:.3g} × what was trained)"
    first = next((row.encoding for row in board.rows if row.marks[size] == "best"), None)
    if first is None:
        return f"{where}, all scored exactly the same: {board.text(next(iter(scores.values())))}{unit}."
    said = f"{where}, {first} {'also ' if first == best else ''}had the {better}: {board.text(scores[first])}{unit}"
    if first == best:
        return said + "."
    gap = difference(results.scores(best, size), results.scores(first, size))
    word = verdict(gap, lower_is_better=board.lower_is_better)
    if gap is None:
        return f"{said}; {best} was not scored there."
    if word == SAME:
        return f"{said}; no difference was seen between it and {best}."
    if word == BETTER:  # its own mean is over other seeds
        return f"{said}; on the seeds they share, {best} was better than it."
    also = " (one seed)" if word == ONE_SEED else ""
    return f"{said}; {best} was behind it by {_size_of(board, gap)}{also}."


def _where(board: Board, size: int | None) -> str:
    if size is None:
        return "Averaged over all sizes"
    return f"At {board.at(size)}, as trained" if size == board.trained else f"At {board.at(size)}"


def _size_of(board: Board, gap: Interval | None) -> str:
    if gap is None:
        return "–"
    return board.text(Interval(abs(gap.mean), abs(gap.mean) - gap.half_width, abs(gap.mean) + gap.half_width, 0, 0))


def _list(names: list[str]) -> str:
    return " and ".join([part for part in (", ".join(names[:-1]), *names[-1:]) if part])


def _marks(results: Results, size: int) -> dict[str, str]:
    """Mark the best encoding at a size, and those whose difference to it leaves zero in."""
    loss = results.metric == "loss"
    records = {name: results.scores(name, size) for name in results.encodings}
    means = {name: score for name in records if (score := mean(records[name])) is not None}
    if not means or 1 == len({score.mean for score in means.values()}) < len(means):
        return {}  # nothing was measured, or all scored the same and none is best
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
