"""M-RoPE (arXiv 2409.12191), MRoPE-Interleave and Multi-Head RoPE (arXiv 2510.23095)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import SINGLE, attend, close, differ, golden, logits, problem, triangle

import ropewalk as rw
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.rotary.mrope import MRoPEIds

QWEN = golden("106")
HUANG = golden("006")
SCHEME = MRoPEIds()


def ids(positions, scheme=SCHEME):
    """(3, batch, S), the axes first as in the golden files."""
    return scheme.coordinates(positions.query).movedim(-1, 0)


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("text_image_text", [rw.Text(4), rw.Image(2, 3), rw.Text(3)]),
        ("video_then_image", [rw.Text(3), rw.Video(3, 2, 2), rw.Text(3), rw.Image(1, 2), rw.Text(3)]),
    ],
)
def test_golden_ids(name, blocks):
    where, want = rw.layout(blocks), QWEN[name].outputs
    assert where.query.length == len(QWEN[name].inputs["input_ids"])
    assert torch.equal(ids(where)[:, 0], want["position_ids(3,L)"].double())
    assert SCHEME.delta(where.key).tolist() == want["rope_delta"].tolist()


def test_golden_padding_shifts_nothing():
    case = QWEN["text_only_padded"]
    mask = case.inputs["attention_mask"].bool()
    where = rw.layout([[rw.Text(5)]], valid=mask[None])
    assert torch.equal(ids(where)[:, 0, mask], case.outputs["position_ids(3,L)"][:, mask].double())
    assert SCHEME.delta(where.key).tolist() == case.outputs["rope_delta"].tolist()


def test_golden_rotation():
    case = QWEN["mrope_D16_s224"]
    where = case.inputs["position_ids(3,L)"].T[None]
    n = torch.arange(2 * 8 * 16, dtype=torch.float64)
    q, k = (0.1 * n).sin().reshape(1, 2, 8, 16), (0.13 * n[:128] + 0.5).sin().reshape(1, 1, 8, 16)
    made = rw.MRoPE(16, case.params["mrope_section"], case.params["base"])
    q, k = made.rotate(q, k, rw.Positions(where))
    close(q.flatten(), case.outputs["q_rot"].flatten(), SINGLE)
    close(k.flatten(), case.outputs["k_rot"].flatten(), SINGLE)


@pytest.mark.parametrize("name", HUANG)
def test_golden_interleave_and_heads(name):
    case = HUANG[name]
    p, n = case.params, case.inputs["input_ids"].shape[1]
    blocks = [rw.Text(3), rw.Image(2, 2), rw.Text(n - 7)]
    if name.startswith("mhrope"):
        made = rw.MultiHeadRoPE(8, 4, p["mrope_section"], p["base"], spatial_reset=p["spatial_reset"])
    else:
        made = rw.MRoPEInterleaved(12, p["mrope_section"], p["base"], spatial_reset=p["spatial_reset"])
    where = rw.layout(blocks)
    assert torch.equal(ids(where, made.scheme), case.outputs["position_ids"].double())
    assert made.scheme.delta(where.key)[:, None].tolist() == case.outputs["rope_delta"].tolist()
    q, k = made.rotate(case.inputs["q"], case.inputs["k"], where)
    close(q, case.outputs["q_rot"], SINGLE)
    close(k, case.outputs["k_rot"], SINGLE)


# ---- properties of the sheets ----------------------------------------------------------------------------------------

ALL = {
    "mrope": lambda **more: rw.MRoPE(16, **more),
    "interleaved": lambda **more: rw.MRoPEInterleaved(16, **more),
    "heads": lambda **more: rw.MultiHeadRoPE(16, 4, (1, 2, 1), **more),
}
BLOCKS = [rw.Text(3), rw.Image(2, 5), rw.Text(2), rw.Video(3, 4, 2), rw.Text(2)]


@pytest.mark.parametrize("kind", ALL)
def test_text_is_rope_bit_for_bit(kind):
    made = ALL[kind](base=10_000.0)
    p = problem(d=16, positions=rw.layout([[rw.Text(7)], [rw.Text(7)]]))
    plain = rw.RoPE(16, pairing="half")
    for got, want in zip(made.rotate(p.q, p.k, p.positions), plain.rotate(p.q, p.k, torch.arange(7)), strict=True):
        assert torch.equal(got, want)


def test_other_axes_are_other_groups_of_channels():
    """Height and width change places: the groups of their channels do, and nothing else."""
    where = rw.layout([BLOCKS])
    c = SCHEME.coordinates(where.query)
    swapped = c[..., [0, 2, 1]]
    made = rw.MRoPE(16, (2, 3, 3))
    here, there = made.allocation.spread(c)[0, 0], made.allocation.spread(swapped)[0, 0]
    assert torch.equal(there[:, :2], here[:, :2])
    assert torch.equal(there[:, 2:5], here[:, 5:])
    assert torch.equal(there[:, 5:], here[:, 2:5])


@pytest.mark.parametrize("kind", ALL)
def test_logits_depend_on_differences_of_ids(kind):
    made = ALL[kind](base=100.0)
    where = rw.layout([BLOCKS])
    p = problem(b=1, h=8, kv=4, s=where.query.length, d=16, positions=made.scheme.positions(where))
    for shift in (13, torch.tensor([3, -5, 40])):  # of all ids, or of each axis by itself
        moved = p.positions.map_sides(lambda t, by=shift: t.with_columns(position=t.position + by))
        close(logits(made(p.replace(positions=moved))), logits(made(p)), 1e-10)


def test_an_image_has_the_same_pattern_wherever_it_stands():
    """With a reset, height and width of its cells do not know what came before."""
    scheme = MRoPEIds(spatial_reset=True)
    early, late = (ids(rw.layout([rw.Text(n), rw.Image(2, 5)]), scheme)[1:, 0, n:] for n in (1, 30))
    assert torch.equal(early, late)


@pytest.mark.parametrize("kind", ALL)
def test_logits_are_those_of_the_pair_loop(kind):
    """An explicit loop over tokens, heads and pairs."""
    made = ALL[kind](base=500.0)
    where = rw.layout([BLOCKS])
    n = where.query.length
    p = problem(b=1, h=8, kv=4, s=n, d=16, positions=where)
    c = ids(where)[:, 0].tolist()
    axes = {"mrope": [[0, 0, 1, 1, 1, 2, 2, 2]] * 4, "interleaved": [[0, 1, 2, 0, 1, 2, 0, 0]] * 4}.get(
        kind, [[0] * 8, [1] * 8, [1] * 8, [2] * 8]
    )
    want = torch.zeros(1, 8, n, n, dtype=torch.float64)
    for h in range(8):
        for a in range(n):
            for b in range(n):
                q, k = p.q[0, h, a], p.k[0, h // 2, b]
                for i, axis in enumerate(axes[h // 2]):
                    angle = (c[axis][b] - c[axis][a]) * 500.0 ** (-i / 8)
                    x, y = k[i], k[i + 8]
                    turned = x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)
                    want[0, h, a, b] += (q[i] * turned[0] + q[i + 8] * turned[1]) / 4
    close(logits(made(p)), want, where=triangle(n))
    close(attend(made, p, "sdpa"), attend(made, p))


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (5, 2), (1, 4)])
def test_an_image_takes_up_its_longer_side(rows, columns):
    where = rw.layout([rw.Text(3), rw.Image(rows, columns), rw.Text(2)])
    c = ids(where)[:, 0]
    inside = c[:, 3 : 3 + rows * columns]
    assert c[:, -2].tolist() == [3 + max(rows, columns)] * 3
    assert bool((c[:, -2:] > inside.max()).all())
    assert inside.reshape(3, rows, columns)[1].tolist() == [[3 + r] * columns for r in range(rows)]
    assert inside.reshape(3, rows, columns)[2].tolist() == [list(range(3, 3 + columns))] * rows


def test_reset_moves_the_image_alone():
    where = rw.layout(BLOCKS)
    reset = ids(where, MRoPEIds(spatial_reset=True))
    plain = ids(where)
    visual = torch.zeros(where.query.length, dtype=torch.bool)
    visual[3:13] = visual[15:39] = True
    assert torch.equal(reset[:, :, ~visual], plain[:, :, ~visual])
    assert torch.equal(reset[0], plain[0])
    assert reset[1, 0, 3:13].tolist() == [0] * 5 + [1] * 5
    triples = [tuple(t) for t in reset[:, 0, visual].T.tolist()]
    assert len(set(triples)) == len(triples)  # two images never share a place: their times differ


def test_each_axis_has_fast_and_slow_pairs_when_interleaved():
    reach = {}
    for name in ("mrope", "interleaved"):
        made = ALL[name](base=1e6) if name == "mrope" else rw.MRoPEInterleaved(128, (24, 20, 20), 1e6)
        made = rw.MRoPE(128, (16, 24, 24), 1e6) if name == "mrope" else made
        w = made.inv_freq[0]
        reach[name] = [
            (w[list(made.allocation.of(a))].max() / w[list(made.allocation.of(a))].min()).item() for a in range(3)
        ]
    assert min(reach["interleaved"]) > 1e5 > max(reach["mrope"])


def test_sections_deal_out_pairs_as_released():
    assert rw.MRoPE(128).allocation.rows[0] == (0,) * 16 + (1,) * 24 + (2,) * 24
    assert rw.MRoPEInterleaved(128).allocation.rows[0] == (0, 1, 2) * 20 + (0,) * 4
    assert str(rw.MRoPEInterleaved(16, (4, 2, 2)).allocation) == "t h w t h w t t"
    assert str(rw.MultiHeadRoPE(6, 5, (1, 2, 1)).allocation).splitlines()[::4] == [
        "key head 0: t t t",
        "key head 4: · · ·",
    ]


def test_a_key_head_without_axis_stands_still():
    where = rw.layout([BLOCKS])
    p = problem(b=1, h=8, kv=4, s=where.query.length, d=16, positions=where)
    q, k = rw.MultiHeadRoPE(16, 4, (1, 1, 1)).rotate(p.q, p.k, where)
    assert torch.equal(k[:, 3], p.k[:, 3])
    assert torch.equal(q[:, 6:], p.q[:, 6:])
    differ(k[:, 2], p.k[:, 2])


def test_time_in_seconds():
    """Qwen2.5-VL: whole steps of time, rounded down; an image is at one time whatever it is called."""
    scheme = MRoPEIds(tokens_per_second=2.0)
    c = ids(rw.layout([rw.Text(2), rw.Video(4, 1, 2, seconds=0.8), rw.Text(1), rw.Image(1, 3), rw.Text(1)]), scheme)
    assert c[0, 0].tolist() == [0, 1, 2, 2, 3, 3, 5, 5, 6, 6, 7, 8, 8, 8, 11]
    thirds = ids(rw.layout([rw.Video(31, 1, 1, seconds=0.1)]), MRoPEIds(tokens_per_second=10.0))
    assert thirds[0, 0].tolist() == list(range(31))  # 0.1 · 3 · 10 is 3.0000000000000004, 0.1 · 7 · 10 falls short
    given = ids(rw.layout([rw.Video(3, 1, 1, seconds=(0.0, 0.4, 7.0)), rw.Text(1)]), scheme)
    assert given[0, 0].tolist() == [0, 0, 14, 15]


def test_stride():
    c = ids(rw.layout([rw.Text(1), rw.Video(3, 1, 2), rw.Text(1)]), MRoPEIds(stride=2.0))
    assert c[0, 0].tolist() == [0, 1, 1, 3, 3, 5, 5, 6]


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_sections_that_do_not_fit():
    with pytest.raises(ConfigError, match=r"sections \[2, 3, 4\] are 9 pairs together, and 16 channels have 8"):
        rw.MRoPE(16, (2, 3, 4))
    with pytest.raises(ConfigError, match="one pair in 3 of 8 makes 2, and axis 'h' asks for 3"):
        rw.MRoPEInterleaved(16, (2, 3, 3))
    with pytest.raises(ConfigError, match="at least 1"):
        rw.MRoPE(16, (8, 0, 0))
    with pytest.raises(ConfigError, match="head_dim is at least 6"):
        rw.MRoPE(4)
    with pytest.raises(ConfigError, match="5 key heads, and the layer has 4"):
        rw.MultiHeadRoPE(16, 4, (2, 2, 1))


@pytest.mark.parametrize("kind", ALL)
def test_plain_positions_are_refused(kind):
    with pytest.raises(PositionError, match="text_only"):
        ALL[kind]()(problem(d=16))
    with pytest.raises(PositionError, match="2 axes"):
        ALL[kind]()(problem(d=16, positions=rw.Positions(torch.zeros(1, 7, 2))))


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
def test_scales_that_are_none(bad):
    with pytest.raises(ConfigError, match="positive"):
        MRoPEIds(stride=bad)
    with pytest.raises(ConfigError, match="positive"):
        MRoPEIds(tokens_per_second=bad)
