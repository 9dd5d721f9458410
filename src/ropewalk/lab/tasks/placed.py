"""Tasks whose tokens live elsewhere than in a sequence: on a grid, in views."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.task import Task


class Placed(Task):
    """A task that says where its tokens are, from the tokens alone.

    Encodings of its domain see these places. Encodings of plain sequences see the tokens counted in the order in which they
    stand (`ropewalk.lab.workloads.seen_by`), so that both can be compared.
    """

    @abstractmethod
    def place(self, batch: Batch) -> Batch:
        """Return the batch with positions, and columns if the domain has any."""

    def _padded(self, groups: list[tuple[Tensor, Batch]], count: int, bidirectional: bool) -> Batch:
        return self.place(super()._padded(groups, count, bidirectional))


def latest(where: Tensor, value: Tensor) -> Tensor:
    """(B, S) values carried on from the last token where ``where`` held; 0 before the first."""
    index = torch.where(where, torch.arange(where.shape[1], device=where.device), -1).cummax(1).values
    return torch.where(index < 0, 0, value.gather(1, index.clamp(min=0)))
