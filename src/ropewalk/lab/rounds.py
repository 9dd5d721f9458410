"""What a denoiser of masked cells makes: from nothing but unknown cells, a few more named each round."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ropewalk.lab.batch import Batch
from ropewalk.lab.place import Forward

UNKNOWN = 0
"""The token of a cell that is to be named; those that it may be follow."""


@torch.no_grad()
def named_in_rounds(
    forward: Forward,
    locate: Callable[[Tensor, float], Batch],
    count: int,
    cells: int,
    rounds: int,
    generator: Generator,
) -> Tensor:
    """Return (count, cells) tokens above `UNKNOWN`, made from unknown cells alone.

    Cells are named in a random order, as the model's probabilities say, and stay; few in the first rounds and more in the last,
    when neighbours are known.

    Args:
        forward: logits of a batch.
        locate: makes the batch of tokens (count, cells), and of the share of the rounds that are over, from 0 to below 1.
        count: how many.
        cells: of each.
        rounds: in which they are made.
        generator: of order and names.
    """
    tokens = torch.full((count, cells), UNKNOWN)
    rank = torch.rand(count, cells, generator=generator).argsort(1).argsort(1)
    for n in range(1, rounds + 1):
        logits = forward(locate(tokens, (n - 1) / rounds)).double().cpu()
        named = 1 + torch.multinomial(logits[..., 1:].softmax(-1).flatten(0, 1), 1, generator=generator)
        due = math.ceil(cells * (n / rounds) ** 2)
        tokens = torch.where((tokens == UNKNOWN) & (rank < due), named.view_as(tokens), tokens)
    return tokens
