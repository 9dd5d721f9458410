"""Find a needle in a haystack.

    q f K 7 m a c v t ? K → 7        (K 7 is the needle, small letters are hay)

Sources: the grid of depths and lengths: Kamradt, Needle in a Haystack: Pressure Testing LLMs, 2023; several needles: arXiv
2404.06654.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import DIGITS, EDGE, FIRST, Examples, ask, check_fraction, distinct, uniform, written
from ropewalk.lab.tasks.sources import RULER
from ropewalk.lab.tasks.task import Task

HAY = tuple(string.ascii_lowercase)
KEYS = tuple(string.ascii_uppercase)
DIGIT = FIRST + len(HAY)
KEY = DIGIT + len(DIGITS)


class Needle(Task):
    """hay … key value … hay ? key = value, where hay, needles included, has as many tokens as the size says.

    The needle asked for begins at token round(depth · (size − width)) of the hay, where width is its own length: depth 0 is
    right at the beginning, 1 right at the end. Other needles have other keys; they are at random among the places that are
    whole widths away from it.

    Args:
        depth: where the needle is, from 0 to 1; None: anywhere.
        needles: number of needles, one of which is asked for.
        digits: digits of a value. With more than one the answer ends with a token that says so.
    """

    name = "needle"
    summary = "find the value of a key that is hidden in random text"
    source = RULER
    size_name = "tokens"
    symbols = ("|", "?", *HAY, *DIGITS, *KEYS)
    train_size = 64
    eval_sizes = (32, 64, 96, 128, 192, 256)

    def __init__(self, depth: float | None = None, needles: int = 1, digits: int = 1) -> None:
        check_positive(needles=needles, digits=digits)
        check_fraction(depth=depth)
        if needles > len(KEYS):
            raise ConfigError(f"needles is a whole number from 1 to {len(KEYS)}, the number of keys; got {needles}")
        self.depth, self.needles, self.digits = depth, needles, digits
        self.encoder_ready = digits == 1
        self.min_size = needles * (digits + 1) + (digits if needles > 1 else 0)  # places are cut short on either side

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        width = 1 + self.digits
        room = size - width
        hay = FIRST + uniform(generator, len(HAY), count, size)
        key = KEY + distinct(generator, count, len(KEYS), self.needles)
        value = DIGIT + uniform(generator, len(DIGITS), count, self.needles, self.digits)
        needle = torch.cat([key[..., None], value], 2)
        anywhere = uniform(generator, room + 1, count, 1)
        start = anywhere if self.depth is None else torch.full_like(anywhere, round(self.depth * room))
        starts = torch.cat([start, self._others(generator, start, size)], 1)
        index = (starts[..., None] + torch.arange(width)).flatten(1)
        prompt = torch.cat([hay.scatter(1, index, needle.flatten(1)), ask(count), key[:, :1]], 1)
        return written(prompt, value[:, 0], end=self.digits > 1)

    def _others(self, generator: Generator, start: Tensor, size: int) -> Tensor:
        """(N, needles − 1) starts of the other needles, whole widths away from (N, 1) and from each other."""
        width = 1 + self.digits
        most = size // width
        slot = torch.arange(most)
        begins = start % width + width * slot
        chance = torch.rand(len(start), most, generator=generator, dtype=torch.float64)
        chance = chance.masked_fill((begins == start) | (begins + width > size), -1)
        return begins.gather(1, chance.topk(self.needles - 1, dim=1).indices)

    def at_depth(self, size: int, depth: float, count: int, seed: int) -> Batch:
        """Examples to score on with the needle at one depth: a function of the arguments alone."""
        return Needle(depth, self.needles, self.digits).eval_batch(size, count, seed)

    def grid(
        self, generator: Generator, lengths: Sequence[int], depths: Sequence[float], count: int
    ) -> Iterator[tuple[int, float, Batch]]:
        """Yield (length, depth, batch) for every length and depth.

        Args:
            generator: of the random numbers.
            lengths: numbers of tokens that the model reads, hay and question.
            depths: where the needle is, from 0 to 1.
            count: rows of each batch.
        """
        question = self.length(0)
        for length in lengths:
            size = length - question
            if size < self.min_size:
                raise ConfigError(
                    f"a haystack with its question has at least {question + self.min_size} tokens; got {length}"
                )
            for depth in depths:
                placed = Needle(depth, self.needles, self.digits)
                yield length, depth, placed.batch(generator, size, count, test=True)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        place = list(prompt).index(prompt[-1])
        value = list(prompt[place + 1 : place + 1 + self.digits])
        return value if self.digits == 1 else [*value, EDGE]

    def length(self, size: int) -> int:
        return size + 2 + self.digits + (self.digits > 1)

    def space(self, size: int) -> int:
        return len(KEYS) * 10**self.digits * len(HAY) ** (size - self.needles * (1 + self.digits))
