"""Sequences with blanks, as denoisers see them: training names every blank, scoring one of each example."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.blocks import Block
from ropewalk.coordinates.layout import layout
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.place import Forward
from ropewalk.lab.results import Record
from ropewalk.lab.tasks.task import stream
from ropewalk.lab.workloads import Measure, Workload, exact_record


class Filled(Workload):
    """Examples of one size a batch, whose blanks are named by what stands around them.

    A subclass sets `symbols` and its options, calls ``__init__``, and says how examples are drawn.

    Args:
        train_size: largest size in training; a batch has examples of one size, from `min_size` on.
        eval_sizes: sizes that are scored.
        examples: how many, at each size. One blank of each is scored, so that an example is an answer.
        encoder: has to be True, since a blank is named by what is on both sides of it.

    Attributes:
        summary: one line.
        source: where it comes from.
        size_name: what a size counts.
        symbols: how each token is printed.
        min_size: smallest size there is.
    """

    summary: str
    source: str
    size_name: str
    symbols: tuple[str, ...]
    train_size: int
    eval_sizes: tuple[int, ...]
    min_size: int = 1

    def __init__(self, train_size: int, eval_sizes: Sequence[int], examples: int = 128, encoder: bool = False) -> None:
        if not encoder:
            raise ConfigError(f"{self.name} needs bidirectional attention: ask for --encoder")
        check_positive(examples=examples)
        self.train_size, self.sizes, self.examples = train_size, tuple(eval_sizes), examples
        for size in (train_size, *eval_sizes):
            self.check_size(size)
        self.vocab_size = len(self.symbols)
        # Nothing of the model is seen here, and what cannot be drawn fails before it is trained.
        drawn = {size: self._scored(size, 2, "length") for size in {train_size, *eval_sizes}}
        self.train_length = self.draw(stream("length", self.name), train_size, 2, test=False).tokens.shape[1]
        self.lengths = tuple(sorted({batch.tokens.shape[1] for batch in drawn.values()}))
        self.max_position = max(self.train_length, self.lengths[-1])

    # ---- what a workload says ---------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        """Draw examples: the target of a blank is what stands there, and all other targets are `IGNORE`.

        What an example shows, and where, is in ``drawn`` of the batch, under the names that the class says.

        Args:
            generator: of everything random.
            size: of each of them.
            count: how many.
            test: for scoring, where that makes a difference.
        """

    def check_size(self, size: int) -> None:
        """Check that there are examples of that size."""
        if isinstance(size, bool) or not isinstance(size, int) or size < self.min_size:
            raise ConfigError(
                f"the size of {self.name} is a whole number of {self.size_name} from {self.min_size} on; got {size!r}"
            )

    # ---- what follows -----------------------------------------------------------------------------------------

    def batch(self, step: int, size: int, seed: int) -> Batch:
        generator = stream("train", self.name, seed, step)
        drawn = int(torch.randint(self.min_size, self.train_size + 1, (1,), generator=generator))
        return self.draw(generator, drawn, size, test=False)

    def validation(self) -> Iterator[Batch]:
        yield self.draw(stream("validation", self.name), self.train_size, 64, test=False)

    def measures(self) -> list[Measure]:
        return [Measure(f"exact/{n}", partial(self._exact, size=n)) for n in self.sizes]

    def describe(self) -> dict[str, Any]:
        return {
            "task": self.name,
            "summary": self.summary,
            "source": self.source,
            "size_name": self.size_name,
            "train_size": self.train_size,
            "eval_sizes": list(self.sizes),
            "train_tokens": self.train_length,
            "examples": [self._shown(row) for row in range(4)],
        }

    def _scored(self, size: int, count: int, stream_name: str = "test") -> Batch:
        generator = stream(stream_name, self.name, size)
        return one_blank(self.draw(generator, size, count, test=True), generator)

    def _exact(self, forward: Forward, size: int) -> list[Record]:
        return [exact_record(forward, self._scored(size, self.examples), size, size <= self.train_size)]

    def _shown(self, row: int) -> str:
        batch = self.draw(stream("shown", self.name), self.train_size, row + 1, test=False)
        tokens, targets = batch.tokens[row].tolist(), batch.targets[row].tolist()
        answers = (self.symbols[t] for t in targets if t != IGNORE)
        return " ".join([*(self.symbols[t] for t in tokens), "→", *answers])


def one_blank(batch: Batch, generator: Generator) -> Batch:
    """Return the batch with one of the targets of each row, which are drawn alike."""
    blank = batch.targets != IGNORE
    drawn = torch.rand(blank.shape, generator=generator).masked_fill(~blank, -1.0)
    chosen = drawn.argmax(1, keepdim=True)
    kept = torch.full_like(batch.targets, IGNORE).scatter(1, chosen, batch.targets.gather(1, chosen))
    return replace(batch, targets=kept)


def laid_out(
    blocks: Sequence[Block], tokens: Tensor, targets: Tensor, drawn: Mapping[str, Tensor] | None = None
) -> Batch:
    """Return a batch whose rows (B, S) are all of these blocks."""
    where = layout(list(blocks), device=tokens.device).query
    count = len(tokens)
    return Batch(
        tokens,
        targets,
        positions=where.position.expand(count, -1),
        columns={"block": where.column("block").expand(count, -1)},
        sequence={name: fact.expand(count, *fact.shape[1:]) for name, fact in where.sequence.items()},
        drawn=drawn,
    )
