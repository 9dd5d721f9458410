"""A memory of one bit: read what was written last.

    w 1 i 0 i 1 r → 1 w 0 i 1 r → 0        (write, ignore, read)

Source: arXiv 2306.00946.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.lab.tasks.examples import EDGE, Examples, check_fraction, uniform
from ropewalk.lab.tasks.sources import FLIP_FLOP
from ropewalk.lab.tasks.task import Task

WRITE, READ, IGNORED = 1, 2, 3  # instructions; the bits follow them
BIT = 4


class FlipFlop(Task):
    """(instruction, bit) pairs, where the bit after a read is the one after the last write.

    The first instruction is a write and the last a read. Each of the others is "ignore" with a given probability, and write
    or read with equal shares of the rest. Bits are fair, and only those after a read are scored.

    Args:
        ignore: probability of "ignore" in training.
        test_ignore: the same where the model is scored; None: as in training. The paper tests with 0.98 (sparse: the last
            write is far away) and 0.1 (dense).
    """

    name = "flip_flop"
    summary = "read the bit that was written last, past instructions to ignore"
    source = FLIP_FLOP
    size_name = "instructions"
    symbols = ("|", "w", "r", "i", "0", "1")
    train_size = 64
    eval_sizes = (32, 64, 128, 192, 256)
    min_size = 2

    def __init__(self, ignore: float = 0.8, test_ignore: float | None = None) -> None:
        check_fraction(ignore=ignore, test_ignore=test_ignore)
        self.ignore = ignore
        self.test_ignore = ignore if test_ignore is None else test_ignore

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        probability = self.test_ignore if test else self.ignore
        ignored = torch.rand(count, size, generator=generator, dtype=torch.float64) < probability
        instruction = torch.where(ignored, IGNORED, WRITE + uniform(generator, 2, count, size))
        instruction[:, 0], instruction[:, -1] = WRITE, READ
        bit = BIT + uniform(generator, 2, count, size)
        last = torch.where(instruction == WRITE, torch.arange(size), 0).cummax(1).values
        bit = torch.where(instruction == READ, bit.gather(1, last), bit)
        edge = torch.full((count, 1), EDGE)
        tokens = torch.cat([edge, torch.stack([instruction, bit], 2).flatten(1)], 1)
        answer = torch.zeros_like(tokens, dtype=torch.bool)
        answer[:, 2::2] = instruction == READ
        return Examples(tokens, answer)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        instructions, bits = prompt[1:-1:2], prompt[2:-1:2]
        memory = [bit for instruction, bit in zip(instructions, bits, strict=True) if instruction == WRITE]
        return [memory[-1]]

    def length(self, size: int) -> int:
        return 2 * size

    def space(self, size: int) -> int:
        return 2 ** (size - 1)  # bits of all but the last instruction, if all of those are ignored or written
