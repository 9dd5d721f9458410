"""A string comes twice, and one symbol of the two copies is missing.

    a b b a a b _ a = → b

Source: arXiv 2305.16843.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.lab.tasks.examples import FIRST, Examples, ask, letters, uniform, written
from ropewalk.lab.tasks.sources import RANDOMIZED
from ropewalk.lab.tasks.task import Task

MISSING = FIRST


class MissingDuplicate(Task):
    """x_1 … x_n x_1 … x_n with a gap at a place drawn from all 2n, = what is missing.

    The size is n, so that the length is always even; the filling of odd lengths in the source has no use here.

    Args:
        alphabet: number of different symbols.
    """

    name = "missing_duplicate"
    summary = "find the symbol that is missing from a string that is written twice"
    source = RANDOMIZED
    size_name = "symbols"
    train_size = 20
    eval_sizes = (10, 20, 30, 40, 60, 80)
    encoder_ready = True

    def __init__(self, alphabet: int = 2) -> None:
        self.symbols = ("|", "=", "_", *letters(alphabet))
        self.alphabet = alphabet

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        doubled = (MISSING + 1 + uniform(generator, self.alphabet, count, size)).repeat(1, 2)
        place = uniform(generator, 2 * size, count, 1)
        missing = doubled.gather(1, place)
        return written(torch.cat([doubled.scatter(1, place, MISSING), ask(count)], 1), missing, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        doubled = list(prompt[1:-1])
        half, place = len(doubled) // 2, doubled.index(MISSING)
        return [doubled[place - half if place >= half else place + half]]

    def length(self, size: int) -> int:
        return 2 * size + 2

    def space(self, size: int) -> int:
        return 2 * size * self.alphabet**size
