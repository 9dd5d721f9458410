"""TS-RoPE: axes of time and of each speaker's turns (arXiv 2601.03712)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, random

import ropewalk as rw
from ropewalk.coordinates.hyper_sd import HyperSD, into_ball, poincare_distance
from ropewalk.coordinates.turns import ts_coordinates, turn_counts
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, ShapeError

CASE = golden("089")["ts_4spk"]
D, S, T = 16, 4, 7


def voices(*shape, seed=3):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def encoded(activity, made=None, **more):
    made = rw.TimeSpeakerRoPE(D) if made is None else made
    t = activity.shape[-2]
    p = rw.Attention(random(1, 2, t, D), random(1, 2, t, D, seed=1), random(1, 2, t, D), causal=False)
    return made(p.replace(positions=rw.speaker_positions(activity, **more)))


def test_golden():
    p = CASE.params
    activity = CASE.inputs["activity"]
    where = rw.speaker_positions(activity, p["onset_threshold"])
    close(where.key.column("turns")[0], CASE.outputs["turn_count"], DOUBLE)
    q, k = rw.TimeSpeakerRoPE(p["head_dim"], p["speakers"], p["base"]).rotate(CASE.inputs["q"], CASE.inputs["k"], where)
    close(q, CASE.outputs["q_rot"], DOUBLE)
    close(k, CASE.outputs["k_rot"], DOUBLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def test_axes():
    assert str(rw.TimeSpeakerRoPE(64).allocation) == " ".join(["time s1 time s2 time s3 time s4"] * 4)
    assert str(rw.TimeSpeakerRoPE(16, 2).allocation) == "time s1 time s2 time s1 time s2"


def test_everybody_always_active_is_rope_of_the_pairs_of_time():
    p = encoded(torch.ones(T, S, dtype=torch.float64))
    q, k = random(1, 2, T, D), random(1, 2, T, D, seed=1)
    angles = torch.arange(T).double()[:, None] * rw.TimeSpeakerRoPE(D).inv_freq[0]
    angles[:, 1::2] = 0
    from ropewalk.core.rotation import rotate, tables

    turned = [rotate(t, *tables(angles, t.dtype), "interleaved") for t in (q, k)]
    close(logits(p), turned[0] @ turned[1].mT / D**0.5)


def test_a_query_asks_for_full_activity():
    activity = voices(1, T, S)
    asked, told = ts_coordinates(activity)
    close((asked - told)[..., 1:], 1 - activity)
    assert torch.equal(asked[..., 0], told[..., 0])
    silent, _ = ts_coordinates(torch.zeros(1, T, S))
    assert torch.equal(silent[..., 1:], torch.ones(1, T, S))  # one turn away
    full = [ts_coordinates(torch.ones(1, T, S))[i] for i in (0, 1)]
    assert torch.equal(*full)


def test_a_turn_is_one_place_and_the_next_one_a_jump():
    level = torch.tensor([0.0, 0.8, 0.8, 0.1, 0.8, 0.8, 0.8])
    activity = torch.zeros(T, S)
    activity[:, 2] = level
    _, told = ts_coordinates(activity.double())
    third = told[0, :, 3]
    assert third[1] == third[2]
    close(third[4] - third[1], torch.tensor(1.0))
    assert third[4] == third[6]


def test_norms_and_the_order_of_speakers():
    activity = voices(T, S)
    p = encoded(activity)
    close(p.q.norm(dim=-1), random(1, 2, T, D).norm(dim=-1))
    order = torch.tensor([2, 0, 3, 1])
    a, b = (ts_coordinates(x)[1][..., 1:] for x in (activity, activity[:, order]))
    assert torch.equal(b, a[..., order])
    differ(logits(encoded(activity[:, order])), logits(p))


def test_parts_of_the_coordinates():
    activity = voices(1, T, S)
    turns = turn_counts(activity).double()
    tokens = rw.speaker_positions(activity).key

    def places(**more):
        made = rw.TimeSpeakerRoPE(D, **more)
        return [made._place(tokens, (), asks=asks)[..., 1:] for asks in (True, False)]

    for got, want in (
        (places(), (turns + 1, turns + activity)),
        (places(query_bias=False), (turns + activity, turns + activity)),
        (places(turns=False), (torch.ones_like(turns), activity)),
        (places(activity=False), (turns, turns)),
    ):
        for a, b in zip(got, want, strict=True):
            close(a, b)


def test_turns_of_padded_and_packed_recordings():
    talks = torch.tensor([1, 1, 0, 1, 1, 0, 1]).double()[None, :, None]
    assert turn_counts(talks)[0, :, 0].tolist() == [1, 1, 1, 2, 2, 2, 3]
    ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    assert turn_counts(talks, document_ids=ids)[0, :, 0].tolist() == [1, 1, 1, 2, 1, 1, 2]
    valid = torch.tensor([[True, True, False, True, True, True, True]])  # the pause is padding, so no pause
    assert turn_counts(talks, valid=valid)[0, :, 0].tolist() == [1, 1, 1, 1, 1, 1, 2]


def test_gradients_go_through_activity():
    activity = voices(T, S).requires_grad_()
    logits(encoded(activity)).square().sum().backward()
    assert bool((activity.grad != 0).any())


def test_chunks_are_one_pass():
    made, where = rw.TimeSpeakerRoPE(D), rw.speaker_positions(voices(1, T, S))
    p = rw.Attention(random(1, 2, T, D), random(1, 2, T, D, seed=1), random(1, 2, T, D, seed=2), where)
    cache, out = rw.KVCache(made), []
    for a, b in ((0, 3), (3, 4), (4, 7)):
        part = rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], where.slice(a, b))
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), attend(made, p))


# ---- who talks: intervals, and the classifier ------------------------------------------------------------------------


def test_intervals():
    found = rw.speaker_activity([("ann", 0.1, 0.3), ("bob", 0.2, 9.0)], ["ann", "bob"], 5, seconds=0.1)
    assert found.T.tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 1]]


def test_hyperbolic_distance():
    x, y = into_ball(random(5, 3)), into_ball(random(5, 3, seed=1))
    close(poincare_distance(x, y), poincare_distance(y, x))
    assert bool((poincare_distance(x, x) < 1e-7).all())
    small = 1e-8
    a, b = random(5, 3), random(5, 3, seed=1)
    close(poincare_distance(into_ball(a, small), into_ball(b, small), small), 2 * (a - b).norm(dim=-1), 1e-6)


def test_hyper_sd():
    torch.manual_seed(0)
    made = HyperSD(6, speakers=3, layers=2).double()
    x = random(2, 4, 5, 6)
    close(made(x).exp().sum(-1), torch.ones(4, 5))
    talks = made.activity(x)
    assert talks.shape == (4, 5, 3)
    assert 0 <= talks.min() <= talks.max() <= 1
    who = torch.tensor([[[1, 0, 1], [0, 0, 0]]])
    assert made.classes(who).tolist() == [[5, 0]]
    assert made.members[5].tolist() == [1, 0, 1]
    made.loss(x[:, :1, :2], who).backward()
    assert bool(made.points.grad.isfinite().all())
    assert HyperSD(6)(1e6 * torch.randn(1, 2, 6)).isfinite().all()  # at the border of the ball


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_an_unknown_speaker():
    with pytest.raises(ConfigError, match=r"unknown speaker 'anna'.*Did you mean 'ann'"):
        rw.speaker_activity([("anna", 0, 1)], ["ann", "bob"], 5)
    with pytest.raises(PositionError, match="has 3 speakers and the encoding knows 4"):
        encoded(voices(T, 3))


@pytest.mark.parametrize(("start", "stop"), [(0.3, 0.1), (0.1, 0.1), (float("nan"), 1.0)])
def test_intervals_that_end_before_they_begin(start, stop):
    with pytest.raises(PositionError, match="an interval ends after it begins"):
        rw.speaker_activity([("ann", start, stop)], ["ann"], 5, seconds=0.1)


def test_other_bad_input():
    with pytest.raises(PositionError, match="from 0 to 1"):
        rw.speaker_positions(torch.full((T, S), 1.5))
    with pytest.raises(PositionError, match="from 0 to 1"):
        rw.speaker_positions(torch.full((T, S), float("nan")))
    with pytest.raises(NeedsColumn, match="activity"):
        rw.TimeSpeakerRoPE(D)(rw.Attention(*(random(1, 2, T, D),) * 3))
    with pytest.raises(ConfigError, match="multiple of 16"):
        rw.TimeSpeakerRoPE(24)
    with pytest.raises(PositionError, match=r"runs from 0 to 0\.1 s"):
        rw.speaker_activity([("ann", 2, 3)], ["ann"], 5)
    with pytest.raises(ShapeError, match="real"):
        rw.speaker_positions(torch.ones(T, S, dtype=torch.long))
    with pytest.raises(ConfigError, match="curvature"):
        HyperSD(6, curvature=0.0)
