"""Blocks whose tokens have numbers by name, and the scheme that makes axes of them."""

from __future__ import annotations

import math

import pytest
import torch

import ropewalk as rw
from ropewalk.coordinates.blocks import Block
from ropewalk.coordinates.column_ids import ColumnIds
from ropewalk.coordinates.scheme import Cells
from ropewalk.coordinates.signals import Agents, Audio, Bands, Boxes, Levels, Track, Tree
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError
from ropewalk.rotary.mrope import MRoPEIds

BLOCKS = {
    "boxes": Boxes(((0, 1, 2, 5), (1, 1, 2, 2), (0, 0, 1, 3))),
    "trajectory of a box": Boxes(((0, 1, 2, 5), (1, 1, 3, 5)), (0.0, 0.5)),
    "track": Track(((0, 1), (0.5, 2), (1, 3)), (0.0, 0.5, 2.0)),
    "audio": Audio(4, 0.02),
    "speakers": Audio(3, 0.5, ((0, 1), (0.5, 0.5), (1, 0))),
    "text": Levels(((0, 0), (0, 1), (1, 0)), ("paragraph", "sentence")),
    "code": Levels(((0,), (1,)), ("function",)),
    "tree": Tree(((), (0,), (0, 2), (1,)), 3),
    "agents": Agents(((1.5, -20.0), (0.0, 3.0))),
    "agents with headings": Agents(((1.5, -20.0), (0.0, 3.0)), (math.pi, -0.5)),
    "spectrum": Bands((400.0, 500.5, 900.0)),
    "image of bands": Bands((400.0, 700.0), 2, 3),
}


def number(where, name):
    return Cells.of(where.query, where.query.position.double()).named(name)[0]


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_what_a_block_says_can_be_read_and_is_an_axis(block):
    where = rw.layout([rw.Text(2), block, rw.Text(1)])
    n = block.length
    assert where.query.length == n + 3
    said = block.numbers()
    assert said
    for name, values in said.items():
        got = number(where, name)
        assert got[2:-1].tolist() == pytest.approx(list(values), rel=1e-15)
        assert bool(got[:2].isnan().all()) and bool(got[-1:].isnan().all())
    scheme = ColumnIds(tuple(said))
    c = scheme.coordinates(where.query)[0]
    assert scheme.axes == ("p", *said)
    assert c[:, 0].tolist() == list(range(n + 3))  # the order of the sequence
    assert c[2:-1, 1:].tolist() == [[2 + values[i] for values in said.values()] for i in range(n)]
    assert bool((c[:2] == torch.arange(2)[:, None]).all()) and bool((c[-1] == n + 2).all())
    assert scheme.cursor(where.key).tolist() == [n + 3]


def test_what_blocks_say():
    assert BLOCKS["boxes"].numbers() == {
        "row": [1, 1.5, 0.5],
        "column": [3, 1.5, 1.5],
        "height": [2, 1, 1],
        "width": [4, 1, 3],
    }
    assert BLOCKS["speakers"].numbers() == {"seconds": [0, 0.5, 1], "speaker_0": (0, 0.5, 1), "speaker_1": (1, 0.5, 0)}
    assert BLOCKS["tree"].numbers() == {
        "depth": [0, 1, 2, 1],
        "branch_0": [0, 1, 1, 2],
        "branch_1": [0, 0, 3, 0],
        "branch_2": [0, 0, 0, 0],
    }
    bands = BLOCKS["image of bands"].numbers()
    assert bands["row"] == (0, 0, 0, 1, 1, 1) * 2 and bands["column"] == (0, 1, 2) * 4
    assert bands["wavelength"] == (400.0,) * 6 + (700.0,) * 6


def test_a_redshift_is_a_shift():
    near, far = (number(rw.layout([Bands(tuple(z * w for w in (400.0, 500.5)))]), "log_wavelength") for z in (1, 3.5))
    torch.testing.assert_close(far - near, torch.full((2,), math.log(3.5), dtype=torch.float64))


# ---- kinds of blocks share axes --------------------------------------------------------------------------------------


def test_boxes_and_sound_lie_where_images_and_videos_do():
    """A box on the cells of its image; frames of sound at the time of frames of the video, to a common scale."""
    scheme = ColumnIds(("row", "column"))
    where = rw.layout([rw.Image(2, 3), Boxes(((0, 1, 2, 2),)), rw.Text(1)])
    c = scheme.coordinates(where.query)[0]
    assert c[:6, 1:].tolist() == [[r, k] for r in range(2) for k in range(3)]
    assert c[6].tolist() == [6, 6 + 1, 6 + 1.5]
    seconds = ColumnIds("seconds", (10.0,))
    where = rw.layout([rw.Video(2, 1, 2, seconds=0.5), Audio(3, 0.25), rw.Text(1)])
    assert seconds.coordinates(where.query)[0, :, 1].tolist() == [0, 0, 5, 5, 4, 6.5, 9, 7]


def test_reference_images_are_images_with_a_number():
    blocks = [rw.Image(1, 2, reference=1), rw.Image(1, 2, reference=2), rw.Text(1), rw.Image(1, 3)]
    where = rw.layout(blocks)
    assert number(where, "reference")[:4].tolist() == [1, 1, 2, 2]
    assert number(where, "reference")[5:].tolist() == [0, 0, 0]
    c = ColumnIds(("reference",), (100.0,)).coordinates(where.query)[0, :, 1]
    assert c.tolist() == [100, 100, 202, 202, 4, 5, 5, 5]
    plain = rw.layout([rw.Image(1, 2), rw.Image(1, 2), rw.Text(1), rw.Image(1, 3)])
    assert torch.equal(*(MRoPEIds().coordinates(w.query) for w in (where, plain)))
    for bad in (-1, True, 1.5):
        with pytest.raises(ConfigError, match="numbered from 1"):
            rw.Image(1, 2, reference=bad)


def test_blocks_of_your_own():
    """A block carries its structure and its numbers; nothing else has to know of it."""

    class Notes(Block):
        length = 3

        def entries(self):
            yield from rw.Text(3, modality=7).entries()

        def numbers(self):
            return {"pitch": (60, 64, 67)}

    where = rw.layout([rw.Text(1), Notes(), rw.Text(1)])
    assert number(where, "pitch")[1:4].tolist() == [60, 64, 67]
    Notes.numbers = lambda self: {"pitch": (60, 64)}
    with pytest.raises(PositionError, match="a Notes of 3 tokens has 2 numbers 'pitch'"):
        rw.layout([Notes()])


# ---- batches, padding, packing, chunks, decoding ---------------------------------------------------------------------

SAMPLES = [
    [rw.Text(2), BLOCKS["speakers"], rw.Text(1), rw.Image(2, 3)],
    [rw.Text(4)],
    [rw.Video(2, 1, 2, seconds=0.7), BLOCKS["audio"], rw.Text(2), BLOCKS["track"]],
    [BLOCKS["spectrum"], rw.Text(1)],
]
SCHEME = ColumnIds(("seconds", "speaker_0", "row"))


def alone(sample):
    numbers = any(block.numbers() for block in sample)
    whole = [*sample, BLOCKS["speakers"]] if numbers else sample  # so that all names are known
    return SCHEME.coordinates(rw.layout(whole).query)[0][: sum(block.length for block in sample)]


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_and_packed_are_alone(padding):
    where = rw.layout(SAMPLES, padding=padding)
    c = SCHEME.coordinates(where.query)
    for row, sample in enumerate(SAMPLES):
        torch.testing.assert_close(c[row, where.query.column("valid")[row]], alone(sample), rtol=0, atol=0)
    where = rw.packed_layout([SAMPLES[:2], SAMPLES[2:]], padding=padding)
    c, real = SCHEME.coordinates(where.query), where.query.column("valid")
    for row, samples in enumerate((SAMPLES[:2], SAMPLES[2:])):
        torch.testing.assert_close(c[row, real[row]], torch.cat([alone(s) for s in samples]), rtol=0, atol=0)


def test_a_sample_goes_on_with_numbers_that_are_new():
    first = rw.layout([[rw.Text(1), BLOCKS["audio"]], [rw.Text(2)]])
    second = rw.layout([[BLOCKS["speakers"], rw.Text(1)], [BLOCKS["track"]]], after=first)
    got = SCHEME.coordinates(second.query)
    whole = [[rw.Text(1), BLOCKS["audio"], BLOCKS["speakers"], rw.Text(1)], [rw.Text(2), BLOCKS["track"]]]
    for row, (sample, n) in enumerate(zip(whole, (4, 3), strict=True)):
        torch.testing.assert_close(got[row, :n], alone(sample)[-n:], rtol=0, atol=0)
    # and joined, as a cache does, the newer facts are those of all tokens
    joined = SCHEME.coordinates(first.query.cat(second.query))
    torch.testing.assert_close(joined[0, :5], alone(whole[0])[:5], rtol=0, atol=0)


def test_decoding_is_prefill():
    made = rw.MultiAxisRoPE(16, rw.Allocation.cyclic(8, SCHEME.axes), SCHEME, base=100.0)
    where = rw.layout([[rw.Text(2), BLOCKS["speakers"], rw.Image(2, 3), rw.Text(4)]])
    n = where.query.length
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 16, generator=generator, dtype=torch.float64) for _ in range(3))
    want = rw.attend(made(rw.Attention(q, k, v, where)), "dense")
    cache, out = rw.KVCache(made), []
    for start, stop in ((0, 4), (4, n - 3)):  # a chunk that cuts a block
        at = slice(start, stop)
        part = rw.Attention(q[:, :, at], k[:, :, at], v[:, :, at], where.slice(start, stop))
        out.append(rw.attend(cache.extend(part), "dense"))
    for i in range(n - 3, n):  # counted by the cache
        at = slice(i, i + 1)
        out.append(rw.attend(cache.extend(rw.Attention(q[:, :, at], k[:, :, at], v[:, :, at])), "dense"))
    torch.testing.assert_close(torch.cat(out, 2), want, rtol=1e-10, atol=1e-10)


# ---- bad input -------------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Boxes(()), ConfigError, "at least one token"),
        (lambda: Boxes(((0, 1, 2),)), PositionError, "4 numbers for each token"),
        (lambda: Boxes(((2, 1, 0, 5),)), PositionError, r"\(top, left, bottom, right\)"),
        (lambda: Boxes(((0, NAN, 2, 5),)), PositionError, "finite"),
        (lambda: Boxes(((0, 1, 2, 5),), (0.0, 1.0)), PositionError, "2 times for 1 corners"),
        (lambda: Track(((0, 1), (1, 1)), (1.0, 0.5)), PositionError, "never run backwards"),
        (lambda: Track(((0, 1),), (-1.0,)), PositionError, "from 0 on"),
        (lambda: Track(((0, 1),), (NAN,)), PositionError, "finite"),
        (lambda: Audio(0, 0.1), ConfigError, "at least 1"),
        (lambda: Audio(2, 0.0), PositionError, "more than 0"),
        (lambda: Audio(2, NAN), PositionError, "more than 0"),
        (lambda: Audio(2, 0.1, ((0, 1),)), PositionError, "1 rows of speakers for 2 frames"),
        (lambda: Audio(2, 0.1, ((0, 1), (0,))), PositionError, "2 numbers for each token"),
        (lambda: Audio(1, 0.1, ((0, 1.5),)), PositionError, "from 0 to 1"),
        (lambda: Levels(((0, 1),), ("a",)), PositionError, "1 numbers for each token"),
        (lambda: Levels(((0, 1),), ("a", "a")), ConfigError, "different names"),
        (lambda: Levels(((0, -1),)), PositionError, "whole number from 0"),
        (lambda: Tree(((0, 1, 0),), 2), PositionError, "3 branches in a tree of 2 levels"),
        (lambda: Tree(((-1,),), 2), PositionError, "a branch is a whole number"),
        (lambda: Tree((), 2), ConfigError, "at least one token"),
        (lambda: Agents(((0, 1),), (0.5, 0.1)), PositionError, "2 headings for 1 agents"),
        (lambda: Agents(((0, 1),), (INF,)), PositionError, "finite"),
        (lambda: Agents(((0, 1, 2),)), PositionError, "2 numbers"),
        (lambda: Bands((400.0, 0.0)), PositionError, "more than 0; got 0.0"),
        (lambda: Bands((-400.0,)), PositionError, "more than 0"),
        (lambda: Bands((NAN,)), PositionError, "finite"),
        (lambda: Bands((400.0,), 0), ConfigError, "at least 1"),
        (lambda: ColumnIds(()), ConfigError, "at least one"),
        (lambda: ColumnIds(("a", "a")), ConfigError, "different"),
        (lambda: ColumnIds(("a", "b"), (1.0,)), ConfigError, "a finite number for each of a, b"),
        (lambda: ColumnIds("a", (NAN,)), ConfigError, "a finite number"),
    ],
)
def test_what_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
@pytest.mark.parametrize(
    "slug", ["mrope", "videorope", "vrope", "rope_dhr", "mousi", "concentric_attention", "modality_rope"]
)
def test_schemes_that_do_not_read_it_refuse_a_block(slug, block):
    """Never 1-D positions in silence."""
    where = rw.layout([[rw.Text(1), block]])
    q = torch.zeros(1, 4, where.query.length, 16)
    with pytest.raises(NeedsColumn, match=r"places text, images and videos.*ColumnIds"):
        rw.build(slug, head_dim=16)(rw.Attention(q, q, q, where))


def test_a_name_that_no_block_has():
    where = rw.layout([rw.Text(1), BLOCKS["agents"]])
    with pytest.raises(NeedsColumn, match="no block says 'heading', and blocks of this layout have the numbers x, y"):
        ColumnIds(("x", "heading")).coordinates(where.query)
    text = rw.layout([rw.Text(3)])  # text alone has none, and needs none
    assert ColumnIds(("x", "heading")).coordinates(text.query)[0].tolist() == [[i] * 3 for i in range(3)]
