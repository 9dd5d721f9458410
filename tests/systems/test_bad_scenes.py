"""What cannot be in a picture, a recording, a spectrum, a road or a formula is refused, and the message says what to do."""

from __future__ import annotations

import math

import pytest
import torch

import ropewalk as rw
from ropewalk.coordinates.depth import ObjectMove
from ropewalk.coordinates.events import Event, interval_times
from ropewalk.core.errors import ConfigError, PositionError, RopewalkError, ShapeError
from ropewalk.rotary.spherope import sphere
from ropewalk.rotary.untwisting import shared_attention

DEEP = ["a", "^", "{", "b", "^", "{", "c", "^", "{", "d", "^", "{", "e", "^", "{", "f", "}", "}", "}", "}", "}"]
PICTURES = [(2, 2), (2, 2)]


def noise(*shape):
    return torch.randn(shape)


def encode(encoding, positions, n):
    return encoding(rw.Attention(*(noise(1, 2, n, 32) for _ in range(3)), positions, causal=False))


BAD = {
    "a wavelength of zero": (lambda: rw.spectrum_positions(torch.tensor([0.0, 5000.0])), PositionError, "positive number"),
    "a negative wavelength": (lambda: rw.spectrum_positions(torch.tensor([-1.0])), PositionError, "got -1.*not valid"),
    "a wavelength that is none": (lambda: rw.spectrum_positions(torch.tensor([math.nan])), PositionError, "got nan"),
    "a band without wavelength": (lambda: rw.Bands((0.0,)), PositionError, "more than 0; got 0"),
    "a latitude out of range": (
        lambda: sphere(*(torch.tensor([n]) for n in (5.0, 0.0, 4.0, 8.0))), PositionError, "latitude out of range",
    ),
    "an unknown speaker": (
        lambda: rw.speaker_activity([("bbo", 0, 1)], ["ann", "bob"], 9), ConfigError, "ann, bob.*Did you mean 'bob'",
    ),
    "speech that ends before it begins": (
        lambda: rw.speaker_activity([("ann", 1.0, 0.5)], ["ann"], 900), PositionError, "ends after it begins",
    ),
    "more speakers than are known": (
        lambda: encode(rw.TimeSpeakerRoPE(32, 2), rw.speaker_positions(torch.rand(4, 3)), 4), PositionError, "speakers=3",
    ),
    "a heading without an agent": (
        lambda: rw.heading_positions(torch.zeros(3, 2), torch.zeros(4)), PositionError, "heading without an agent",
    ),
    "a heading of what looks nowhere": (
        lambda: rw.heading_positions(torch.zeros(1, 2), torch.ones(1), directed=torch.tensor([False])),
        PositionError,
        "without an agent",
    ),
    "depth that is infinite": (
        lambda: rw.depth_axis(rw.centered_grid_ids(PICTURES), torch.tensor([[1.0, math.inf], [1.0, 1.0]])),
        PositionError,
        "NaN or infinite",
    ),
    "a mask of another size": (
        lambda: rw.warp_rows(rw.centered_grid_ids(PICTURES), [ObjectMove(torch.ones(3, 2, dtype=torch.bool), 1)]),
        PositionError,
        "token_mask",
    ),
    "a mask that says nothing": (lambda: rw.mixed_resolution_positions(torch.rand(3, 3), 2), PositionError, "boolean"),
    "a reference of other heads": (
        lambda: shared_attention(*(noise(1, 2, 4, 8) for _ in range(3)), *(noise(1, 3, 4, 8) for _ in range(2))),
        ShapeError,
        "of the reference",
    ),
    "a reference of another size": (
        lambda: encode(rw.ConditionRoPE(32, 40, 60), rw.layout([rw.Video(1, 2, 2), rw.Image(1, 2, reference=1)]), 6),
        PositionError,
        "resize it to the grid of the video",
    ),
    "a resized grid without its trained size": (
        lambda: rw.PositionInterpolatedRoPE(32, trained_grid=None), ConfigError, "give trained_grid=",
    ),
    "an event that ends before it begins": (lambda: Event(2.0, 1.0, 3), PositionError, "are they swapped"),
    "times that end before they begin": (lambda: interval_times(2.0, 1.0, 3), PositionError, "are they swapped"),
    "a record that ends before it begins": (
        lambda: rw.read_entities([{"events": [[3, 1, 2]]}]), PositionError, "ends before it begins",
    ),
    "a path deeper than the table": (
        lambda: rw.formula_positions([rw.latex_position_forest(DEEP)]), PositionError, "give a larger depth",
    ),
    "a table of another depth": (
        lambda: rw.PositionForestEmbedding(32, 3).embed(noise(1, 1, 32), rw.formula_positions([rw.latex_position_forest(["a"])])),
        PositionError,
        "larger depth",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    make, kind, said = BAD[name]
    assert issubclass(kind, RopewalkError)
    with pytest.raises(kind, match=said):
        make()
