"""Point at a symbol: by where it is, by what stands before it, or by both.

    index_position       c a f b = 0 2 → f                (counted from 0)
    index_content        c a f b = a → f
    indirect_indexing    c a f b = a + 0 2 → b            (two to the right of the letter a)

Source: arXiv 2509.10534 for the third. The other two take it apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.tasks.examples import ASK, DIGITS, FIRST, LETTERS, Examples, ask, distinct, letters, uniform, written
from ropewalk.lab.tasks.sources import POLAR
from ropewalk.lab.tasks.task import Task


class IndexPosition(Task):
    """x_0 … x_(n−1) = i, and the answer x_i.

    Args:
        alphabet: number of different symbols, drawn uniformly and independently.
        origin: ``"start"``: i counts from the first symbol; ``"end"``: from the last one backwards.
        digits: digits of i, which is filled up with zeros; they limit the size.
    """

    name = "index_position"
    summary = "the symbol at a place that is given by number"
    source = POLAR
    size_name = "symbols"
    train_size = 20
    eval_sizes = (10, 20, 30, 40, 60, 80)
    encoder_ready = True

    def __init__(self, alphabet: int = 26, origin: str = "start", digits: int = 2) -> None:
        check_positive(digits=digits)
        if origin not in ("start", "end"):
            raise ConfigError(f"origin is 'start' or 'end'; got {origin!r}")
        self.symbols = ("|", "=", *letters(alphabet), *DIGITS)
        self.alphabet, self.origin, self.digits = alphabet, origin, digits
        self.largest = 10**digits

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        symbols = FIRST + uniform(generator, self.alphabet, count, size)
        index = uniform(generator, size, count, 1)
        answer = symbols.gather(1, index if self.origin == "start" else size - 1 - index)
        number = FIRST + self.alphabet + decimal(index, self.digits)
        return written(torch.cat([symbols, ask(count), number], 1), answer, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        middle = prompt.index(ASK)
        index = int("".join(self.symbols[token] for token in prompt[middle + 1 :]))
        symbols = prompt[1:middle]
        return [symbols[index] if self.origin == "start" else symbols[-1 - index]]

    def length(self, size: int) -> int:
        return size + 2 + self.digits

    def space(self, size: int) -> int:
        return size * self.alphabet**size


class IndexContent(Task):
    """x_0 … x_(n−1) = x_i, and the answer x_(i+1); x_i occurs once.

    Args:
        alphabet: number of different symbols.
    """

    name = "index_content"
    summary = "the symbol that stands after a given one"
    source = POLAR
    size_name = "symbols"
    train_size = 20
    eval_sizes = (10, 20, 30, 40, 60, 80)
    min_size = 2
    encoder_ready = True

    def __init__(self, alphabet: int = 26) -> None:
        self.symbols = ("|", "=", *letters(alphabet))
        self.alphabet = alphabet

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        asked = uniform(generator, self.alphabet, count, 1)
        others = (asked + 1 + uniform(generator, self.alphabet - 1, count, size)) % self.alphabet
        place = uniform(generator, size - 1, count, 1)
        symbols = FIRST + others.scatter(1, place, asked)
        return written(torch.cat([symbols, ask(count), FIRST + asked], 1), symbols.gather(1, place + 1), end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        symbols = list(prompt[1 : prompt.index(ASK)])
        return [symbols[symbols.index(prompt[-1]) + 1]]

    def length(self, size: int) -> int:
        return size + 3

    def space(self, size: int) -> int:
        return self.alphabet * (size - 1) * (self.alphabet - 1) ** (size - 1)


class IndirectIndexing(Task):
    """x_0 … x_(n−1) = x_i shift, and the answer x_(i + shift); all letters are different.

    The letter is drawn first, then the shift from those that stay within the string. Its size is written with as many digits
    as the largest one has, so that examples of a size are equally long.

    Args:
        max_shift: largest shift to either side.
    """

    name = "indirect_indexing"
    summary = "the letter at a given distance from a given letter"
    source = POLAR
    size_name = "letters"
    symbols = ("|", "=", *LETTERS, "+", "-", *DIGITS)
    train_size = 20
    eval_sizes = (10, 20, 30, 40, 52)
    largest = len(LETTERS)
    encoder_ready = True

    def __init__(self, max_shift: int = 15) -> None:
        check_positive(max_shift=max_shift)
        if max_shift >= len(LETTERS):
            raise ConfigError(f"max_shift is a whole number from 1 to {len(LETTERS) - 1}; got {max_shift}")
        self.max_shift = max_shift
        self.digits = len(str(max_shift))

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        symbols = FIRST + distinct(generator, count, len(LETTERS), size)
        place = uniform(generator, size, count, 1)
        least = (place - self.max_shift).clamp(min=0)
        most = (place + self.max_shift).clamp(max=size - 1)
        span = (most - least + 1).double()
        # The smaller of the two guards against a product that is rounded up to the span itself.
        there = least + (torch.rand(count, 1, generator=generator, dtype=torch.float64) * span).long()
        there = torch.minimum(there, most)
        shift = there - place
        sign = FIRST + len(LETTERS) + (shift < 0).long()
        number = FIRST + len(LETTERS) + 2 + decimal(shift.abs(), self.digits)
        prompt = torch.cat([symbols, ask(count), symbols.gather(1, place), sign, number], 1)
        return written(prompt, symbols.gather(1, there), end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        middle = prompt.index(ASK)
        symbols = list(prompt[1:middle])
        shift = int("".join(self.symbols[token] for token in prompt[middle + 2 :]))
        return [symbols[symbols.index(prompt[middle + 1]) + shift]]

    def length(self, size: int) -> int:
        return size + 4 + self.digits

    def space(self, size: int) -> int:
        return size * math.perm(len(LETTERS), size)


def decimal(number: Tensor, digits: int) -> Tensor:
    """(N, digits) decimal digits of (N, 1) whole numbers, from the first to the last."""
    return number // 10 ** torch.arange(digits - 1, -1, -1) % 10
