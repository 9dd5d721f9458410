"""Directional RoPE: headings turn pairs as angles (arXiv 2503.15029)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.rotary.drope_directional import drope

CASES = golden("054")
XY, HEADING = 20 * random(7, 2, seed=5), 3 * random(7, seed=6)
MODES = [rw.DirectionalRoPE(8), rw.DirectionalRoPE(8, "head-by-head", num_kv_heads=2)]


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p = case.params
    q, k = drope(
        case.inputs["q"],
        case.inputs["k"],
        case.inputs["xy"],
        case.inputs["heading"],
        p["variant"],
        p["split"],
        p["base"],
    )
    close(q, case.outputs["q_rot"], DOUBLE)
    close(k, case.outputs["k_rot"], DOUBLE)
    close(q @ k.mT, case.outputs["scores_unscaled"], DOUBLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def at(made, xy, heading, **more):
    return made(problem(kv=2, positions=rw.heading_positions(xy, heading), causal=False, **more))


@pytest.mark.parametrize("made", MODES, ids=lambda m: m.mode)
def test_a_heading_has_the_period_of_an_angle(made):
    turns = 2 * math.pi * torch.arange(-3, 4).double()
    a, b = at(made, XY, HEADING), at(made, XY, HEADING + turns)
    close(b.q, a.q)
    close(b.k, a.k)


def test_other_frequencies_do_not():
    where = [rw.Positions(HEADING + turn) for turn in (0, 2 * math.pi)]
    q = random(1, 1, 7, 8)
    differ(*(rw.RoPE(8).rotate(q, q, w)[0] for w in where))


@pytest.mark.parametrize("made", MODES, ids=lambda m: m.mode)
def test_only_differences_of_places_and_of_headings_count(made):
    here = logits(at(made, XY, HEADING))
    close(logits(at(made, XY + torch.tensor([300.0, -7.0], dtype=torch.float64), HEADING)), here, 1e-10)
    close(logits(at(made, XY, HEADING + 1.234)), here)


@pytest.mark.parametrize("made", MODES, ids=lambda m: m.mode)
def test_the_axes_of_places_are_fixed(made):
    """Turning the whole scene, places and headings, is another scene."""
    c, s = math.cos(0.7), math.sin(0.7)
    turned = XY @ torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    differ(logits(at(made, XY, HEADING)), logits(at(made, turned, HEADING + 0.7)))


@pytest.mark.parametrize("made", MODES, ids=lambda m: m.mode)
def test_norms_and_the_origin(made):
    p, plain = at(made, XY, HEADING), problem(kv=2)
    close(p.q.norm(dim=-1), plain.q.norm(dim=-1))
    origin = at(made, torch.zeros(7, 2), torch.zeros(7))
    assert torch.equal(origin.q, plain.q)
    assert torch.equal(origin.k, plain.k)


def test_the_heading_part_is_one_wave_of_the_difference():
    made = rw.DirectionalRoPE(8, split=0)
    q, k = random(1, 1, 7, 8), random(1, 1, 7, 8, seed=1)
    dq, dk = made.rotate(q, k, rw.heading_positions(XY, HEADING))
    a = q @ k.mT
    q1, q2, k1, k2 = q[..., ::2], q[..., 1::2], k[..., ::2], k[..., 1::2]
    b = q2 @ k1.mT - q1 @ k2.mT
    difference = HEADING[:, None] - HEADING
    close(dq @ dk.mT, a * difference.cos() - b * difference.sin())
    turn = torch.linspace(0, 2 * math.pi, 100_001, dtype=torch.float64)[:, None, None]
    a, b = a[0, 0], b[0, 0]
    close((a * turn.cos() - b * turn.sin()).amax(0), (a**2 + b**2).sqrt(), 1e-8)


def test_query_heads_go_with_their_key_head():
    made = rw.DirectionalRoPE(8, "head-by-head", num_kv_heads=3, heading_heads=[0])
    assert str(made.allocation).splitlines()[0] == "key head 0: heading heading heading heading"
    p = problem(h=6, kv=3, positions=rw.heading_positions(XY, HEADING), causal=False)
    moved = p.replace(positions=rw.heading_positions(XY + random(7, 2), HEADING))
    a, b = made(p).q, made(moved).q
    assert torch.equal(a[:, :2], b[:, :2])
    differ(a[:, 2:], b[:, 2:])


def test_no_tensor_of_pairs_of_agents(monkeypatch):
    """Its tables have a row for each agent, however many there are."""
    from torch.overrides import TorchFunctionMode

    sizes = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    n = 500
    where = rw.heading_positions(20 * random(n, 2), random(n, seed=1))
    p = problem(b=1, h=2, s=n, positions=where, causal=False)
    with Watch():
        rw.DirectionalRoPE(8)(p)
    assert max(sizes) <= 2 * n * 8


def test_chunks_are_one_pass():
    made = rw.DirectionalRoPE(8)
    where = rw.heading_positions(XY[None], HEADING[None])
    p = problem(b=1, positions=where)
    cache, out = rw.KVCache(made), []
    for a, b in ((0, 3), (3, 4), (4, 7)):
        out.append(
            rw.attend(
                cache.extend(rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], where.slice(a, b))), "dense"
            )
        )
    close(torch.cat(out, 2), attend(made, p))


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_headings_without_agents():
    with pytest.raises(PositionError, match="a heading without an agent"):
        rw.heading_positions(XY, torch.zeros(8))
    with pytest.raises(PositionError, match="a heading without an agent"):
        rw.heading_positions(torch.zeros(4, 7, 2), torch.zeros(3, 7))
    assert rw.heading_positions(XY, torch.zeros(3, 7)).query.position.shape == (3, 7, 3)
    with pytest.raises(PositionError, match="a heading other than 0 without an agent"):
        rw.heading_positions(XY, HEADING, directed=torch.arange(7) < 6)
    looks = torch.arange(7) < 6
    where = rw.heading_positions(XY, HEADING * looks, directed=looks)
    assert where.key.column("directed")[0].tolist() == looks.tolist()
    with pytest.raises(PositionError, match="True or False"):
        rw.heading_positions(XY, HEADING, directed=torch.ones(7))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none(bad):
    for xy, heading in ((XY, HEADING.clone().fill_(bad)), (XY.clone().fill_(bad), HEADING)):
        with pytest.raises(PositionError, match="NaN or infinite"):
            rw.heading_positions(xy, heading)


def test_positions_of_another_kind():
    with pytest.raises(PositionError, match="heading_positions"):
        MODES[0](problem(d=8))
    with pytest.raises(PositionError, match=r"expected \(agents, 2\)"):
        rw.heading_positions(torch.zeros(7, 3), HEADING)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"split": 6}, "multiple of 4"),
        ({"split": 12}, "from 0 to 8"),
        ({"mode": "intrahead"}, "Did you mean 'intra-head'"),
        ({"mode": "head-by-head"}, "give num_kv_heads"),
        ({"mode": "head-by-head", "num_kv_heads": 2, "heading_heads": [2]}, "counted from 0 to 1"),
        ({"mode": "head-by-head", "num_kv_heads": 2, "split": 4}, "split is of mode"),
        ({"heading_heads": [1]}, "heading_heads are of mode"),
        ({"scale": 0.0}, "scale is a positive number"),
        ({"head_dim": 10, "mode": "head-by-head", "num_kv_heads": 1}, "multiple of 4 channels"),
        ({"head_dim": 9}, "even"),
    ],
)
def test_bad_input(more, match):
    with pytest.raises(ConfigError, match=match):
        rw.DirectionalRoPE(**{"head_dim": 8, **more})


def kept(n, made):
    """Bytes that a layer of n agents keeps for its backward pass."""
    seen = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage
        return tensor

    q, k, v = (torch.randn(1, 2, n, 16, requires_grad=True) for _ in range(3))
    xy, heading = 20 * torch.randn(n, 2), torch.randn(n)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        made(q, k, v, xy, heading).sum().backward()
    return sum(storage.nbytes() for storage in seen.values())


def directional(q, k, v, xy, heading):
    p = rw.Attention(q, k, v, rw.heading_positions(xy, heading), causal=False)
    return rw.attend(rw.DirectionalRoPE(16)(p), "sdpa")


def explicit(q, k, v, xy, heading):
    """Relative places and headings of every pair, embedded and added to the keys."""
    turn = heading[:, None] - heading
    pairs = torch.cat([xy[:, None] - xy, torch.stack([turn.cos(), turn.sin()], -1)], -1)
    vectors = pairs @ torch.randn(4, 16, requires_grad=True)
    scores = (q[:, :, :, None] * (k[:, :, None] + vectors)).sum(-1) / 4
    return scores.softmax(-1) @ v


def test_memory_grows_with_agents_and_not_with_their_pairs():
    sizes = (128, 256, 512)
    mine, theirs = ([kept(n, made) for n in sizes] for made in (directional, explicit))
    assert all(b < 2.1 * a for a, b in itertools.pairwise(mine))
    assert all(b > 3.5 * a for a, b in itertools.pairwise(theirs))
    assert theirs[-1] > 50 * mine[-1]
