"""Sums of two whole numbers.

    6 5 3 + 0 4 9 = → 2 0 7 0 |

The shorter number is filled up with zeros to the length of the longer one, and the sum to one digit more. The sum is written
from its last digit on, in the order in which people work it out, unless ``reverse=False`` asks for ``0 7 0 2``.

Sources: arXiv 2305.19466; with coupled positions: arXiv 2405.20671.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.lab.tasks.examples import DIGITS, EDGE, FIRST, Examples, ask, uniform, written
from ropewalk.lab.tasks.sources import COUPLING, IMPACT
from ropewalk.lab.tasks.task import Task

PLUS = FIRST
ZERO = FIRST + 1


class Addition(Task):
    """A + B = (A + B), digit by digit.

    The longer number has as many digits as the size says; the length of the other is drawn from 1 to that. A number does not
    begin with zero, unless it is a single digit.

    Args:
        reverse: write the sum from its last digit on.
    """

    name = "addition"
    summary = "add two whole numbers"
    source = IMPACT
    size_name = "digits"
    symbols = ("|", "=", "+", *DIGITS)
    train_size = 10
    eval_sizes = (5, 10, 15, 20, 30, 40)

    def __init__(self, reverse: bool = True) -> None:
        if not isinstance(reverse, bool):
            raise ConfigError(f"reverse is True or False; got {reverse!r}")
        self.reverse = reverse

    def write(self, a: Tensor, b: Tensor) -> Examples:
        """Write the sums of numbers, given as (N, n) digits from the first to the last."""
        carry = torch.zeros_like(a[:, 0])
        total = []
        for column in reversed((a + b).unbind(1)):
            total.append((column + carry) % 10)
            carry = (column + carry) // 10
        total.append(carry)
        answer = torch.stack(total if self.reverse else total[::-1], 1)
        plus = torch.full((len(a), 1), PLUS)
        return written(torch.cat([ZERO + a, plus, ZERO + b, ask(len(a))], 1), ZERO + answer)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        long = _numbers(generator, torch.full((count,), size), size)
        short = _numbers(generator, 1 + uniform(generator, size, count), size)
        swap = uniform(generator, 2, count, 1) == 1
        return self.write(torch.where(swap, short, long), torch.where(swap, long, short))

    def solve(self, prompt: Sequence[int]) -> list[int]:
        text = "".join(self.symbols[token] for token in prompt[1:-1])
        a, b = text.split("+")
        total = str(int(a) + int(b)).zfill(len(a) + 1)
        return [*(self.symbols.index(digit) for digit in (total[::-1] if self.reverse else total)), EDGE]

    def length(self, size: int) -> int:
        return 3 * size + 4

    def space(self, size: int) -> int:
        return 9 * 10 ** (size - 1) * 10**size


class AdditionCoupled(Addition):
    """Addition in which digits of equal significance share a position.

    With the start s and numbers of n digits, the digit of significance t (0: units) of both numbers and of the sum is at
    position s + 1 + t, '+' and '=' are at s, and what opens, ends and fills up is at 0. Where the sum is written from its
    first digit on, '=' is at s + n + 2, so that positions descend from there. In training s is drawn from all starts that
    keep positions within `max_position`; for scoring it is 1.

    Positions repeat, so causality goes by the order of the tokens, as it does everywhere in this library.

    Args:
        max_position: largest position; a learned table needs one row more.
        reverse: write the sum from its last digit on.
    """

    name = "addition_coupled"
    domain = "coupling"
    summary = "add two whole numbers, with the same position for digits of equal significance"
    source = COUPLING
    max_position: int

    def __init__(self, max_position: int = 102, reverse: bool = True) -> None:
        super().__init__(reverse)
        least = 1 + self._reach(1)
        if isinstance(max_position, bool) or not isinstance(max_position, int) or max_position < least:
            raise ConfigError(
                f"max_position is a whole number, at least {least}, which sums of single digits take; got {max_position!r}"
            )
        self.max_position = max_position
        self.largest = max_position - 1 - self._reach(0)

    def _reach(self, size: int) -> int:
        """How far the largest position lies beyond the start."""
        return size + (1 if self.reverse else 2)

    def positions(self, start: Tensor, size: int) -> Tensor:
        """(N, 3 · size + 5) positions of whole sequences with (N,) starts."""
        rising = torch.arange(1, size + 1)
        number = rising.flip(0)
        answer = torch.arange(1, size + 2)
        zero = torch.zeros(1, dtype=torch.int64)
        equals = [zero, answer] if self.reverse else [zero + size + 2, answer.flip(0)]
        inner = torch.cat([number, zero, number, *equals]) + start[:, None]
        return torch.nn.functional.pad(inner, (1, 1), value=0)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        examples = super().draw(generator, size, count, test=test)
        starts = self.max_position - self._reach(size)
        start = torch.ones(count, dtype=torch.int64) if test else 1 + uniform(generator, starts, count)
        return Examples(examples.tokens, examples.answer, self.positions(start, size))


def _numbers(generator: Generator, length: Tensor, width: int) -> Tensor:
    """(N, width) digits of numbers of (N,) lengths, with zeros before them."""
    digits = uniform(generator, 10, len(length), width)
    first = 1 + uniform(generator, 9, len(length), 1)
    place = torch.arange(width) - (width - length)[:, None]  # of a digit within its number
    leading = (place == 0) & (length > 1)[:, None]
    return torch.where(leading, first, digits).where(place >= 0, 0)
