"""Who comes towards me? Road users in a row, each looking somewhere.

    a@2  b@5  c@7  me@1 ? → b      (of 8 directions; b looks the other way)

What counts is how one looks against the other alone. Training asks for someone who looks along 0, or along a few directions;
scoring turns everybody, which changes nothing for who thinks in differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, FIRST, Examples, ask, distinct, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed

GAP = 8.0
"""Metres between neighbours."""


class Oncoming(Placed):
    """name@direction … name@direction me@direction ? = name, of the one who looks the opposite way; nobody else does.

    Positions are (x, y, heading): a row along x, and the direction in radians. What is no road user is where the last one is.
    Encodings of plain grids see the same numbers, and take a heading for one more place.

    Args:
        agents: number of different names.
        directions: number of them, all around, even; it limits the size.
        turned: scoring turns everybody by a random angle.
        looks: along how many directions, from 0 on, one looks in training. With one, the words of the tokens tell the answer.
    """

    name = "oncoming"
    summary = "the road user who comes towards one"
    source = "made for this library, after the headings of DRoPE (arXiv 2503.15029)"
    size_name = "road users"
    train_size = 6
    eval_sizes = (2, 4, 6)
    encoder_ready = True
    domain = "headings"

    def __init__(self, agents: int = 6, directions: int = 8, turned: bool = True, looks: int = 1) -> None:
        if not isinstance(turned, bool):
            raise ConfigError(f"turned is True or False; got {turned!r}")
        check_positive(agents=agents, directions=directions, looks=looks)
        if directions % 2:
            raise ConfigError(f"directions is even, since each has an opposite one; got {directions}")
        if looks > directions:
            raise ConfigError(f"looks counts some of the {directions} directions; got {looks}")
        named = letters(agents)
        self.agents, self.directions, self.turned, self.looks = agents, directions, turned, looks
        self.largest = min(agents, directions)
        self.symbols = (
            "|",
            "?",
            *named,
            *(f"me@{d}" for d in range(directions)),
            *(f"{a}@{d}" for a in named for d in range(directions)),
        )
        self.me = FIRST + agents
        self.agent = self.me + directions

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        mine = uniform(generator, self.directions if test and self.turned else self.looks, count, 1)
        name = distinct(generator, count, self.agents, size)
        # Everybody looks somewhere else, and one of them against me.
        others = distinct(generator, count, self.directions - 1, size)
        against = uniform(generator, size, count, 1)
        away = (others + 1).scatter(1, against, 0)
        heading = (mine + self.directions // 2 + away) % self.directions
        seen = self.agent + name * self.directions + heading
        return written(torch.cat([seen, self.me + mine, ask(count)], 1), FIRST + name.gather(1, against), end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        mine = next(token - self.me for token in prompt if self.me <= token < self.agent)
        for token in prompt:
            if token >= self.agent:
                name, heading = divmod(token - self.agent, self.directions)
                if abs(heading - mine) == self.directions // 2:
                    return [FIRST + name]
        raise ConfigError("nobody comes towards the one who asks")

    def length(self, size: int) -> int:
        return size + 3

    def space(self, size: int) -> int:
        return math.perm(self.agents, size) * math.perm(self.directions - 1, size - 1) * size

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        return {"grid": lambda batch: batch}

    def place(self, batch: Batch) -> Batch:
        tokens = batch.tokens
        looks = tokens >= self.me
        heading = torch.where(looks, (tokens - self.me) % self.directions, 0).double() * (2 * math.pi / self.directions)
        x = GAP * (looks.long().cumsum(1) - 1).clamp(min=0).double()
        asked = (tokens == ASK).long().argmax(1, keepdim=True)
        heading = torch.where(tokens == ASK, heading.gather(1, (asked - 1).clamp(min=0)), heading)
        return replace(batch, positions=torch.stack([x, torch.zeros_like(x), heading], -1))
