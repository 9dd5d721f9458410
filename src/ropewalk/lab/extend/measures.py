"""What is measured of a model, in pieces small enough to be repeated after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from ropewalk.lab.data import Corpus
from ropewalk.lab.extend.losses import token_losses
from ropewalk.lab.extend.questions import Exam, Needles, find_definitions
from ropewalk.lab.extend.settings import Extension
from ropewalk.lab.extend.text import sliding
from ropewalk.lab.results import Record

TOGETHER = 8192
"""Tokens of windows that go through a model at once."""

BUCKETS = 16
"""Parts of a window whose losses are told apart."""


@dataclass(frozen=True)
class Measure:
    """A measurement: from a model to records."""

    name: str
    run: Callable[[Any], Sequence[Record]]


class Measures:
    """Loss at every length and position, needles, and definitions.

    At every length the same tokens are scored: the last ones of each window, with more or less text before them.

    Args:
        settings: how much of each.
        corpus: the text.
        trained: tokens of the trained context.
        lengths: that are measured, rising; the first is the trained one.
    """

    def __init__(self, settings: Extension, corpus: Corpus, trained: int, lengths: Sequence[int]) -> None:
        self.settings, self.lengths, self.tokenizer = settings, tuple(lengths), corpus.tokenizer
        self.scored = min(settings.scored or max(1, trained // 4), trained)
        self.windows = sliding(corpus, "test", self.lengths[-1], self.scored, settings.windows)
        self.needles = Needles(
            corpus.tokenizer, self.windows, settings.needles, settings.depths, trained, settings.seed
        )
        self.definitions = find_definitions(corpus, self.lengths[-1], trained, settings.definitions, settings.seed)

    def describe(self) -> dict[str, Any]:
        """Say what is measured, as plain data."""
        return {
            "lengths": list(self.lengths),
            "scored": self.scored,
            "windows": len(self.windows),
            "window_documents": len(set(self.windows.documents)),
            "needles": self.settings.needles,
            "definitions": len(self.definitions),
        }

    def jobs(self) -> list[Measure]:
        """Return the measurements, short contexts first."""
        made = []
        for n in self.lengths:
            made += [Measure(f"loss/{n}/{a}", partial(self._losses, n, a, b)) for a, b in self._groups(n)]
            for name, exams in (("needles", self.needles.exams(n)), ("definitions", self.definitions.exams(n))):
                made += [Measure(f"{name}/{n}/{i}", partial(self._exam, n, exam)) for i, exam in enumerate(exams)]
        return made

    def _groups(self, length: int) -> list[tuple[int, int]]:
        """Return which windows go through a model together."""
        rows = max(1, TOGETHER // length)
        starts = range(0, len(self.windows), rows)
        return [(start, min(start + rows, len(self.windows))) for start in starts]

    @torch.no_grad()
    def _losses(self, length: int, start: int, stop: int, model: Any) -> list[Record]:
        tokens = self.windows.tokens[start:stop, -(length + 1) :]
        losses = (
            token_losses(model, tokens[:, :-1], tokens[:, 1:], tokenizer=self.tokenizer)
            .double()
            .cpu()
            .view(stop - start, length)
        )
        edges = bucket_edges(length)
        return [
            {
                "kind": "window",
                "length": length,
                "window": start + i,
                "document": self.windows.documents[start + i],
                "scored": float(row[-self.scored :].mean()),
                "loss": [float(row[a:b].mean()) for a, b in pairwise(edges)],
            }
            for i, row in enumerate(losses)
        ]

    def _exam(self, length: int, exam: Exam, model: Any) -> list[Record]:
        answers = exam.take(model, self.settings.control, self.tokenizer)
        return [{"kind": "answer", "length": length, "of": answer} for answer in answers]

    def joined(self, records: Sequence[Record]) -> Iterator[Record]:
        """Join the windows of each length, and the answers of each length and depth; all other records are as they were."""
        for n in self.lengths:
            yield from self._joined_windows(n, [r for r in records if r["kind"] == "window" and r["length"] == n])
            yield from joined_answers(n, [r["of"] for r in records if r["kind"] == "answer" and r["length"] == n])
        yield from (r for r in records if r["kind"] not in ("window", "answer"))

    def _joined_windows(self, length: int, windows: Sequence[Record]) -> Iterator[Record]:
        if not windows:
            return
        documents: dict[str, list[float]] = {}
        for r in windows:
            documents.setdefault(r["document"], []).append(r["scored"])
        every = [r["scored"] for r in windows]
        yield {
            "kind": "loss",
            "split": "test",
            "length": length,
            "last": self.scored,
            "mean": sum(every) / len(every),
            "documents": {name: [sum(v) / len(v), self.scored * len(v)] for name, v in documents.items()},
        }
        columns = zip(*(r["loss"] for r in windows), strict=True)
        loss = [sum(column) / len(windows) for column in columns]
        yield {"kind": "positions", "length": length, "edges": bucket_edges(length), "loss": loss}


METRICS = {"right": "accuracy", "margin": "margin", "gained": "nats gained"}
"""What records call the numbers of an answer."""


def joined_answers(length: int, answers: Sequence[Record]) -> Iterator[Record]:
    """Join answers to questions of the same kind and depth: a record for each and each metric."""
    asked = [{k: v for k, v in answer.items() if k not in METRICS} for answer in answers]
    for facts in sorted({tuple(sorted(a.items())) for a in asked}):
        of = [answer for answer, own in zip(answers, asked, strict=True) if own == dict(facts)]
        for name, metric in METRICS.items():
            items = [answer[name] for answer in of if name in answer]
            if items:
                mean = sum(items) / len(items)
                yield {
                    **dict(facts),
                    "length": length,
                    "metric": metric,
                    "value": mean,
                    "count": len(items),
                    "items": items,
                }


def bucket_edges(length: int) -> list[int]:
    """Return where the parts of a window begin and end, whose losses are told apart."""
    return sorted({round(i * length / BUCKETS) for i in range(BUCKETS + 1)})


def measured_lengths(trained: int, wanted: int) -> list[int]:
    """Return the trained length, its doublings below the wanted one, and that."""
    lengths = [trained]
    while 2 * lengths[-1] < wanted:
        lengths.append(2 * lengths[-1])
    return [*lengths, wanted]
