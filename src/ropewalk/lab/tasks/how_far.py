"""Say how far back a letter is.

    c f a b ? f → 2        (two letters came after it)

Attention has to find the letter and bring back where it was found, not what: in one layer of values that know nothing of
their distance there is no such thing to bring back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.lab.tasks.examples import ASK, FIRST, LETTERS, Examples, ask, distinct, uniform, written
from ropewalk.lab.tasks.task import Task

COUNT = FIRST + len(LETTERS)


class HowFar(Task):
    """x_0 … x_(n−1) ? x_i, and the answer n − 1 − i; the letters are all different."""

    name = "how_far"
    summary = "the distance at which a letter was seen"
    source = "made for this library, after the outputs that depend on an offset in RoVE (arXiv 2606.11275)"
    size_name = "letters"
    symbols = ("|", "?", *LETTERS, *(str(n) for n in range(len(LETTERS))))
    train_size = 16
    eval_sizes = (4, 8, 16)
    min_size = 2
    largest = len(LETTERS)
    encoder_ready = True

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        symbols = FIRST + distinct(generator, count, len(LETTERS), size)
        place = uniform(generator, size, count, 1)
        prompt = torch.cat([symbols, ask(count), symbols.gather(1, place)], 1)
        return written(prompt, COUNT + size - 1 - place, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        symbols = list(prompt[1 : prompt.index(ASK)])
        return [COUNT + len(symbols) - 1 - symbols.index(prompt[-1])]

    def length(self, size: int) -> int:
        return size + 3

    def space(self, size: int) -> int:
        return size * math.perm(len(LETTERS), size)
