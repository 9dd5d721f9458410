"""Encodings that read facts about tokens say which call makes them, and never count tokens instead."""

from __future__ import annotations

import re

import pytest
import torch

import ropewalk as rw
from ropewalk.core.errors import NeedsColumn, PositionError

MAKERS = {
    "clip": "grid_positions",
    "code": "code_positions",
    "conditions": "condition_coords",
    "coupling": "coupled_positions",
    "denoising": "grid_positions",
    "depth": "depth_axis",
    "events": "event_layout",
    "formulas": "formula_positions",
    "grid": "grid_positions",
    "headings": "heading_positions",
    "hierarchy": "hierarchical_positions",
    "layout": "layout",
    "mixed_resolution": "mixed_resolution_positions",
    "panorama": "layout",
    "references": "reference_coords",
    "spectra": "spectrum_positions",
    "switching": "switching_positions",
    "turns": "speaker_positions",
}
"""By domain, the call that makes positions."""


def made(entry):
    return entry.build(head_dim=32, num_heads=4, num_kv_heads=2, hidden_size=32)


def problem(entry, positions):
    q, k, v = (torch.randn(1, heads, 5, 32) for heads in (4, 2, 2))
    return rw.Attention(q, k, v, positions, causal=entry.traits.causal != "never", x=torch.randn(1, 5, 32))


@pytest.mark.parametrize(
    "entry", [entry for entry in rw.catalog() if entry.traits.domain in MAKERS], ids=lambda entry: entry.slug
)
def test_plain_positions_are_refused_with_the_call_that_makes_others(entry):
    encoding, call = made(entry), MAKERS[entry.traits.domain]
    assert hasattr(rw, call)
    without = [None] if entry.traits.domain == "coupling" else [None, rw.Positions.arange(5)]
    for positions in without:
        with pytest.raises((NeedsColumn, PositionError), match=re.escape(f"rw.{call}")):
            encoding.embed(torch.randn(1, 5, 32), positions)
            encoding(problem(entry, positions))


@pytest.mark.parametrize(
    ("encoding", "positions", "call"),
    [
        (rw.SwitchingRoPE(32, "zigzag"), rw.Positions.arange(5), "switching_positions"),
        (rw.SwitchingRoPE(32, "split"), rw.Positions.arange(5), "switching_positions"),
        (rw.HiRoPE(32, window=2, token_index="segment"), rw.Positions.arange(5), "code_positions"),
        (rw.DepthRoPE(32, mode="overwrite"), rw.Positions(torch.zeros(1, 5, 3)), "depth_axis"),
        (rw.SpatialRoPEScale(32), rw.grid_positions(1, 1, 5), "at_step"),
        (rw.UntwistingRoPE(32, high=0.5, low=1.2), rw.grid_positions(1, 5), "shared_grid_positions"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_missing_column_is_named_with_its_call(encoding, positions, call):
    q, k, v = (torch.randn(1, heads, 5, 32) for heads in (4, 2, 2))
    with pytest.raises(NeedsColumn, match=rf"rw\.{call}\("):
        encoding(rw.Attention(q, k, v, positions, causal=False))
