"""Clipped RoPE (arXiv 2602.05258)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import close, golden, problem

import ropewalk as rw
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import clipped, geometric, planes_beyond, ringing, unseen_planes, waveform

CASES = golden("069")
FLOAT32_ANGLES = 3e-5  # half a unit in the last place of 316, which is position 1000 times the second frequency
LADDER = geometric(128, 5e5)


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    c = case.params
    made = clipped(geometric(c["head_dim"], c["base"]), c["clip_low_n"], c["mode"])
    torch.testing.assert_close(made.tensor(), case.outputs["inv_freq"], rtol=1e-6, atol=1e-12)
    if "q" not in case.inputs:
        return
    encoding = rw.RoPE(pairing="half", spectrum=made)
    q, k = encoding.rotate(case.inputs["q"], case.inputs["k"], case.inputs["position_ids"])
    close(q, case.outputs["q_rot"], FLOAT32_ANGLES)
    close(k, case.outputs["k_rot"], FLOAT32_ANGLES)


def test_nothing_clipped_is_rope():
    assert clipped(LADDER, 0).inv_freq == LADDER.inv_freq
    assert clipped(LADDER, 1).inv_freq == LADDER.inv_freq  # the first keeps its frequency, and it is the only one
    assert clipped(LADDER, 1, "hard").inv_freq[-1] == 0.0


def test_modes_agree_on_the_rest():
    soft, hard = (clipped(LADDER, 20, mode).inv_freq for mode in ("soft", "hard"))
    assert soft[:44] == hard[:44] == LADDER.inv_freq[:44]
    assert soft[44] == LADDER.inv_freq[44]
    assert soft[-1] == 0.0
    assert hard[44:] == (0.0,) * 20


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("planes", [2, 20, 64, 100])
def test_below_rope_and_falling(mode, planes):
    made, plain = clipped(LADDER, planes, mode).tensor(), LADDER.tensor()
    assert bool((made >= 0).all())
    assert bool((made <= plain).all())
    assert bool((made.diff() <= 0).all())
    if planes >= 64 and mode == "soft":  # the whole spectrum is tapered and only the first keeps its value
        assert made[0] == plain[0]
        assert bool((made[1:] < plain[1:]).all())


def test_planes_at_rest_do_not_depend_on_the_position():
    encoding = rw.RoPE(spectrum=clipped(geometric(16), 4))
    p = problem(d=16, s=6)
    here, there = (encoding.rotate(p.q, p.k, torch.arange(6) + at)[0] for at in (0, 12_345))
    close(here[..., 14:], p.q[..., 14:])
    close(there[..., 14:], p.q[..., 14:])
    close(here.norm(dim=-1), p.q.norm(dim=-1))


def test_order_matters_where_scaling_looks_at_the_period():
    assert LADDER.llama3().clipped(40).inv_freq != LADDER.clipped(40).llama3().inv_freq
    scaled, other = LADDER.linear(4.0).clipped().tensor(), LADDER.clipped().linear(4.0).tensor()
    torch.testing.assert_close(scaled, other, rtol=1e-14, atol=0)
    assert LADDER.yarn(8.0, 8192).clipped().attention_factor == LADDER.yarn(8.0, 8192).attention_factor


@pytest.mark.parametrize(
    ("base", "length", "count"), [(5e5, 8192, 29), (5e5, 65_536, 18), (1e7, 8192, 35), (1e7, 65_536, 27)]
)
def test_planes_beyond_a_window(base, length, count):
    assert planes_beyond(geometric(128, base), length) == count
    assert planes_beyond(geometric(128, base).clipped(20, "hard"), length) >= 20  # those at rest count


def test_unseen_planes():
    beyond = planes_beyond(LADDER, 8192)
    assert unseen_planes(LADDER, 8192) == beyond
    for n in (2, 10, beyond):
        assert unseen_planes(clipped(LADDER, n), 8192) == beyond - 1
        assert unseen_planes(clipped(LADDER, n, "hard"), 8192) == beyond - n


# Every whole distance up to 262144 gives the published −18.79, −12.73 and 1.18; the deepest minima lie below 32768 as well.
def test_kernel_of_soft_lies_between():
    distance = torch.arange(1, 32_769)
    curves = [waveform(made, distance) for made in (LADDER, clipped(LADDER), clipped(LADDER, mode="hard"))]
    lowest = [float(c.min()) for c in curves]
    assert lowest[0] < lowest[1] < lowest[2]
    far = [float(c[8192:].mean()) for c in curves]
    assert far[0] < far[1] < far[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "lowest", "mean"),
    [(5e5, (-18.79, -12.73, 1.18), (4.40, 8.72, 19.99)), (1e7, (-5.01, -4.05, 3.35), (15.16, 15.55, 19.58))],
)
def test_kernel_at_every_distance(base, lowest, mean):
    plain = geometric(128, base)
    for made, low, average in zip((plain, clipped(plain), clipped(plain, mode="hard")), lowest, mean, strict=True):
        curve = torch.cat([waveform(made, part) for part in torch.arange(1, 262_145).split(1 << 16)])
        assert float(curve.min()) == pytest.approx(low, abs=0.005)
        assert float(curve[8192:].mean()) == pytest.approx(average, abs=0.005)


def test_sharp_edge_rings_longer():
    dense = geometric(8192, 100.0)
    edge = dense.inv_freq[2048]
    near, far = round(60 / edge), round(240 / edge)
    hard, soft = (clipped(dense, 2048, mode) for mode in ("hard", "soft"))
    middle = (240 + 8 * math.pi) / (60 + 8 * math.pi)  # of windows of eight periods
    assert ringing(hard, edge, near) / ringing(hard, edge, far) == pytest.approx(middle, rel=0.02)  # like 1/m
    assert ringing(soft, edge, far) < ringing(hard, edge, far) / 4


@pytest.mark.parametrize(("planes", "mode"), [(-1, "soft"), (2.0, "soft"), (True, "soft"), (2, "medium")])
def test_what_cannot_be(planes, mode):
    with pytest.raises(ConfigError):
        clipped(LADDER, planes, mode)
