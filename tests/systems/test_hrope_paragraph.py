"""hRoPE: channels of paragraphs, sentences and tokens (arXiv 2609.23551). Its measure is in tests/analysis."""

from __future__ import annotations

import json

import pytest
import torch
from reference import DOUBLE, FOLDER, attend, close, differ, golden, logits, problem, triangle

import ropewalk as rw
from ropewalk.analysis.paragraph_compression import attention_change, density_matched_labels, paragraph_compression
from ropewalk.coordinates.hierarchy import intervene
from ropewalk.core.errors import ConfigError, PositionError, ShapeError

CASE = golden("002")["four-paragraphs"]


def coordinates(counters="global"):
    labels = []
    for name in ("paragraph_lengths", "sentence_lengths"):
        sizes = torch.tensor(CASE.params[name])
        labels.append(torch.arange(len(sizes)).repeat_interleave(sizes))
    return rw.hierarchical_coordinates(*labels, counters)


def attention(where):
    p = CASE.params
    made = rw.MultiChannelRoPE(sum(p["channel_dims"]), p["channel_dims"], p["bases"])
    n = torch.arange(24 * 16, dtype=torch.float64)
    q, k = ((1.5 * x.sin()).view(1, 1, 24, 16) for x in (0.1 * n, 0.07 * n + 0.5))
    scores = logits(made(rw.Attention(q, k, k, rw.Positions(where[None]))))[0, 0]
    return scores.masked_fill(~triangle(24), -torch.inf).softmax(-1)


def test_golden():
    where = coordinates()
    assert torch.equal(where.double(), CASE.outputs["coordinates"].double())
    weights = attention(where)
    close(weights[-1], CASE.outputs["attention_last_row"], DOUBLE)
    erased = attention(intervene(where, "erase"))
    raw = json.loads((FOLDER / "002-hrope-paragraph.json").read_text(encoding="utf-8"))["cases"][0]["outputs"]
    for got, name in ((weights, "curve"), (erased, "curve_p1_erased")):
        found = paragraph_compression(got[None], where[:, 0], 1)
        assert found.pooled == pytest.approx(raw[name]["pooled"])
        assert found.depth == pytest.approx(raw[name]["depth"])


# ---- coordinates -----------------------------------------------------------------------------------------------------


def flags(*places, n=9):
    made = torch.zeros(n, dtype=torch.bool)
    made[list(places)] = True
    return made


def test_counters():
    ends = flags(4, 7), flags(1, 3)
    everywhere = rw.hierarchical_positions(*ends)[0].query.position[0]
    assert everywhere[:, 0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 2]
    assert everywhere[:, 1].tolist() == [0, 0, 1, 1, 2, 3, 3, 3, 4]
    assert everywhere[:, 2].tolist() == list(range(9))
    local = rw.hierarchical_positions(*ends, "local")[0].query.position[0]
    assert local[:, 0].tolist() == everywhere[:, 0].tolist()
    assert local[:, 1].tolist() == [0, 0, 1, 1, 2, 0, 0, 0, 0]
    assert local[:, 2].tolist() == [0, 1, 0, 1, 0, 0, 1, 2, 0]


@pytest.mark.parametrize("counters", ["global", "local"])
@pytest.mark.parametrize("cuts", [(3, 4, 9), (1, 5, 8, 9), tuple(range(1, 10)), (0, 9)])
def test_token_by_token_is_all_at_once(counters, cuts):
    paragraph = torch.stack([flags(4, 7), flags(0, 5)])
    sentence = torch.stack([flags(1, 3), flags(2, 6, 7)])
    ids = torch.tensor([[0] * 9, [0] * 3 + [1] * 6])
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, :2] = valid[1, 4] = False
    facts = {"document_ids": ids, "valid": valid}
    want = rw.hierarchical_positions(paragraph, sentence, counters, **facts)[0].query.position
    state, parts, start = None, [], 0
    for stop in cuts:
        part = slice(start, stop)
        where, state = rw.hierarchical_positions(
            paragraph[:, part], sentence[:, part], counters, state, document_ids=ids[:, part], valid=valid[:, part]
        )
        parts.append(where.query.position)
        start = stop
    assert torch.equal(torch.cat(parts, 1)[valid], want[valid])
    alone = rw.hierarchical_positions(paragraph[1, 3:][valid[1, 3:]], sentence[1, 3:][valid[1, 3:]], counters)[0]
    assert torch.equal(want[1, 3:][valid[1, 3:]], alone.query.position[0])
    state.select(torch.tensor([1]))


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def placed(where, made=None, **more):
    made = rw.MultiChannelRoPE(16) if made is None else made
    return made(problem(b=1, s=24, d=16, positions=rw.Positions(where[None]), **more))


def test_defaults():
    assert rw.MultiChannelRoPE(64).channel_dims == (16, 16, 32)
    assert rw.MultiChannelRoPE(20).channel_dims == (4, 4, 12)


def test_without_channels_of_paragraphs_it_is_rope():
    made = rw.MultiChannelRoPE(16, (0, 0, 16))
    close(placed(coordinates(), made).q, rw.RoPE(16, pairing="half")(problem(b=1, s=24, d=16)).q)
    assert str(made.allocation).split() == ["token"] * 8


def test_one_paragraph_of_one_sentence():
    flat = coordinates() * torch.tensor([0, 0, 1])
    q = placed(flat).q
    assert torch.equal(q[..., :8], problem(b=1, s=24, d=16).q[..., :8])
    constant = logits(placed(coordinates() * torch.tensor([0, 1, 1]) + torch.tensor([3, 0, 0])))
    close(constant, logits(placed(intervene(coordinates(), "erase"))))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_constant_on_one_axis(axis):
    moved = coordinates().clone()
    moved[:, axis] += 17
    close(logits(placed(moved)), logits(placed(coordinates())))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_channels_are_apart(pairing):
    made = rw.MultiChannelRoPE(16, pairing=pairing)
    a, b = placed(coordinates(), made), placed(intervene(coordinates(), "scale", 2.5), made)
    for name in "qk":
        assert torch.equal(getattr(a, name)[..., 4:], getattr(b, name)[..., 4:])
        differ(getattr(a, name)[..., :4], getattr(b, name)[..., :4])


def test_decoding_carries_the_counters():
    made = rw.MultiChannelRoPE(16)
    paragraph, sentence = flags(4, 7), flags(1, 3)
    where = rw.hierarchical_positions(paragraph, sentence)[0]
    p = problem(b=1, s=9, d=16, positions=where)
    cache, state, out = rw.KVCache(made), None, []
    for a, b in ((0, 4), (4, 5), (5, 9)):
        new, state = rw.hierarchical_positions(paragraph[a:b], sentence[a:b], state=state)
        out.append(rw.attend(cache.extend(rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], new)), "dense"))
    close(torch.cat(out, 2), attend(made, p))


# ---- interventions ---------------------------------------------------------------------------------------------------


def test_interventions():
    where = coordinates()
    p1 = where[:, 0]
    for changed in (
        intervene(where, "erase", 2),
        intervene(where, "scale", 0.5),
        intervene(where, "jump", 4, boundary=2),
        intervene(where, "shift", -2, boundary=1),
    ):
        assert torch.equal(changed[:, 1:], where[:, 1:])
    assert intervene(where, "erase", 2)[:, 0].unique().tolist() == [2]
    close(intervene(where, "scale", 0.5)[:, 0], p1 / 2)
    assert intervene(where, "jump", 4, boundary=2)[:, 0].unique().tolist() == [0, 1, 5, 6]
    lengths = [intervene(where, "shift", by, boundary=2)[:, 0].bincount().tolist() for by in (-3, 0, 3)]
    assert lengths == [[5, 4, 7, 8], [5, 7, 4, 8], [5, 10, 1, 8]]


def test_change_of_attention():
    where = coordinates()
    before, after = attention(where), attention(intervene(where, "jump", 6, boundary=2))
    change = attention_change(before[None], after[None], where[:, 0])
    labels = where[:, 0]
    apart = labels[:, None] - labels
    mine = triangle(24) & ~torch.eye(24, dtype=torch.bool) & (apart == 1)
    assert change[1] == pytest.approx((after - before)[mine].mean().item())
    assert attention_change(before[None], before[None], labels) == (0.0,) * 4


def test_a_random_axis_of_the_same_density():
    """The control: as many boundaries, drawn anew at each step."""
    labels = coordinates()[:, 0]
    draws = [density_matched_labels(labels, seed=1, step=step) for step in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    differ(draws[0], draws[2])
    made = rw.hierarchical_coordinates(draws[0], coordinates()[:, 2])
    assert made[-1, 0] == labels[-1]


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_positions_of_another_kind():
    with pytest.raises(PositionError, match="hierarchical_positions"):
        rw.MultiChannelRoPE(8)(problem())
    with pytest.raises(PositionError, match="numbers of paragraphs fall"):
        rw.hierarchical_coordinates(torch.tensor([0, 1, 0]))
    with pytest.raises(ShapeError, match="True or False"):
        rw.hierarchical_positions(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ShapeError, match="of both"):
        rw.hierarchical_positions(flags(n=3), flags(n=4))


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"channel_dims": (4, 4)}, r"16 \(head_dim\) together"),
        ({"channel_dims": (3, 5, 8)}, "even"),
        ({"bases": (100.0, 100.0)}, "one for each of paragraph, sentence, token"),
        ({"bases": (100.0, 0.0, 1e4)}, "base is a positive number"),
        ({"head_dim": 0}, "at least 2"),
    ],
)
def test_bad_input(more, match):
    with pytest.raises(ConfigError, match=match):
        rw.MultiChannelRoPE(**{"head_dim": 16, **more})


@pytest.mark.parametrize(
    ("kind", "more", "match"),
    [
        ("erases", {}, "Did you mean 'erase'"),
        ("scale", {}, "needs value="),
        ("jump", {"value": 2}, "boundary= says where"),
        ("erase", {"boundary": 1}, "boundary= says where"),
        ("jump", {"value": 2, "boundary": 4}, "boundary 4 of 3"),
        ("shift", {"value": 7, "boundary": 1}, "passes the next one"),
        ("shift", {"value": -5, "boundary": 1}, "passes the next one"),
        ("shift", {"value": 0.5, "boundary": 1}, "whole tokens"),
    ],
)
def test_interventions_that_are_none(kind, more, match):
    with pytest.raises(ConfigError, match=match):
        intervene(coordinates(), kind, **more)
