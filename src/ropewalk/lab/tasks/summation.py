"""The sum of digits, of which the last digit counts.

    summation    7 5 9 = → 1
    parity       1 0 1 1 = → 1

Source: arXiv 2305.19466.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError
from ropewalk.lab.tasks.examples import DIGITS, FIRST, Examples, ask, uniform, written
from ropewalk.lab.tasks.sources import IMPACT
from ropewalk.lab.tasks.task import Task


class Summation(Task):
    """d_1 … d_n = Σ d_i mod m.

    Args:
        modulus: m, from 2 to 10; digits are below it.
    """

    name = "summation"
    summary = "add digits up, modulo a number"
    source = IMPACT
    size_name = "digits"
    train_size = 20
    eval_sizes = (10, 20, 30, 40, 60, 80)
    encoder_ready = True

    def __init__(self, modulus: int = 10) -> None:
        if isinstance(modulus, bool) or not isinstance(modulus, int) or not 2 <= modulus <= len(DIGITS):
            raise ConfigError(f"modulus is a whole number from 2 to {len(DIGITS)}; got {modulus!r}")
        self.modulus = modulus
        self.symbols = ("|", "=", *DIGITS[:modulus])

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        digits = uniform(generator, self.modulus, count, size)
        total = digits.sum(1, keepdim=True) % self.modulus
        return written(torch.cat([FIRST + digits, ask(count)], 1), FIRST + total, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        total = sum(int(self.symbols[token]) for token in prompt[1:-1]) % self.modulus
        return [self.symbols.index(str(total))]

    def length(self, size: int) -> int:
        return size + 2

    def space(self, size: int) -> int:
        return self.modulus**size


class Parity(Summation):
    """b_1 … b_n = 1 if the number of ones is odd, else 0: summation modulo 2."""

    name = "parity"
    summary = "whether the number of ones is odd"
    size_name = "bits"

    def __init__(self) -> None:
        super().__init__(2)
