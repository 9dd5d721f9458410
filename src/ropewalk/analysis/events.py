"""How well a video follows its events: what is right within each of them, and whether it changes when they do.

event_accuracy(predicted, truth).mean                   # over events, however long they are
transition_recall(predicted, truth, tolerance=1).recall
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError


class EventAccuracy(NamedTuple):
    """What share of their frames events are right in."""

    mean: float | None
    """Over all events, each counted once; None: there are none."""

    by_length: dict[int, float]
    """The same over the events of a number of frames."""

    accuracy: Tensor
    """(events,) of each, row by row in the order of time."""

    length: Tensor
    """(events,) frames of each."""


class TransitionRecall(NamedTuple):
    """How many changes of the truth are found."""

    recall: float | None
    """Share of the changes that are found; None: there are none."""

    precision: float | None
    """Share of the predicted changes that are one; None: there are none."""

    found: int
    changes: int
    predicted: int


def event_accuracy(predicted: Tensor, truth: Tensor, event: Tensor | None = None) -> EventAccuracy:
    """Return how right each event is: a long one does not count for more than a short one.

    Args:
        predicted: (..., frames) what is said of each frame; every row is one entity of one clip.
        truth: likewise, what is so.
        event: likewise, the number of the event that a frame is of, below 0: of none, and not looked at. None: frames in a row
            of one truth are an event, so that two events that follow each other and say the same are one.

    Raises:
        ShapeError: tensors of other shapes.

    Example:
        >>> event_accuracy(torch.tensor([1, 1, 1, 2]), torch.tensor([1, 1, 1, 3])).mean
        0.5
    """
    said, so = _rows(predicted, truth)
    number = _changes(so).long().cumsum(-1) if event is None else _rows(event, truth)[0].long()
    there = number >= 0
    row = torch.arange(len(so), device=so.device)[:, None].expand_as(number)
    places = torch.stack([row[there], number[there]], -1)
    if not len(places):
        return EventAccuracy(None, {}, torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
    _, index, length = places.unique(dim=0, return_inverse=True, return_counts=True)
    right = torch.zeros(len(length), dtype=torch.float64, device=so.device)
    right.index_add_(0, index, (said == so)[there].double())
    accuracy = right / length
    lengths = length.unique().tolist()
    by_length = {int(n): float(accuracy[length == n].mean()) for n in lengths}
    return EventAccuracy(float(accuracy.mean()), by_length, accuracy, length)


def transition_recall(predicted: Tensor, truth: Tensor, tolerance: int = 0) -> TransitionRecall:
    """Return how many changes of the truth have a predicted change near them that serves no other one.

    A change is a frame at which a row is not what it was in the frame before. Each change of the truth takes, in the order of
    time, the earliest predicted change within ``tolerance`` frames that is left, which finds as many as can be found.

    Args:
        predicted: (..., frames).
        truth: likewise.
        tolerance: frames by which a change may be early or late.

    Raises:
        ShapeError: tensors of other shapes.
        ConfigError: a tolerance below 0.

    Example:
        >>> transition_recall(torch.tensor([1, 1, 1, 2]), torch.tensor([1, 1, 2, 2]), tolerance=1).recall
        1.0
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int) or tolerance < 0:
        raise ConfigError(f"tolerance is a whole number of frames, 0 or more; got {tolerance!r}")
    said, so = _rows(predicted, truth)
    found = changes = many = 0
    for mine, real in zip(_changes(said), _changes(so), strict=True):
        left = mine.nonzero()[:, 0].tolist()
        wanted = real.nonzero()[:, 0].tolist()
        changes, many, i = changes + len(wanted), many + len(left), 0
        for frame in wanted:
            while i < len(left) and left[i] < frame - tolerance:
                i += 1
            if i < len(left) and left[i] <= frame + tolerance:
                found, i = found + 1, i + 1
    return TransitionRecall(found / changes if changes else None, found / many if many else None, found, changes, many)


def _rows(given: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as (rows, frames)."""
    if given.shape != truth.shape or not given.ndim:
        raise ShapeError(
            f"frames of shape {tuple(given.shape)} and a truth of {tuple(truth.shape)}; give (..., frames), one for each frame"
        )
    rows = (given.shape[:-1].numel(), given.shape[-1])
    return given.reshape(rows), truth.reshape(rows)


def _changes(rows: Tensor) -> Tensor:
    """Whether a frame is not what the one before it was; the first is no change."""
    return torch.nn.functional.pad(rows[:, 1:] != rows[:, :-1], (1, 0)) if rows.shape[1] else rows.bool()
