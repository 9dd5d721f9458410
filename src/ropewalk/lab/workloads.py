"""What models are trained on and measured by: text, generated tasks, classes of text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.catalog import normalise
from ropewalk.catalog.expression import parse, read_call, read_value
from ropewalk.coordinates.segments import segment_positions
from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.data import Corpus, read_corpus
from ropewalk.lab.errors import TrialError
from ropewalk.lab.place import Forward
from ropewalk.lab.places import accuracy_by_place
from ropewalk.lab.results import Record
from ropewalk.lab.retrieval import DEPTHS, Retrieval
from ropewalk.lab.settings import Settings
from ropewalk.lab.tasks import task as named_task
from ropewalk.lab.tasks.needle import Needle
from ropewalk.lab.tasks.picture_question import PictureQuestion
from ropewalk.lab.tasks.score import score
from ropewalk.lab.tasks.task import Task
from ropewalk.lab.tasks.video_needle import VideoNeedle

OWN: dict[str, str] = {
    "panorama": "ropewalk.lab.panoramas:Panoramas",
    "moving_dot": "ropewalk.lab.moving_dot:MovingDot",
    "reference_video": "ropewalk.lab.reference_video:ReferenceVideo",
    "mixed_picture": "ropewalk.lab.mixed_picture:MixedPicture",
    "shared_picture": "ropewalk.lab.shared_picture:SharedPicture",
    "overlap": "ropewalk.lab.overlap:Overlap",
    "event_frames": "ropewalk.lab.event_frames:EventFrames",
    "alignment": "ropewalk.lab.alignment:Alignment",
}
"""Workloads that are no questions with one answer, by the name of their task."""

ROWS = 16  # sequences that are measured at once, at the trained length


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement by name; names are unique in a workload and a trial never repeats one."""

    name: str
    run: Callable[[Forward], Sequence[Record]]


class Workload(ABC):
    """Batches and measurements, all of them functions of their arguments.

    Attributes:
        name: as in the records.
        vocab_size: number of tokens.
        num_classes: of the output where it is not the vocabulary.
        train_length: tokens of a training sequence, at most.
        lengths: in tokens, at which speed is measured.
        max_position: number of positions that an encoding with a table must have.
        domain: where its tokens live, as in `ropewalk.catalog.Traits`.
    """

    name: str
    vocab_size: int
    num_classes: int | None = None
    train_length: int
    lengths: tuple[int, ...]
    max_position: int
    domain: str = "sequence"

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the domains whose encodings can work on it; a clip is a grid with time for its first axis."""
        more = ("grid",) if self.domain == "clip" else ()
        return tuple(dict.fromkeys(("sequence", self.domain, *more, *self.views())))

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        """Return further domains, and how its tokens are placed for their encodings."""
        return {}

    @abstractmethod
    def batch(self, step: int, size: int, seed: int) -> Batch:
        """Return the training batch of a step."""

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """Yield batches that are never trained on, at the trained length."""

    @abstractmethod
    def measures(self) -> list[Measure]:
        """Return what a trained model is measured by."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a report says of it, as JSON."""


class Text(Workload):
    """Language modelling. At every length the same tokens are scored: the last of each window, with more or less before.

    Args:
        corpus: the text.
        train_length: tokens of a training window.
        eval_lengths: contexts that are measured.
        windows: how many, at each length.
        last: tokens at the end of a window that are scored; None: half of the shortest context, at most 128.
    """

    name = "text"

    def __init__(
        self,
        corpus: Corpus,
        train_length: int,
        eval_lengths: Sequence[int],
        windows: int = 128,
        last: int | None = None,
    ) -> None:
        self.corpus, self.train_length, self.lengths = corpus, train_length, tuple(eval_lengths)
        self.vocab_size = corpus.tokenizer.vocab_size
        self.last = last or max(1, min(128, self.lengths[0] // 2))
        self.max_position = max(train_length, self.lengths[-1])
        self.test = corpus.windows("test", self.lengths[-1], count=windows, seed=0)
        self._validation = corpus.windows("validation", train_length, count=64, seed=0)

    @property
    def domains(self) -> tuple[str, ...]:
        return ("sequence", "segments")  # its lines

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return self.corpus.batch(step, batch_size=size, length=self.train_length, seed=seed)

    def validation(self) -> Iterator[Batch]:
        yield from _windows(self._validation.tokens, ROWS)

    def measures(self) -> list[Measure]:
        made = [Measure(f"loss/{n}", partial(self._measured, length=n)) for n in self.lengths]
        retrieval = Retrieval(self.corpus, self.lengths)
        return made + [Measure(f"retrieval/{n}", partial(retrieval.run, length=n)) for n in self.lengths]

    def line_ends(self) -> Tensor:
        """Return the ids of tokens with a line break in them."""
        tokenizer = self.corpus.tokenizer
        found = [n for n in range(tokenizer.vocab_size) if "\n" in tokenizer.decode([n])]
        return torch.tensor(found, dtype=torch.int64)

    def describe(self) -> dict[str, Any]:
        windows, documents = len(self.test), len(set(self.test.documents))
        return {**self.corpus.describe(), "windows": windows, "window_documents": documents}

    def _losses(self, forward: Forward, length: int) -> Tensor:
        """Loss of each token of the windows' last ``length`` tokens, (windows, length)."""
        tokens = self.test.tokens[:, -(length + 1) :]
        rows = max(1, ROWS * self.train_length // length)
        losses = [_token_losses(forward(batch), batch.targets) for batch in _windows(tokens, rows)]
        return torch.cat(losses).double()

    def _measured(self, forward: Forward, length: int) -> list[Record]:
        losses = self._losses(forward, length)
        return [self._loss(losses), *([self._positions(losses)] if length == self.lengths[-1] else [])]

    def _loss(self, losses: Tensor) -> Record:
        length, losses = losses.shape[1], losses[:, -self.last :]
        by_document: dict[str, list[Tensor]] = {}
        for name, row in zip(self.test.documents, losses, strict=True):
            by_document.setdefault(name, []).append(row)
        documents = {n: [float(torch.cat(rows).mean()), sum(map(len, rows))] for n, rows in by_document.items()}
        found = {"last": self.last, "mean": float(losses.mean()), "documents": documents}
        return {"kind": "loss", "split": "test", "length": length, **found}

    def _positions(self, losses: Tensor) -> Record:
        length, losses = losses.shape[1], losses.mean(0)
        edges = sorted({round(i * length / 32) for i in range(33)})
        means = [float(losses[a:b].mean()) for a, b in pairwise(edges)]
        return {"kind": "positions", "length": length, "edges": edges, "loss": means}


class Generated(Workload):
    """A generated task, trained up to one size and scored at several.

    Args:
        task: the task.
        train_size: largest size in training.
        eval_sizes: sizes that are scored.
        examples: how many, at each size.
        encoder: attention is bidirectional.
    """

    def __init__(
        self, task: Task, train_size: int, eval_sizes: Sequence[int], examples: int = 128, encoder: bool = False
    ) -> None:
        self.task, self.name, self.encoder, self.domain = task, task.name, encoder, task.domain
        self.train_size, self.sizes, self.examples = train_size, tuple(eval_sizes), examples
        self.vocab_size = task.vocab_size
        for size in (*self.sizes, train_size):
            task.check_size(size)
        self.train_length = task.length(train_size)
        self.lengths = tuple(sorted({task.length(size) for size in (*eval_sizes, train_size)}))
        self.max_position = max(self.lengths[-1], (task.max_position or 0) + 1)
        self.validation_batch = self._scored(train_size, 64, seed=1)  # also fails now rather than in training

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return self.task.train_batch(step, size, seed=seed, max_size=self.train_size, bidirectional=self.encoder)

    def validation(self) -> Iterator[Batch]:
        yield from _parts(self.validation_batch, ROWS)

    def measures(self) -> list[Measure]:
        made = [Measure(f"exact/{n}", partial(self._exact, size=n)) for n in self.sizes]
        if isinstance(self.task, (Needle, VideoNeedle)):
            made += [Measure(f"grid/{n}", partial(self._grid, size=n)) for n in self.sizes]
        if isinstance(self.task, PictureQuestion) and self.task.question == "presence":
            made += [Measure(f"places/{n}", partial(self._places, size=n)) for n in self.sizes]
        return made

    def describe(self) -> dict[str, Any]:
        task, batch = self.task, self.task.train_batch(0, 4, seed=0, max_size=self.train_size)
        return {
            "task": task.name,
            "summary": task.summary,
            "source": task.source,
            "size_name": task.size_name,
            "train_size": self.train_size,
            "eval_sizes": list(self.sizes),
            "train_tokens": self.train_length,
            "examples": [task.show(batch, row) for row in range(len(batch.tokens))],
        }

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        return self.task.views()

    def _scored(self, size: int, count: int, seed: int) -> Batch:
        return self.task.eval_batch(size, count, seed, bidirectional=self.encoder)

    def _exact(self, forward: Forward, size: int) -> list[Record]:
        return [exact_record(forward, self._scored(size, self.examples, seed=0), size, size <= self.train_size)]

    def _grid(self, forward: Forward, size: int) -> list[Record]:
        task = self.task
        assert isinstance(task, (Needle, VideoNeedle))
        records: list[Record] = []
        for depth in DEPTHS:
            batch = task.at_depth(size, depth, 32, seed=0)
            right = torch.cat([score(forward(part).cpu(), part).exact for part in _parts(batch, ROWS)])
            found = {"metric": "accuracy", "value": float(right.double().mean()), "count": len(right)}
            records.append({"kind": "retrieval", "length": task.length(size), "depth": depth, **found})
        return records

    def _places(self, forward: Forward, size: int) -> list[Record]:
        assert isinstance(self.task, PictureQuestion)
        records: list[Record] = []
        for side in range(1, min(self.task.largest_object, size) + 1):
            found = accuracy_by_place(forward, self.task, size, side, bidirectional=self.encoder)
            records.append(
                {"kind": "places", "size": size, "side": side, "right": found.right.tolist(), "count": found.count}
            )
        return records


class Classes(Workload):
    """Naming the class of a piece of text, its folder or suffix, with bidirectional attention: the answer is asked for
    at the last token.

    Args:
        corpus: the text.
        train_length: tokens of a training sequence.
        eval_lengths: lengths that are scored.
        examples: how many, at each length.
    """

    name = "classes"

    def __init__(self, corpus: Corpus, train_length: int, eval_lengths: Sequence[int], examples: int = 128) -> None:
        self.corpus, self.train_length, self.lengths, self.examples = (
            corpus,
            train_length,
            tuple(eval_lengths),
            examples,
        )
        self.vocab_size = corpus.tokenizer.vocab_size
        self.num_classes = len(corpus.labels().names)
        self.max_position = max(train_length, self.lengths[-1])
        self._scored("validation", train_length)
        for length in self.lengths:
            self._scored("test", length)

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return self.corpus.classification_batch(step, batch_size=size, length=self.train_length, seed=seed)

    def validation(self) -> Iterator[Batch]:
        yield from _parts(self._scored("validation", self.train_length), ROWS)

    def measures(self) -> list[Measure]:
        return [Measure(f"exact/{n}", partial(self._exact, length=n)) for n in self.lengths]

    def describe(self) -> dict[str, Any]:
        return {**self.corpus.describe(), "labels": list(self.corpus.labels().names)}

    def _scored(self, split: str, length: int) -> Batch:
        return self.corpus.classification_batch(0, batch_size=self.examples, length=length, seed=0, split=split)

    def _exact(self, forward: Forward, length: int) -> list[Record]:
        found = [score(forward(part).cpu(), part).exact for part in _parts(self._scored("test", length), ROWS)]
        items = [int(one) for one in torch.cat(found)]
        exact, trained = sum(items) / len(items), length <= self.train_length
        return [{"kind": "exact", "size": length, "trained": trained, "exact": exact, "token": exact, "items": items}]


class Seen(Workload):
    """The same, with tokens placed in another way.

    Args:
        workload: what it is otherwise.
        view: places the tokens of a batch.
        domain: in which it places them.
    """

    def __init__(self, workload: Workload, view: Callable[[Batch], Batch], domain: str = "sequence") -> None:
        self.workload, self.view, self.name, self.domain = workload, view, workload.name, domain
        self.vocab_size, self.num_classes = workload.vocab_size, workload.num_classes
        self.train_length, self.lengths, self.max_position = (
            workload.train_length,
            workload.lengths,
            workload.max_position,
        )

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return self.view(self.workload.batch(step, size, seed))

    def validation(self) -> Iterator[Batch]:
        return map(self.view, self.workload.validation())

    def measures(self) -> list[Measure]:
        def run(forward: Forward, measure: Measure) -> Sequence[Record]:
            return measure.run(lambda batch: forward(self.view(batch)))

        return [Measure(one.name, partial(run, measure=one)) for one in self.workload.measures()]

    def describe(self) -> dict[str, Any]:
        return self.workload.describe()


def exact_record(forward: Forward, batch: Batch, size: int, trained: bool) -> Record:
    """Return the `exact` record of a batch: which rows are answered right as a whole.

    Args:
        forward: logits of a batch.
        batch: examples of one size.
        size: of them.
        trained: whether training had this size.
    """
    items: list[int] = []
    right, scored = 0.0, 0
    for part in _parts(batch, ROWS):
        found = score(forward(part).cpu(), part)
        items += [int(one) for one in found.exact]
        right += found.token * part.scored
        scored += part.scored
    exact, token = sum(items) / len(items), right / scored
    return {"kind": "exact", "size": size, "trained": trained, "exact": exact, "token": token, "items": items}


def seen_by(workload: Workload, encodings: Sequence[str]) -> Workload:
    """Return what models with these encodings work on.

    Where no encoding knows the places of a task, in its own domain or in another that it can be placed in, tokens are counted in
    the order in which they stand. In text, encodings of segments see its lines.
    """
    domains = {record.traits.domain for name in encodings for record in parse(name).records()}
    if "segments" in domains and isinstance(workload, Text):
        return Seen(workload, partial(in_lines, closing=workload.line_ends()))
    views = workload.views()
    if workload.domain == "sequence" or domains & ({*workload.domains} - {"sequence", *views}):
        return workload
    for domain in views:
        if domain in domains:
            return Seen(workload, views[domain], domain)
    return Seen(workload, Batch.in_order)


def in_lines(batch: Batch, closing: Tensor) -> Batch:
    """Place tokens by (line, place in the line); ``closing``: ids of the tokens that end a line."""
    where, _ = segment_positions(batch.tokens, closing, document_ids=batch.documents, valid=batch.valid)
    return replace(batch, positions=where.query.position)


def corpus_of(settings: Settings, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """Read the text that a comparison asks for."""
    return read_corpus(settings.data, text_column=settings.text_column, tokenizer=settings.tokenizer, progress=progress)


def resolved(settings: Settings) -> Settings:
    """Fill in the lengths that were left out: of text once, twice and four times the trained one; of a task its own."""
    if settings.task == "text":
        length = settings.train_length or 256
        return replace(
            settings, train_length=length, eval_lengths=settings.eval_lengths or (length, 2 * length, 4 * length)
        )
    task = _own(settings.task) or make_task(settings.task)
    return replace(
        settings,
        train_length=settings.train_length or task.train_size,
        eval_lengths=settings.eval_lengths or task.eval_sizes,
    )


def make_workload(settings: Settings, corpus: Corpus | None) -> Workload:
    """Make the workload that a comparison asks for; ``corpus`` where it is about text."""
    settings = resolved(settings)
    assert settings.train_length is not None
    if settings.task != "text":
        asked = (settings.train_length, settings.eval_lengths, settings.windows, settings.encoder)
        if (own := _own(settings.task)) is not None:
            return own(*asked, **_options(settings.task)[1])
        return Generated(make_task(settings.task), *asked)
    assert corpus is not None
    kind = Classes if settings.encoder else Text
    return kind(corpus, settings.train_length, settings.eval_lengths, settings.windows)


def make_task(text: str) -> Task:
    """Make a task by name, with options in brackets: ``"needle(depth=0.5)"``."""
    name, options = _options(text)
    return named_task(name, **options)


def _own(text: str) -> Any:
    """Return the class of a workload of its own, or None."""
    path = OWN.get(normalise(_options(text)[0]))
    if path is None:
        return None
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _options(text: str) -> tuple[str, dict[str, Any]]:
    """Read a name and options in brackets."""
    try:
        name, positional, options = read_call(text)
    except ConfigError as problem:
        raise ConfigError(
            f"the task {text!r} does not read as one: {problem}; write addition or needle(depth=0.5)"
        ) from None
    if positional:
        raise ConfigError(f"the task {text!r}: give its options by name, as in needle(depth=0.5)")
    return name, {key: read_value(value) for key, value in options.items()}


def _windows(tokens: Tensor, rows: int) -> Iterator[Batch]:
    """Windows of n + 1 tokens as inputs and targets."""
    for part in tokens.split(rows):
        yield Batch(part[:, :-1], part[:, 1:])


def _parts(batch: Batch, rows: int) -> Iterator[Batch]:
    for start in range(0, len(batch.tokens), rows):
        yield batch.rows(start, start + rows)


def _token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.to(logits.device).flatten(), ignore_index=IGNORE, reduction="none"
    )
    if not bool(torch.isfinite(losses).all()):
        raise TrialError("the trained model gives losses that are not finite numbers")
    return losses.view(targets.shape).cpu()
