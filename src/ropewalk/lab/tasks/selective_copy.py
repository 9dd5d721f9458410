"""Copy what is not blank.

    _ c _ a b _ = → c a b |

Sources: arXiv 2312.00752; tested with more and fewer blanks than in training: arXiv 2405.18719.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError
from ropewalk.lab.tasks.examples import EDGE, FIRST, Examples, ask, distinct, letters, uniform, written
from ropewalk.lab.tasks.sources import MAMBA
from ropewalk.lab.tasks.task import Task

BLANK = FIRST


class SelectiveCopy(Task):
    """x_1 … x_n among round(n · blanks) blanks at random places, = x_1 … x_n.

    Args:
        alphabet: number of different symbols.
        blanks: blanks for each symbol.
        test_blanks: the same where the model is scored; None: as in training. Half as many is the paper's dense test, twice
            as many its sparse one.
    """

    name = "selective_copy"
    summary = "repeat the symbols that stand among blanks"
    source = MAMBA
    size_name = "symbols"
    train_size = 16
    eval_sizes = (8, 16, 24, 32, 48, 64)

    def __init__(self, alphabet: int = 16, blanks: float = 1.0, test_blanks: float | None = None) -> None:
        self.symbols = ("|", "=", "_", *letters(alphabet))
        self.alphabet = alphabet
        self.blanks = blanks
        self.test_blanks = blanks if test_blanks is None else test_blanks
        for name, rate in (("blanks", self.blanks), ("test_blanks", self.test_blanks)):
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
                raise ConfigError(f"{name} is a number of blanks for each symbol, at least 0; got {rate!r}")

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        symbols = BLANK + 1 + uniform(generator, self.alphabet, count, size)
        total = size + round(size * (self.test_blanks if test else self.blanks))
        places = distinct(generator, count, total, size).sort(1).values
        spread = torch.full((count, total), BLANK).scatter(1, places, symbols)
        return written(torch.cat([spread, ask(count)], 1), symbols)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        return [*(token for token in prompt[1:-1] if token != BLANK), EDGE]

    def length(self, size: int) -> int:
        return 2 * size + round(size * max(self.blanks, self.test_blanks)) + 2

    def space(self, size: int) -> int:
        return self.alphabet**size
