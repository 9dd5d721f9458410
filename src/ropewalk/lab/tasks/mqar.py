"""Associative recall with several questions.

    k5 v3 k0 v7 k2 v1 = k0 → v7 k5 → v3 k2 → v1        (pairs of keys and values; then keys whose values are asked for)

Source: arXiv 2312.04927.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.core.errors import check_positive
from ropewalk.lab.tasks.examples import ASK, EDGE, FIRST, Examples, ask, distinct, uniform
from ropewalk.lab.tasks.sources import ZOOLOGY
from ropewalk.lab.tasks.task import Task


class MQAR(Task):
    """k_1 v_1 … k_n v_n = q_1 v(q_1) … q_m v(q_m), the q being different keys in random order.

    Keys of an example are all different, and keys and values have tokens of their own.

    Args:
        queries: m; with fewer pairs than that all are asked for.
        keys: number of different keys, which is also the largest number of pairs.
        values: number of different values.
    """

    name = "mqar"
    summary = "look up the values of several keys (multi-query associative recall)"
    source = ZOOLOGY
    size_name = "pairs"
    train_size = 16
    eval_sizes = (8, 16, 24, 32, 48, 64)

    def __init__(self, queries: int = 8, keys: int = 64, values: int = 64) -> None:
        check_positive(queries=queries, keys=keys, values=values)
        self.queries, self.keys, self.values = queries, keys, values
        self.largest = keys
        self.encoder_ready = queries == 1
        self.symbols = ("|", "=", *(f"k{n}" for n in range(keys)), *(f"v{n}" for n in range(values)))

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        key = FIRST + distinct(generator, count, self.keys, size)
        value = FIRST + self.keys + uniform(generator, self.values, count, size)
        pairs = torch.stack([key, value], 2)
        which = distinct(generator, count, size, min(self.queries, size))
        asked = pairs.gather(1, which[..., None].expand(-1, -1, 2))
        edge = torch.full((count, 1), EDGE)
        tokens = torch.cat([edge, pairs.flatten(1), ask(count), asked.flatten(1)], 1)
        answer = torch.zeros_like(tokens, dtype=torch.bool)
        answer[:, 2 * size + 3 :: 2] = True
        return Examples(tokens, answer)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        pairs = prompt[1 : prompt.index(ASK)]
        table = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return [table[prompt[-1]]]

    def length(self, size: int) -> int:
        return 2 * size + 1 + 2 * min(self.queries, size)

    def space(self, size: int) -> int:
        return self.keys * self.values**size
