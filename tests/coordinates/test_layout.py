"""Layouts of text, images and videos: batches, padding, packing, chunks, cursors, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

import ropewalk as rw
from ropewalk.coordinates.layout import sample_layout, visual_tokens
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError
from ropewalk.rotary.mrope import MRoPEIds
from ropewalk.rotary.videorope import DiagonalIds

SCHEMES = [
    rw.MRoPE(16).scheme,
    rw.MRoPEInterleaved(16, spatial_reset=True).scheme,
    rw.VideoRoPE(16).scheme,
    rw.VRoPE(16).scheme,
    rw.RoPEDHR(16).scheme,
    rw.MouSi(16).scheme,
    rw.ConcentricAttention(16).scheme,
    rw.PyPE(16, 1).layer(1).scheme,
    rw.ModalityRoPE(16).scheme,
]
SAMPLES = [
    [rw.Text(3), rw.Image(2, 5), rw.Text(2)],
    [rw.Text(6)],
    [rw.Video(3, 1, 4, seconds=0.7), rw.Text(1), rw.Image(3, 2), rw.Text(1), rw.Tiles(1, 2, 2, 1), rw.Text(1)],
    [rw.Text(1), rw.Image(4, 3)],
]


def each(of):
    return pytest.mark.parametrize("scheme", of, ids=lambda s: type(s).__name__)


def length(sample):
    return sum(block.length for block in sample)


def alone(scheme, sample):
    return scheme.coordinates(rw.layout(sample).query)[0]


# ---- samples do not change each other --------------------------------------------------------------------------------


@each(SCHEMES)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_is_alone(scheme, padding):
    """Also in a batch in which some samples have images and others have none."""
    where = rw.layout(SAMPLES, padding=padding)
    coordinates = scheme.coordinates(where.query)
    for row, sample in enumerate(SAMPLES):
        real = where.query.column("valid")[row]
        assert int(real.sum()) == length(sample)
        assert torch.equal(coordinates[row, real], alone(scheme, sample))
        assert scheme.cursor(where.key)[row] == scheme.cursor(rw.layout(sample).key)[0]


@each(SCHEMES)
def test_packed_is_alone(scheme):
    where = rw.packed_layout([SAMPLES[:2], SAMPLES[2:]])
    coordinates, real = scheme.coordinates(where.query), where.query.column("valid")
    for row, samples in enumerate((SAMPLES[:2], SAMPLES[2:])):
        assert torch.equal(coordinates[row, real[row]], torch.cat([alone(scheme, s) for s in samples]))
    assert where.query.column("document")[0, :21].tolist() == [0] * 15 + [1] * 6
    assert scheme.cursor(where.key).tolist() == [scheme.cursor(rw.layout(SAMPLES[i]).key)[0] for i in (1, 3)]


@each(SCHEMES)
def test_slices_are_the_whole(scheme):
    where = rw.layout(SAMPLES)
    n = where.query.length
    parts = [scheme.coordinates(where.slice(a, b).query) for a, b in ((0, 4), (4, 5), (5, 13), (13, n))]
    assert torch.equal(torch.cat(parts, 1), scheme.coordinates(where.query))


@each(SCHEMES)
def test_the_cursor_is_where_more_text_goes_on(scheme):
    longer = [[*sample, rw.Text(3)] for sample in SAMPLES]
    for sample, more in zip(SAMPLES, longer, strict=True):
        tokens = rw.layout(sample).key
        assert torch.equal(scheme.coordinates(tokens.continuing(3))[0], alone(scheme, more)[-3:])
        assert scheme.delta(tokens)[0] == scheme.cursor(tokens)[0] - length(sample)


@each(SCHEMES)
def test_a_conversation_goes_on(scheme):
    """A second turn with images of its own, row by row, behind padded first turns."""
    turns = [[rw.Text(2), rw.Image(2, 3)], [rw.Text(4)], [rw.Text(1), rw.Video(2, 2, 1)], [rw.Image(1, 2)]]
    first = rw.layout(SAMPLES)
    second = rw.layout(turns, after=first)
    got = scheme.coordinates(second.query)
    for row, (before, new) in enumerate(zip(SAMPLES, turns, strict=True)):
        want = alone(scheme, [*before, *new])[-length(new) :]
        real = second.query.column("valid")[row]
        assert torch.equal(got[row, real], want)


def test_masks_with_holes():
    valid = torch.tensor([[0, 1, 1, 0, 1, 1, 0]]).bool()
    where = rw.layout([[rw.Text(2), rw.Image(1, 2)]], valid=valid)
    assert DiagonalIds().coordinates(where.query)[0, valid[0], 0].tolist() == [0, 1, 2, 2]


def test_queries_and_keys_of_their_own():
    """Cross-attention: text that asks an image of another sequence."""
    made = rw.MRoPE(16, base=100.0)
    asked, seen = rw.layout([rw.Text(3)]), rw.layout([rw.Text(1), rw.Image(2, 4)])
    where = rw.Positions.pair(asked.query, seen.key)
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, n, 16, generator=g, dtype=torch.float64) for n in (3, 9))
    p = made(rw.Attention(q, k, k, where, causal=False))
    assert torch.equal(p.q, made.rotate(q, q, asked)[0])
    assert torch.equal(p.k, made.rotate(k, k, seen)[1])


def test_which_tokens_are_visual():
    where = rw.layout([rw.Text(2), rw.Image(1, 3), rw.Text(1), rw.Video(2, 1, 1)])
    assert visual_tokens(where.key)[0].tolist() == [False] * 2 + [True] * 3 + [False] + [True] * 2


def test_text_only_says_so():
    made = rw.VideoRoPE(16)
    g = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 5, 16, generator=g)
    got = made.rotate(q, q, rw.text_only(rw.Positions.arange(5)))[0]
    assert torch.equal(got, made.rotate(q, q, rw.layout([rw.Text(5)]))[0])
    blocks = rw.layout([rw.Text(2), rw.Image(1, 3)])
    assert torch.equal(made.rotate(q, q, rw.text_only(blocks))[0], made.rotate(q, q, blocks)[0])


def test_samples_of_the_contract_suite_have_no_square_grid():
    where = sample_layout(3, 37, torch.Generator().manual_seed(0))
    assert where.query.position.shape == (3, 37)
    assert bool(visual_tokens(where.query).any(1).all())


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, None, "3"])
def test_sizes_that_are_none(bad):
    for make in (
        lambda: rw.Text(bad),
        lambda: rw.Image(bad, 2),
        lambda: rw.Image(2, bad),
        lambda: rw.Video(bad, 2, 3),
        lambda: rw.Tiles(1, bad, 2, 3),
    ):
        with pytest.raises(ConfigError, match="whole number, at least 1"):
            make()


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, (0.0, -0.5), (0.0, math.nan), (1.0, 0.5)])
def test_times_that_are_none(bad):
    with pytest.raises(PositionError, match="never run backwards"):
        rw.Video(2, 1, 3, seconds=bad)


def test_times_and_frames():
    with pytest.raises(PositionError, match="3 times for 2 frames"):
        rw.Video(2, 1, 3, seconds=(0.0, 1.0, 2.0))


def test_a_mask_of_another_count():
    with pytest.raises(PositionError, match="row 0 has 4 real tokens, and the blocks of its sample have 5"):
        rw.layout([[rw.Text(3), rw.Image(1, 2)]], valid=torch.tensor([[1, 1, 1, 1, 0]]))
    with pytest.raises(PositionError, match="True for real tokens"):
        rw.layout([[rw.Text(3)]], valid=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(PositionError, match="True for real tokens"):
        rw.layout([[rw.Text(3)]], valid=torch.ones(1, 3))


@pytest.mark.parametrize("bad", [[], [3], ["text"], [[rw.Text(2)], [5]]])
def test_what_is_no_list_of_blocks(bad):
    with pytest.raises(ConfigError, match="list"):
        rw.layout(bad)


def test_other_sides():
    with pytest.raises(ConfigError, match="padding is 'right' or 'left'"):
        rw.layout([rw.Text(2)], padding="both")


def test_a_decoding_step_without_a_cursor():
    made = rw.VideoRoPE(16)
    q = torch.zeros(1, 2, 9, 16)
    cache = rw.KVCache(made)
    cache.extend(rw.Attention(q, q, q, rw.layout([rw.Text(1), rw.Image(2, 4)])))
    one = q[:, :, :1]
    with pytest.raises((NeedsColumn, PositionError), match="layout"):
        cache.extend(rw.Attention(one, one, one, rw.Positions(torch.tensor([9]))))


def test_coordinates_without_a_cursor_are_not_continued():
    made = rw.VideoRoPE(16)
    q = torch.zeros(1, 2, 9, 16)
    coordinates = made.scheme.coordinates(rw.layout([rw.Text(1), rw.Image(2, 4)]).query)
    cache = rw.KVCache(made)
    cache.extend(rw.Attention(q, q, q, rw.Positions(coordinates)))
    one = q[:, :, :1]
    with pytest.raises(PositionError, match="next="):
        cache.extend(rw.Attention(one, one, one))


def test_what_cannot_be_continued():
    with pytest.raises(PositionError, match="do not say what blocks"):
        rw.layout([rw.Text(2)], after=rw.Positions.arange(3))
    with pytest.raises(PositionError, match="packed documents cannot be continued"):
        rw.layout([rw.Text(2)], after=rw.packed_layout([SAMPLES[:2]]))
    with pytest.raises(PositionError, match="3 samples continue 4 rows"):
        rw.layout([[rw.Text(2)]] * 3, after=rw.layout(SAMPLES))


def test_coordinates_know_nothing_of_plain_positions():
    with pytest.raises(NeedsColumn, match=r"rw\.layout"):
        MRoPEIds().coordinates(rw.Positions.arange(3).query)
