"""Attention by distance."""

from itertools import pairwise

import pytest
import torch
from reference import close, random, triangle

from ropewalk.analysis.distance import attention_by_distance, distance_edges
from ropewalk.core.errors import ConfigError, ShapeError


def test_edges():
    assert distance_edges(10) == [0, 1, 2, 4, 8, 10]
    assert distance_edges(8) == [0, 1, 2, 4, 8]
    assert distance_edges(1) == [0, 1]


def test_shares():
    weights = random(3, 20, 20).masked_fill(~triangle(20), -torch.inf).softmax(-1)
    edges = distance_edges(20)
    found = attention_by_distance(weights, edges)
    close(found.sum(-1), torch.ones(3).double())
    r = torch.arange(20)[:, None] - torch.arange(20)
    want = [(weights * ((r >= a) & (r < b))).sum((-1, -2)) / 20 for a, b in pairwise(edges)]
    close(found, torch.stack(want, -1))
    parts = sum(
        attention_by_distance(weights[:, i : i + 7], edges, i) * len(range(i, min(20, i + 7))) for i in (0, 7, 14)
    )
    close(parts / 20, found)
    close(attention_by_distance(weights[:, 15:], edges), attention_by_distance(weights[:, 15:], edges, 15))


def test_bad_input():
    with pytest.raises(ConfigError, match="rising"):
        attention_by_distance(torch.ones(4, 4), [0, 2, 2])
    with pytest.raises(ShapeError):
        attention_by_distance(torch.ones(4), [0, 2])
