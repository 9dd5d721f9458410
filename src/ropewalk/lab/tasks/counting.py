"""A program that counts, among instructions that do nothing.

    b+1 a=0 pass a+1 b=0 pass a+1 a? → 2

Source: arXiv 2405.18719.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError
from ropewalk.lab.tasks.examples import DIGITS, LETTERS, Examples, check_fraction, distinct, uniform, written
from ropewalk.lab.tasks.sources import CONTEXTUAL
from ropewalk.lab.tasks.task import Task

PASS = 1  # then, for each variable: set to 0, add 1, ask; then the digits


class Counting(Task):
    """Instructions v=0, v+1 and pass, then v? for one variable v, and its value.

    Every instruction and every question is one token, so that the size is the number of instructions. The value is drawn
    first, uniformly from 0 to 9 (or to what the size leaves room for): v is set to 0 at a random place and counted up so
    often after it. Before that place instructions are drawn for all variables, after it for the others.

    Args:
        variables: number of variables.
        passes: probability that an instruction which does not matter to the answer is "pass".
        test_passes: the same where the model is scored; None: as in training.
    """

    name = "counting"
    summary = "follow a program that sets and increments variables, past instructions that do nothing"
    source = CONTEXTUAL
    size_name = "instructions"
    train_size = 32
    eval_sizes = (16, 32, 48, 64, 96, 128)
    encoder_ready = True

    def __init__(self, variables: int = 3, passes: float = 0.5, test_passes: float | None = None) -> None:
        if isinstance(variables, bool) or not isinstance(variables, int) or not 1 <= variables <= len(LETTERS):
            raise ConfigError(f"variables is a whole number from 1 to {len(LETTERS)}; got {variables!r}")
        check_fraction(passes=passes, test_passes=test_passes)
        self.variables = variables
        self.passes = passes
        self.test_passes = passes if test_passes is None else test_passes
        named = LETTERS[:variables]
        self.symbols = ("|", "pass", *(f"{v}{do}" for do in ("=0", "+1", "?") for v in named), *DIGITS)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        n = self.variables
        zero, plus, question, digit = (PASS + 1 + part * n for part in range(4))
        asked = uniform(generator, n, count, 1)
        value = uniform(generator, min(len(DIGITS), size), count, 1)

        # Which places set and count the variable asked for: value + 1 of a random order of all places.
        order = distinct(generator, count, size, size)
        chosen = torch.zeros(count, size, dtype=torch.bool).scatter(1, order, torch.arange(size) <= value)
        begin = chosen.int().argmax(1, keepdim=True)
        after = torch.arange(size) > begin

        # Whatever else there is must not touch that variable after it was set.
        other = (asked + 1 + uniform(generator, max(n - 1, 1), count, size)) % n
        variable = torch.where(after, other, uniform(generator, n, count, size))
        probability = self.test_passes if test else self.passes
        idle = torch.rand(count, size, generator=generator, dtype=torch.float64) < probability
        if n == 1:
            idle |= after
        filler = torch.where(idle, PASS, zero + variable + n * uniform(generator, 2, count, size))
        program = torch.where(chosen, plus + asked, filler).scatter(1, begin, zero + asked)
        return written(torch.cat([program, question + asked], 1), digit + value, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        *program, question = (self.symbols[token] for token in prompt[1:])
        value = {name: 0 for name in LETTERS}
        for instruction in program:
            if instruction.endswith("=0"):
                value[instruction[0]] = 0
            elif instruction.endswith("+1"):
                value[instruction[0]] += 1
        return [self.symbols.index(str(value[question[0]]))]

    def length(self, size: int) -> int:
        return size + 2

    def space(self, size: int) -> int:
        # The places that matter; what stands at the others only makes more of them.
        return self.variables * sum(math.comb(size, 1 + value) for value in range(min(len(DIGITS), size)))
