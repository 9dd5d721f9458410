"""What the papers of layouts measure of attention and of frequencies: drift to a corner, anchors, distractors, preference."""

from __future__ import annotations

import math

import pytest
import torch
from reference import close

import ropewalk as rw
from ropewalk.analysis.attention_map import attention_map
from ropewalk.analysis.image_attention import anchor_share, attention_to_cells, mass_by_part
from ropewalk.analysis.semantic_preference import axis_similarity, collisions, critical_length
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.frequencies.waveform import waveform
from ropewalk.lab.hallucination import chair, yes_no

# ---- frequencies of axes ---------------------------------------------------------------------------------------------


def at(time, axes=3):
    offsets = torch.zeros(len(time), axes, dtype=torch.float64)
    offsets[:, 0] = time
    return offsets


def test_similarity_is_the_sum_over_pairs():
    made = rw.MRoPE(16, (2, 3, 3), base=50.0)
    offset = torch.tensor([[3.0, -1.0, 2.0]], dtype=torch.float64)
    axes = [0, 0, 1, 1, 1, 2, 2, 2]
    want = sum(math.cos(offset[0, a].item() * 50.0 ** (-i / 8)) for i, a in enumerate(axes))
    assert axis_similarity(made, offset).item() == pytest.approx(want)
    text = torch.arange(40.0, dtype=torch.float64)
    close(axis_similarity(made, text[:, None].expand(-1, 3)), waveform(rw.geometric(16, 50.0), text))
    heads = rw.MultiHeadRoPE(16, 4, (1, 2, 1), base=50.0)
    close(axis_similarity(heads, at(text), head=0), waveform(rw.geometric(16, 50.0), text))
    close(axis_similarity(heads, at(text), head=1), torch.full((40,), 8.0))  # time is not in the second head
    with pytest.raises(ConfigError, match=r"\(\.\.\., 3\)"):
        axis_similarity(made, torch.zeros(4, 2))
    with pytest.raises(ConfigError, match="key head 1 of 1"):
        axis_similarity(made, torch.zeros(4, 3), head=1)


def test_fast_time_comes_round_and_slow_time_does_not():
    """A distractor some hundred frames away looks near to M-RoPE."""
    found = collisions(rw.MRoPE(128), 2000)
    assert found and found[0] < 1000
    assert collisions(rw.VideoRoPE(128), 20_000, 0.1) == []
    first = found[0]
    wave = axis_similarity(rw.MRoPE(128), at(torch.tensor([first - 1.0, first, first + 1.0]).double()), axis=0)
    assert wave[1] > wave[0] and wave[1] > wave[2] and wave[1] >= 0.4 * 16
    with pytest.raises(ConfigError, match="share"):
        collisions(rw.MRoPE(128), 100, 1.0)


def test_what_is_alike_stays_preferred():
    """Idle pairs prefer it at any distance; half of all are enough whatever the others do."""
    steps = torch.arange(0, 60_000, 11, dtype=torch.float64)[:, None].expand(-1, 3)
    hybrid, video = rw.HybridVideoRoPE(128), rw.VideoRoPE(128)
    assert bool((axis_similarity(hybrid, steps) >= axis_similarity(video, steps)).all())
    assert axis_similarity(rw.HybridVideoRoPE(128, (32, 16, 16)), steps).min() >= 0
    small = [cls(16, (2, 3, 3), base=100.0) for cls in (rw.HybridVideoRoPE, rw.VideoRoPE)]
    lengths = [critical_length(made, 10_000) or math.inf for made in small]
    assert lengths[0] >= lengths[1]
    assert critical_length(rw.HybridVideoRoPE(16, (4, 2, 2)), 5_000) is None
    # between frames at the same cell M-RoPE's idle axes hold the preference up
    assert critical_length(rw.MRoPE(128), 5_000, (1, 0, 0)) is None
    turned = rw.MRoPE(16, (6, 1, 1), base=4.0)
    n = critical_length(turned, 1000, (1, 0, 0))
    wave = axis_similarity(turned, at(torch.arange(1.0, 1001.0).double()))
    assert n is not None and wave[n - 1] < 0 and bool((wave[: n - 1] >= 0).all())
    with pytest.raises(ConfigError, match="finite"):
        critical_length(turned, 10, (math.nan, 0, 0))


# ---- attention to images ---------------------------------------------------------------------------------------------

ROWS, COLUMNS = 6, 8
LAYOUT = [rw.Text(2), rw.Image(ROWS, COLUMNS), rw.Text(6)]


def seen(encoding):
    where = rw.layout([LAYOUT])
    found = attention_map(encoding, where.query.length, head_dim=64, num_heads=1, causal=True, positions=where)
    return attention_to_cells(found.weights.mean(0), where)[0]


def test_rows_drift_to_the_last_corner_and_rings_do_not():
    """With equal contents: rows prefer the end of the image, backwards rows its beginning, rings neither."""
    plain = seen(rw.ConcentricAttention(64, numbering="raster"))
    assert plain[0].mean() < plain[-1].mean()
    back = seen(rw.ConcentricAttention(64, numbering="reverse"))
    assert back[0].mean() > back[-1].mean()
    rings = seen(rw.ConcentricAttention(64))
    for turned in (rings.flip(0), rings.flip(1)):
        close(turned, rings)
    assert rings.std() / rings.mean() < min((x.std() / x.mean()) for x in (plain, back))


def test_vrope_prefers_no_corner_as_rows_do():
    corners = lambda x: torch.stack([x[0, 0], x[0, -1], x[-1, 0], x[-1, -1]])  # noqa: E731
    spread = {
        name: corners(seen(rw.build(name, head_dim=64, base=10_000.0, pairing="half"))) for name in ("vrope", "rope")
    }
    spread = {name: (x.max() - x.min()) / x.mean() for name, x in spread.items()}
    assert spread["vrope"] < 0.5 * spread["rope"]


def test_cells_by_hand():
    where = rw.layout([rw.Text(1), rw.Image(1, 2), rw.Text(1), rw.Video(2, 1, 2), rw.Text(2)])
    weights = torch.arange(100.0).reshape(10, 10)
    first = attention_to_cells(weights, where, 0)
    close(first[0, 0], weights[[3, 8, 9]][:, [1, 2]].mean(0))
    second = attention_to_cells(weights.expand(2, 3, 10, 10), where, 1)
    assert second.shape == (2, 3, 2, 1, 2)
    close(second[0, 0].flatten(), weights[8:][:, 4:8].mean(0))
    with pytest.raises(PositionError, match="image 2 of 2"):
        attention_to_cells(weights, where, 2)
    with pytest.raises(PositionError, match="no text comes after"):
        attention_to_cells(torch.ones(3, 3), rw.layout([rw.Text(1), rw.Image(1, 2)]))
    with pytest.raises(ShapeError, match="one row"):
        attention_to_cells(torch.ones(3, 3), where)


def test_anchors():
    where = rw.layout([rw.Text(1), rw.Image(2, 5), rw.Text(2)])
    even = torch.full((13, 13), 1 / 13)
    assert anchor_share(even, where, 0.1).item() == pytest.approx(0.1)
    peak = even.clone()
    peak[11:, 4] = 9 / 13
    assert anchor_share(peak, where).item() == pytest.approx(0.5)  # 9 of 18 parts, one token
    with pytest.raises(ConfigError, match="share"):
        anchor_share(even, where, 0.0)


def test_mass_by_part():
    causal = torch.ones(20, 20).tril()
    causal = causal / causal.sum(1, keepdim=True)
    found = mass_by_part(causal, 4)
    assert found.sum().item() == pytest.approx(1)
    bimodal = torch.zeros(20, 20)
    bimodal[:, 0] += 0.5
    bimodal += 0.5 * torch.eye(20)
    close(mass_by_part(bimodal, 4), torch.tensor([0.5, 0, 0, 0.5]), 1e-6)
    with pytest.raises(ShapeError, match="at least 10 tokens"):
        mass_by_part(torch.ones(3, 3))


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_yes_and_no():
    found = yes_no([True, True, False, False, True], [True, False, False, True, True])
    assert (found.accuracy, found.precision, found.recall, found.yes) == (0.6, 2 / 3, 2 / 3, 0.6)
    assert found.f1 == pytest.approx(2 / 3)
    silent = yes_no([False], [True])
    assert (silent.precision, silent.f1, silent.recall) == (None, None, 0)
    with pytest.raises(ConfigError, match="1 answers to 2 questions"):
        yes_no([True], [True, False])


def test_objects_in_captions():
    assert chair([["cat", "dog", "dog"], ["cat"], []], [["cat"], ["cat"], ["cat"]]) == (1 / 3, 1 / 3)
    assert chair([[]], [["cat"]]) == (None, 0)
    with pytest.raises(ConfigError, match="at least one"):
        chair([], [])
