"""Ways to train for a longer context: where the tokens of a sequence stand, and what they see.

`ropewalk.lab.tuning.published` says which of them, with which method and numbers, papers used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.skipped import endprompt_positions, endprompt_random_positions, pose_positions
from ropewalk.lab.tuning.endprompt import TERMINAL_PROMPT

Place = Callable[[int, int, int, Generator], Tensor]
"""From the length of a sequence, the tokens of its terminal, the wanted context and a generator to positions (length,)."""


@dataclass(frozen=True)
class Recipe:
    """A way to train for a longer context.

    Attributes:
        place: where tokens stand.
        summary: one line.
        long: whether sequences have the wanted length; else they have the trained one.
        prompt: what a sequence ends with, in place of its own last tokens; None: those stay. Where it would take more than half
            of a sequence, the last quarter of the text stands in for it.
        anchored: whether documents that share a sequence see the anchor at its beginning and not each other.
    """

    place: Place
    summary: str
    long: bool = False
    prompt: str | None = None
    anchored: bool = False

    def positions(self, rows: int, length: int, terminal: int, context: int, draw: Generator) -> Tensor:
        """Return positions (rows, length), drawn for each row where anything is drawn."""
        return torch.stack([self.place(length, terminal, context, draw) for _ in range(rows)])


def _endprompt(length: int, terminal: int, context: int, draw: Generator) -> Tensor:
    return endprompt_positions(length, terminal, context - 1)


def _endprompt_random(length: int, terminal: int, context: int, draw: Generator) -> Tensor:
    return endprompt_random_positions(length, terminal, context, draw)


def _pose(length: int, terminal: int, context: int, draw: Generator) -> Tensor:
    return pose_positions(length, context, draw)


def _in_order(length: int, terminal: int, context: int, draw: Generator) -> Tensor:
    return torch.arange(length)


RECIPES = {
    "endprompt": Recipe(
        _endprompt,
        "short sequences that end with a prompt, which stands at the end of the context",
        prompt=TERMINAL_PROMPT,
    ),
    "endprompt_random": Recipe(_endprompt_random, "short sequences whose last quarter stands anywhere in the context"),
    "pose": Recipe(_pose, "short sequences with one skip of positions"),
    "full": Recipe(_in_order, "sequences of the wanted length, whose documents see each other", long=True),
    "anchor": Recipe(
        _in_order,
        "sequences of the wanted length, whose documents share an anchor (AnchorAttention)",
        long=True,
        anchored=True,
    ),
}
