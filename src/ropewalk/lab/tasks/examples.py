"""Examples of tasks, and what they are made of: tokens, symbols, random numbers."""

from __future__ import annotations

import string
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE, Batch

EDGE = 0  # opens a sequence, ends an answer, fills up a row
ASK = 1  # "now answer"
FIRST = 2  # the first token that is a task's own

LETTERS = tuple(string.ascii_lowercase + string.ascii_uppercase)
DIGITS = tuple(string.digits)


@dataclass(frozen=True, slots=True)
class Examples:
    """Whole sequences of one size, all equally long.

    Attributes:
        tokens: (N, L) int64.
        answer: (N, L) bool, True where a token belongs to an answer.
        positions: (N, L) int64 where the task sets them.
    """

    tokens: Tensor
    answer: Tensor
    positions: Tensor | None = None

    def rows(self, chosen: Tensor) -> Examples:
        """Return some of the rows."""
        positions = None if self.positions is None else self.positions[chosen]
        return Examples(self.tokens[chosen], self.answer[chosen], positions)

    def batch(self) -> Batch:
        """Each token's target is the next one, if that is part of an answer."""
        targets = torch.where(self.answer[:, 1:], self.tokens[:, 1:], IGNORE)
        positions = None if self.positions is None else self.positions[:, :-1]
        return Batch(self.tokens[:, :-1], targets, positions=positions)


def written(prompt: Tensor, answer: Tensor, *, end: bool = True) -> Examples:
    """Write ``| prompt answer |``; without ``end`` nothing follows the answer."""
    edge = torch.full((len(prompt), 1), EDGE)
    tail = [answer, edge] if end else [answer]
    tokens = torch.cat([edge, prompt, *tail], 1)
    scored = torch.arange(tokens.shape[1]) > prompt.shape[1]
    return Examples(tokens, scored.expand_as(tokens))


def joined(parts: list[Examples]) -> Examples:
    """Join examples of one size."""
    positions = [part.positions for part in parts if part.positions is not None]
    return Examples(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.answer for part in parts]),
        torch.cat(positions) if positions else None,
    )


def ask(rows: int) -> Tensor:
    """Return a column of `ASK`."""
    return torch.full((rows, 1), ASK)


def uniform(generator: Generator, choices: int, *shape: int) -> Tensor:
    """Draw whole numbers below ``choices``."""
    return torch.randint(choices, shape, generator=generator)


def distinct(generator: Generator, rows: int, choices: int, count: int) -> Tensor:
    """Draw ``count`` different whole numbers below ``choices`` in each row, in random order."""
    return torch.rand(rows, choices, generator=generator, dtype=torch.float64).argsort(1)[:, :count]


def letters(alphabet: int) -> tuple[str, ...]:
    """Return the first letters, as symbols."""
    if isinstance(alphabet, bool) or not isinstance(alphabet, int) or not 2 <= alphabet <= len(LETTERS):
        raise ConfigError(f"alphabet is a whole number of letters from 2 to {len(LETTERS)}; got {alphabet!r}")
    return LETTERS[:alphabet]


def check_fraction(**fractions: float | None) -> None:
    """Check numbers from 0 to 1, by name; None is a number not given."""
    for name, fraction in fractions.items():
        if fraction is None:
            continue
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ConfigError(f"{name} is a number from 0 to 1; got {fraction!r}")
