"""Symbols in, the same symbols in another order out.

    copy           c a b d = → c a b d |
    reverse        c a b d = → d b a c |
    sorting        c a b d = → a b c d |
    bucket_sort    the same with five different symbols
    odds_first     c a b d = → a d c b |

Sources: copy, reverse and sorting: arXiv 2305.19466; bucket_sort and odds_first: arXiv 2305.16843. The lines above are how
`Task.show` prints an example; ``|`` is where an answer ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ropewalk.lab.tasks.examples import EDGE, FIRST, Examples, ask, letters, uniform, written
from ropewalk.lab.tasks.sources import IMPACT, RANDOMIZED
from ropewalk.lab.tasks.task import Task


class Transduction(Task):
    """x_1 … x_n = y_1 … y_n, where y is a rearrangement of x.

    Args:
        alphabet: number of different symbols, drawn uniformly and independently.
    """

    size_name = "symbols"
    train_size = 20
    eval_sizes = (10, 20, 30, 40, 60, 80)

    def __init__(self, alphabet: int = 26) -> None:
        self.symbols = ("|", "=", *letters(alphabet))
        self.alphabet = alphabet

    @abstractmethod
    def arrange(self, symbols: Tensor) -> Tensor:
        """Answer to (N, n) symbols."""

    @abstractmethod
    def arranged(self, symbols: list[int]) -> list[int]:
        """Answer to one row, in plain Python."""

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        symbols = FIRST + uniform(generator, self.alphabet, count, size)
        return written(torch.cat([symbols, ask(count)], 1), self.arrange(symbols))

    def solve(self, prompt: Sequence[int]) -> list[int]:
        return [*self.arranged(list(prompt[1:-1])), EDGE]

    def length(self, size: int) -> int:
        return 2 * size + 2

    def space(self, size: int) -> int:
        return self.alphabet**size


class Copy(Transduction):
    """y_i = x_i. Args as in `Transduction`."""

    name = "copy"
    summary = "repeat the symbols"
    source = IMPACT

    def arrange(self, symbols: Tensor) -> Tensor:
        return symbols

    def arranged(self, symbols: list[int]) -> list[int]:
        return symbols


class Reverse(Transduction):
    """y_i = x_(n+1−i). Args as in `Transduction`."""

    name = "reverse"
    summary = "repeat the symbols from the last to the first"
    source = IMPACT

    def arrange(self, symbols: Tensor) -> Tensor:
        return symbols.flip(1)

    def arranged(self, symbols: list[int]) -> list[int]:
        return symbols[::-1]


class Sorting(Transduction):
    """y_1 ≤ … ≤ y_n. Args as in `Transduction`."""

    name = "sorting"
    summary = "repeat the symbols in alphabetical order"
    source = IMPACT

    def arrange(self, symbols: Tensor) -> Tensor:
        return symbols.sort(1).values

    def arranged(self, symbols: list[int]) -> list[int]:
        return sorted(symbols)


class BucketSort(Sorting):
    """y_1 ≤ … ≤ y_n, where few symbols come often: sorting by counting. Args as in `Transduction`."""

    name = "bucket_sort"
    summary = "sort symbols of which there are few different ones"
    source = RANDOMIZED

    def __init__(self, alphabet: int = 5) -> None:
        super().__init__(alphabet)


class OddsFirst(Transduction):
    """y = x_1, x_3, x_5, …, x_0, x_2, x_4, … with indices from 0. Args as in `Transduction`."""

    name = "odds_first"
    summary = "every second symbol, then the ones between"
    source = RANDOMIZED

    def arrange(self, symbols: Tensor) -> Tensor:
        return torch.cat([symbols[:, 1::2], symbols[:, ::2]], 1)

    def arranged(self, symbols: list[int]) -> list[int]:
        odd = [symbol for i, symbol in enumerate(symbols) if i % 2]
        return odd + [symbol for i, symbol in enumerate(symbols) if not i % 2]
