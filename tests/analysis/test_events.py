"""How well a video follows its events."""

from __future__ import annotations

import pytest
import torch

from ropewalk.analysis.events import event_accuracy, transition_recall
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.event_frames import EventFrames


def test_every_event_counts_once():
    truth = torch.tensor([[1, 1, 1, 1, 2, 3, 3, 3]])
    said = torch.tensor([[1, 1, 1, 0, 0, 3, 3, 3]])
    found = event_accuracy(said, truth)
    assert found.accuracy.tolist() == [0.75, 0.0, 1.0]
    assert found.length.tolist() == [4, 1, 3]
    assert found.mean == pytest.approx(1.75 / 3)  # of frames 6/8 are right
    assert found.by_length == {4: 0.75, 1: 0.0, 3: 1.0}
    assert event_accuracy(truth, truth).mean == 1
    assert event_accuracy(truth + 1, truth).mean == 0


def test_events_that_say_the_same_are_told_apart_by_their_number():
    truth, said = torch.tensor([5, 5, 5, 5]), torch.tensor([5, 5, 5, 0])
    assert event_accuracy(said, truth).accuracy.tolist() == [0.75]
    assert event_accuracy(said, truth, torch.tensor([0, 0, 1, 1])).accuracy.tolist() == [1.0, 0.5]
    assert event_accuracy(said, truth, torch.tensor([0, 0, -1, -1])).accuracy.tolist() == [1.0]
    nothing = event_accuracy(said, truth, torch.full((4,), -1))
    assert (nothing.mean, nothing.by_length, len(nothing.accuracy)) == (None, {}, 0)


def test_rows_are_apart():
    truth = torch.tensor([[[1, 1], [1, 1]], [[2, 2], [2, 2]]])
    assert event_accuracy(truth, truth).length.tolist() == [2, 2, 2, 2]
    assert transition_recall(truth, truth).changes == 0


@pytest.mark.parametrize(("tolerance", "recall"), [(0, 1 / 3), (1, 2 / 3), (2, 1.0)])
def test_changes_may_be_early_or_late(tolerance, recall):
    truth = torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3])  # changes at 2, 6, 9
    said = torch.tensor([0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3])  # at 2, 7, 11
    found = transition_recall(said, truth, tolerance)
    assert found.recall == pytest.approx(recall)
    assert (found.changes, found.predicted) == (3, 3)
    assert found.precision == pytest.approx(recall)


def test_a_predicted_change_serves_once():
    truth, said = torch.tensor([0, 1, 0, 0]), torch.tensor([0, 0, 1, 1])
    found = transition_recall(said, truth, 1)
    assert (found.found, found.changes, found.predicted) == (1, 2, 1)
    # The earliest one that is left: otherwise the first change takes the one that the second needs.
    truth, said = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 2, 2, 2, 2])
    assert transition_recall(said, truth, 1).recall == 1


def test_no_change_is_none_and_not_nought():
    still = torch.zeros(5)
    assert transition_recall(still, still)[:2] == (None, None)
    assert transition_recall(torch.arange(5), still)[:2] == (None, 0.0)
    assert transition_recall(still, torch.arange(5))[:2] == (0.0, None)


def test_frames_of_the_workload():
    task = EventFrames(8, (8, 32), encoder=True)
    batch = next(task.validation())
    truth = task.of_frames(batch.targets)
    assert truth.shape == (64, 2, 8)
    assert not (truth == IGNORE).any()
    assert event_accuracy(truth, truth).mean == 1
    found = transition_recall(truth, truth)
    assert found.recall == found.precision == 1
    assert 0 < found.changes <= 64 * 2 * 2  # three events of each entity, neighbours of which may say the same
    # Of each entity the captions say what is done: the first frame's answer is what its first caption says.
    captions = batch.tokens[:, : -truth[0].numel()].unflatten(1, (2, 3, 3))
    assert torch.equal(captions[:, :, 0, 0], truth[..., 0])
    assert torch.equal(captions[:, :, -1, 0], truth[..., -1])


def test_bad_input():
    with pytest.raises(ShapeError, match="one for each frame"):
        event_accuracy(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ShapeError, match="one for each frame"):
        event_accuracy(torch.zeros(3), torch.zeros(3), torch.zeros(2))
    with pytest.raises(ConfigError, match="tolerance"):
        transition_recall(torch.zeros(3), torch.zeros(3), -1)
