"""What a generated task is, and how its examples become batches.

An example is one sequence of tokens: a prompt, and then the answer, token after token (or several answers, each after
its own part of the prompt). A model reads the sequence without its last token and is scored where the next token belongs
to an answer:

    inputs     |  b  c  a  =  a  b  c
    targets    .  .  .  .  a  b  c  |       (. is not scored)

Token 0, written ``|``, opens every sequence, ends answers that are longer than one token, and fills up short rows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Generator, Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.tasks.examples import EDGE, Examples, joined

HELD_OUT = 8  # one example in so many is kept from training
FEW = 1000  # different examples below which nothing can be held out
ROUNDS = 100


class Task(ABC):
    """Examples of a size, drawn at random, and their answers.

    What the sizes count is the task's matter (digits, pairs, symbols, ...). Training draws the size of every row uniformly
    from `min_size` to the largest asked for; scoring asks for one size at a time.

    **Training and scoring never share a stream** of random numbers. Beyond that, where there are at least `FEW` different
    examples of a size (`space`), one in `HELD_OUT` of them, told by a hash of its tokens, is kept from training, and
    scoring uses these alone. Where there are fewer, as there are only a hundred sums of two digits, both use all of them.

    Attributes:
        name: what it is asked for by.
        summary: one line.
        source: where it comes from.
        size_name: what a size counts.
        symbols: how each token is printed; token n is ``symbols[n]``.
        train_size: largest size of training, unless the user says otherwise.
        eval_sizes: sizes that are scored, unless the user says otherwise; the largest are never trained on.
        min_size: smallest size there is.
        largest: largest size there is with these options; None: no bound.
        encoder_ready: whether the answer is a single token and comes last, so that no input token is part of an answer
            and attention need not be causal.
        max_position: where the task sets positions: the largest there can be; None: positions are counted as usual.
        domain: where its tokens live, as in `ropewalk.catalog.Traits`; a task of another domain than "sequence" places them.
    """

    name: str
    summary: str
    source: str
    size_name: str
    symbols: tuple[str, ...]
    train_size: int
    eval_sizes: tuple[int, ...]
    min_size: int = 1
    largest: int | None = None
    encoder_ready: bool = False
    max_position: int | None = None
    domain: str = "sequence"

    # ---- what a task says -----------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        """Draw ``count`` examples of a size; ``test``: for scoring, where a task makes a difference."""

    @abstractmethod
    def solve(self, prompt: Sequence[int]) -> list[int]:
        """Answer that follows these tokens, worked out from the tokens alone and not in the way `draw` does it.

        Where a sequence has several answers, the prompt of a later one contains the earlier ones.
        """

    @abstractmethod
    def length(self, size: int) -> int:
        """Most tokens a model reads for an example of that size."""

    @abstractmethod
    def space(self, size: int) -> int:
        """Number of different examples of a size, or a number that is not above it."""

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        """Domains beside its own whose encodings can work on it, and how its tokens are placed for them."""
        return {}

    # ---- what follows ---------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Number of different tokens."""
        return len(self.symbols)

    def examples(self, generator: Generator, size: int, count: int, *, test: bool = False) -> Examples:
        """Draw examples of the side (training or scoring) that they are for."""
        self.check_size(size)
        if self.space(size) < FEW:
            return self.draw(generator, size, count, test=test)
        kept, missing = [], count
        for _ in range(ROUNDS):
            drawn = self.draw(
                generator, size, missing * HELD_OUT + 8 if test else missing + missing // 4 + 4, test=test
            )
            fit = (held_out(drawn.tokens) == test).nonzero()[:missing, 0]
            kept.append(drawn.rows(fit))
            missing -= len(fit)
            if not missing:
                return joined(kept)
        raise ConfigError(
            f"{self.name} of size {size} should have {self.space(size)} different examples, but {missing} of {count} could "
            f"not be found on the {'scoring' if test else 'training'} side; its space() promises too many"
        )

    def batch(self, generator: Generator, size: int, count: int, *, test: bool = False) -> Batch:
        """Return ``count`` examples of one size as a batch."""
        return self.examples(generator, size, count, test=test).batch()

    def train_batch(
        self, step: int, batch_size: int, *, seed: int, max_size: int, bidirectional: bool = False
    ) -> Batch:
        """Batch of a training step: a function of its arguments alone, the same in every process.

        The size of each row is drawn uniformly; rows are filled up on the right to the longest.

        Args:
            step: number of the step.
            batch_size: number of rows.
            seed: seed of the training data.
            max_size: largest size.
            bidirectional: say which tokens are padding, for attention that is not causal; only where `encoder_ready`.
        """
        check_positive(batch_size=batch_size)
        self.check_size(max_size)
        generator = stream("train", self.name, seed, step)
        sizes = torch.randint(self.min_size, max_size + 1, (batch_size,), generator=generator)
        groups = []
        for size in sizes.unique().tolist():
            rows = (sizes == size).nonzero()[:, 0]
            groups.append((rows, self.batch(generator, size, len(rows))))
        return self._padded(groups, batch_size, bidirectional)

    def eval_batch(self, size: int, count: int, seed: int, *, bidirectional: bool = False) -> Batch:
        """Examples of one size to score on: a function of its arguments alone, from another stream than training."""
        check_positive(count=count)
        batch = self.batch(stream("test", self.name, seed, size), size, count, test=True)
        return self._padded([(torch.arange(count), batch)], count, bidirectional)

    def show(self, batch: Batch, row: int) -> str:
        """One row as people read it: ``b c a = → a b c |``."""
        tokens, targets = batch.tokens[row].tolist(), batch.targets[row].tolist()
        read: list[tuple[str, str]] = []
        asked = False
        for token, target in zip(tokens, targets, strict=True):
            if not asked and (read or token != EDGE):
                read.append(("prompt", self.symbols[token]))
            asked = target != IGNORE
            if asked:
                read.append(("answer", self.symbols[target]))
        while read and read[-1] == ("prompt", self.symbols[EDGE]):
            read.pop()  # what fills up the row
        parts = [(kind, " ".join(word for _, word in words)) for kind, words in groupby(read, key=lambda word: word[0])]
        return " ".join(f"→ {text}" if kind == "answer" else text for kind, text in parts)

    def check_size(self, size: int) -> None:
        """Check that there are examples of that size."""
        whole = isinstance(size, int) and not isinstance(size, bool)
        if not whole or size < self.min_size or (self.largest is not None and size > self.largest):
            most = "on" if self.largest is None else f"to {self.largest} with these options"
            raise ConfigError(
                f"the size of {self.name} is a whole number of {self.size_name} from {self.min_size} {most}; got {size!r}"
            )

    def _padded(self, groups: list[tuple[Tensor, Batch]], count: int, bidirectional: bool) -> Batch:
        if bidirectional and not self.encoder_ready:
            raise ConfigError(
                f"{self.name} needs causal attention: with these options its answers are among the tokens that a model "
                "reads. Leave out --encoder, or choose a task with a single answer at the end, such as needle or parity"
            )
        width = max(part.tokens.shape[1] for _, part in groups)
        tokens = torch.full((count, width), EDGE)
        targets = torch.full((count, width), IGNORE)
        valid = torch.zeros(count, width, dtype=torch.bool)
        positions = None if self.max_position is None else torch.zeros(count, width, dtype=torch.int64)
        for rows, part in groups:
            n = part.tokens.shape[1]
            tokens[rows, :n], targets[rows, :n], valid[rows, :n] = part.tokens, part.targets, True
            if positions is not None and part.positions is not None:
                positions[rows, :n] = part.positions
        return Batch(tokens, targets, positions=positions, valid=valid if bidirectional else None)


def stream(*key: str | int) -> Generator:
    """Return a generator of random numbers that depends on the key alone, in every process and version of Python."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def held_out(tokens: Tensor) -> Tensor:
    """(N,) bool: the rows of (N, L) tokens that training must not see, one in `HELD_OUT`, by a hash of the tokens."""
    factor = torch.full((tokens.shape[1],), 0x5851F42D4C957F2D).cumprod(0)  # int64 products wrap around
    mixed = ((tokens + 1) * factor).sum(1)
    for shift, multiplier in ((32, 0x2127599BF4325C37), (29, 0x369DEA0F31A53F85)):
        mixed = (mixed ^ (mixed >> shift)) * multiplier
    return (mixed >> 40) % HELD_OUT == 0
