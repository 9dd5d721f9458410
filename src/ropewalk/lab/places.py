"""Is an object seen wherever it is, and however large? Right answers by the place of what is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.core.errors import check_positive
from ropewalk.lab.place import Forward
from ropewalk.lab.tasks.picture_question import PictureQuestion
from ropewalk.lab.tasks.score import score


@dataclass(frozen=True, eq=False)
class ByPlace:
    """Right answers about one object, by the cell that is its upper left corner.

    Attributes:
        right: (rows, columns) float64 share of right answers; of all places where the object fits.
        count: answers at each place.
    """

    right: Tensor
    count: int

    @property
    def mean(self) -> float:
        """Mean over places."""
        return float(self.right.mean())

    @property
    def lowest(self) -> float:
        """The place that is seen worst."""
        return float(self.right.min())

    @property
    def spread(self) -> float:
        """Best place minus worst."""
        return float(self.right.max() - self.right.min())


@torch.no_grad()
def accuracy_by_place(
    forward: Forward,
    task: PictureQuestion,
    size: int,
    side: int = 1,
    *,
    count: int = 16,
    seed: int = 0,
    bidirectional: bool = False,
) -> ByPlace:
    """Ask a model whether an object is in pictures that have it, at every place in turn.

    Who always says yes is always right here: beside it belongs the accuracy on pictures with and without objects, as of
    `Task.eval_batch`. The pictures of all places are otherwise drawn alike.

    Args:
        forward: logits of a batch.
        task: with the question "presence".
        size: rows of the pictures.
        side: cells a side of the object.
        count: pictures at each place.
        seed: of the pictures.
        bidirectional: attention is not causal.

    Raises:
        ConfigError: another question, or an object that is larger than the picture.

    Source: Yun Xing et al. arXiv 2410.15926, 2024, by place; Zhanpeng Chen et al. arXiv 2501.10967, 2025, by size.
    """
    check_positive(count=count)
    task.with_object(0, 0, side).check_size(size)
    right = torch.zeros(size + 1 - side, size + 2 - side, dtype=torch.float64)
    for row, column in torch.cartesian_prod(*map(torch.arange, right.shape)).tolist():
        batch = task.with_object(row, column, side).eval_batch(size, count, seed, bidirectional=bidirectional)
        right[row, column] = score(forward(batch).cpu(), batch).exact.double().mean()
    return ByPlace(right, count)
