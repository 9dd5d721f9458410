"""VideoRoPE: slow pairs for time, a diagonal layout, stretched time (arXiv 2502.05173)."""

from __future__ import annotations

import math

import pytest
import torch
from frames import axes_first, blocks_of
from reference import DOUBLE, attend, close, golden, logits, problem

import ropewalk as rw
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.rotary.videorope import DiagonalIds, extend_time, with_time_scales

CASES = golden("052")
CLIP = [rw.Text(4), rw.Video(3, 5, 3), rw.Text(2), rw.Image(2, 7), rw.Text(3)]


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p = case.params
    sizes = (p["head_dim"], p["mrope_section"], p["base"])
    made = rw.MRoPE(*sizes) if p["variant"] == "mrope" else rw.VideoRoPE(*sizes, p["temporal_scale"])
    where = rw.layout(blocks_of(case.inputs["layout"]))
    close(axes_first(where, made.scheme), case.outputs["positions_thw"])
    delta = case.outputs["next_text_position_minus_length(rope_delta)"]
    assert made.scheme.delta(where.key).tolist() == delta[0].tolist()
    q, k = made.rotate(case.inputs["q"], case.inputs["k"], where)
    close(q, case.outputs["q_rot"], DOUBLE)
    close(k, case.outputs["k_rot"], DOUBLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_first", [True, False])
def test_time_has_the_slowest_pairs(row_first):
    made = rw.VideoRoPE(128, row_first=row_first)
    first, second = (1, 2) if row_first else (2, 1)
    assert made.allocation.rows[0] == (first, second) * 24 + (0,) * 16
    w = made.inv_freq[0]
    assert w[48:].max() < w[:48].min()


def test_wavelengths_explain_the_distractors():
    """M-RoPE's time comes round within 160 frames or so, VideoRoPE's not within 2e5."""
    time = {made: made.inv_freq[0][list(made.allocation.of(0))] for made in (rw.MRoPE(128), rw.VideoRoPE(128))}
    fast, slow = (2 * math.pi / w for w in time.values())
    assert fast.max() <= 2 * math.pi * 1e6 ** (15 / 64) < 161
    assert slow.min() >= 2 * math.pi * 1e6 ** (48 / 64) * (1 - 1e-12) > 1.9e5


def test_a_frame_lies_around_its_time():
    c = rw.VideoRoPE(16).scheme.coordinates(rw.layout(CLIP).query)[0]
    film = c[4:49].reshape(3, 5, 3, 3)
    close(film[..., 0], torch.tensor([4.0, 6.0, 8.0])[:, None, None].expand(3, 5, 3))
    close(film[..., 1:].mean((1, 2)), film[:, 0, 0, :1].expand(3, 2))  # odd sizes: the mean is the time
    image = c[51:65].reshape(2, 7, 3)
    assert (image[..., 1].mean() - image[0, 0, 0]).item() == 0.5  # even: half a row beyond it
    assert c[3, 0] == 3  # the text is 1 away from the first frame
    assert c[49].tolist() == [9, 9, 9]  # and 1 away from the last


def test_the_paper_has_other_halves_and_another_end():
    where = rw.layout([rw.Text(2), rw.Video(3, 2, 3), rw.Text(1)])
    c = DiagonalIds(2.0, "paper", "paper").coordinates(where.query)[0]
    assert c[2].tolist() == [2, 1, 0.5]
    assert c[-1].tolist() == [8, 8, 8]
    assert DiagonalIds(2.0).coordinates(where.query)[0, -1].tolist() == [7, 7, 7]


def test_frames_of_one_cell_are_text():
    where = rw.layout([rw.Text(2), rw.Video(4, 1, 1), rw.Text(2)])
    assert DiagonalIds(1.0).coordinates(where.query)[0].tolist() == [[i] * 3 for i in range(8)]


def test_scales_block_by_block():
    where = rw.layout([rw.Video(3, 1, 1), rw.Text(1), rw.Video(3, 1, 1), rw.Text(1)])
    c = DiagonalIds(2.0).coordinates(with_time_scales(where, torch.tensor([0.5, 3.0])).query)[0, :, 0]
    assert c.tolist() == [0, 0.5, 1, 2, 3, 6, 9, 10]
    for bad in ([1.0], [1.0, math.nan], [1.0, 0.0], [[[1.0]]]):
        with pytest.raises(PositionError):
            with_time_scales(where, torch.tensor(bad))


def test_coordinates_may_be_moved_and_decoding_goes_on_from_the_cursor():
    made = rw.VideoRoPE(16, base=100.0)
    where = rw.layout([CLIP])
    n = where.query.length
    p = problem(b=1, s=n, d=16, positions=where)
    moved = made.scheme.positions(where)
    close(
        logits(made(p)),
        logits(made(p.replace(positions=moved.map_sides(lambda t: t.with_columns(position=t.position + 7))))),
        1e-10,
    )
    close(attend(made, p.replace(positions=moved)), attend(made, p))
    assert moved.key.next.tolist() == made.scheme.cursor(where.key).tolist() == [15.0]
    assert moved.key.continuing(2).position.tolist() == [[[15.0] * 3, [16.0] * 3]]


def test_only_time_is_slowed_down():
    made = rw.VideoRoPE(16, base=1e4)
    plain = rw.geometric(16, 1e4)
    longer = extend_time(plain, made.allocation, 4.0, 32)
    slower = 1e4 * (127 / 31) ** (16 / 14)
    assert longer.inv_freq[:6] == plain.inv_freq[:6]
    close(torch.tensor(longer.inv_freq[6:]), torch.tensor([slower ** (-i / 8) for i in (6, 7)]))
    close(rw.VideoRoPE(16, base=1e4, spectrum=longer).inv_freq[0], torch.tensor(longer.inv_freq, dtype=torch.float64))


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_scales_that_are_none(bad):
    with pytest.raises(ConfigError, match="scale of time is a positive number"):
        rw.VideoRoPE(16, scale=bad)


def test_other_words():
    with pytest.raises(ConfigError, match="centre is 'code' or 'paper'"):
        rw.VideoRoPE(16, centre="middle")
    with pytest.raises(ConfigError, match="7 pairs together"):
        rw.VideoRoPE(16, (3, 2, 2))
