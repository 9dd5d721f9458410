"""Interval-sampled times and the entity-temporal RoPE (arXiv 2606.13768)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, parse, problem, random

import ropewalk as rw
from ropewalk import testing
from ropewalk.coordinates.events import Entity, Event, interval_times, read_entities, sample_events
from ropewalk.core.errors import CannotEdit, ConfigError, PositionError, ShapeError

CASES = golden("119")
CUT, FIGURE = CASES["two_subjects_one_cut"], CASES["figure-layout"]
MODES = ["midpoint", "linspace", "repeat", "center", "native"]


def made_for(p):
    return rw.CrossRoPE2D(p["d_time"] + p["d_entity"], p["d_entity"], base_t=p["base_time"], base_e=p["base_entity"])


def of(case, where):
    """Return the golden problem, encoded; queries, keys and values are [heads, tokens, width]."""
    return made_for(case.params)(rw.Attention(*inputs(case, where), where.positions, causal=False))


def inputs(case, where):
    """Return q, k and v; one case says them as formulas over letters for sizes."""
    width = case.params["d_time"] + case.params["d_entity"]
    sizes = {"H": 1, "Nq": where.positions.query.length, "Nk": where.positions.key.length, "D": width}
    made = []
    for name in "qkv":
        given = case.inputs[name]
        if isinstance(given, str):
            step, shape = given.split(" (")
            given = parse(f"{step} ({','.join(str(sizes.get(s, s)) for s in shape.rstrip(')').split(','))})")
        made.append(given[None])
    return made


def test_golden_events():
    p = CUT.params
    entities = [Entity((Event(e["start"], e["end"], e["n_tokens"]),)) for e in p["events"]]
    where = rw.event_layout(entities, p["frames"], p["tokens_per_frame"], p["frames_per_second"], entity_offset=1)
    key = where.positions.key.position[0]
    close(key[:, 0], CUT.outputs["key_time"], DOUBLE)
    assert key[:, 1].tolist() == CUT.outputs["key_entity"].tolist()
    assert where.positions.query.position[0].tolist() == [[t, 0] for t in CUT.outputs["query_time"].tolist()]
    turned = of(CUT, where)
    close(turned.q[0], CUT.outputs["q_rot"], DOUBLE)
    close(turned.k[0], CUT.outputs["k_rot"], DOUBLE)
    close(rw.attend(turned, "dense")[0], CUT.outputs["out"], DOUBLE)


def figure():
    p = FIGURE.params
    records = [dict(r) for r in p["records"]]
    for entity, tokens in p["reference_tokens"]:
        records[entity]["reference_tokens"] = tokens
    more = {"clip_seconds": p["clip_seconds"]}
    return rw.event_layout(read_entities(records), p["frames"], p["tokens_per_frame"], p["frames_per_second"], **more)


def test_golden_records():
    where = figure()
    key, query = where.positions.key.position[0], where.positions.query.position[0]
    close(key[:, 0], FIGURE.outputs["key_time"], DOUBLE)
    assert key[:, 1].tolist() == FIGURE.outputs["key_entity"].tolist()
    assert query[:, 0].tolist() == FIGURE.outputs["query_time"].tolist()
    assert query[:, 1].tolist() == FIGURE.outputs["query_entity"].tolist()
    turned = of(FIGURE, where)
    close(logits(turned)[0], FIGURE.outputs["logits"], DOUBLE)
    close(rw.attend(turned, "dense")[0], FIGURE.outputs["out"], DOUBLE)


# ---- properties of the sheet: times ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_times_are_within_the_interval_and_affine(mode):
    a, b = (interval_times(s, e, 5, mode, frames_per_second=2.0, samples=3) for s, e in ((1.0, 4.0), (0.0, 1.0)))
    assert a.shape == (5, 3 if mode == "repeat" else 1)
    if mode == "native":
        assert a[:, 0].tolist() == [2, 3, 4, 5, 6]
        return
    assert a.min() >= 2
    assert a.max() <= 8
    close(a, 2 + 3 * b)
    first = a[:, 0] if mode != "repeat" else a[0]
    steps = first[1:] - first[:-1]
    assert bool((steps > 0).all() if mode != "center" else (steps == 0).all())


def test_the_rules_of_times():
    assert interval_times(1, 3, 2)[:, 0].tolist() == [1.5, 2.5]
    assert interval_times(1, 3, 3, "linspace")[:, 0].tolist() == [1, 2, 3]
    assert interval_times(1, 3, 1, "linspace")[:, 0].tolist() == [2]
    assert interval_times(1, 3, 2, "center")[:, 0].tolist() == [2, 2]
    assert interval_times(0, 4, 2, "repeat", samples=2).tolist() == [[1, 3], [1, 3]]
    assert interval_times(1, 3, 0).shape == (0, 1)


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_some_token_is_near_any_time_of_the_event(tokens):
    frames = torch.linspace(2, 8, 601, dtype=torch.float64)
    near = (frames[:, None] - interval_times(1, 4, tokens, frames_per_second=2)[:, 0]).abs().amin(1).max()
    assert near.item() == pytest.approx(6 / (2 * tokens))
    far = (frames[:, None] - interval_times(1, 4, tokens, "center", frames_per_second=2)[:, 0]).abs().amin(1).max()
    assert far.item() == pytest.approx(3)


def test_times_of_descriptions():
    def times(rule, *presence, tokens=4):
        entity = Entity(global_tokens=tokens, presence=presence)
        where = rw.event_layout([entity], 20, 1, 2.0, global_time=rule)
        return where.positions.key.position[0, :, 0].tolist()

    assert times("clip", (1, 2)) == [2.5, 7.5, 12.5, 17.5]  # in frames: 10 seconds are 20
    assert times("presence") == [2.5, 7.5, 12.5, 17.5]
    assert times("presence", (6, 8), (1, 3)) == [3, 5, 13, 15]
    assert times("presence", (1, 2), (1.5, 3), (6, 8)) == [3, 5, 13, 15]
    assert times("presence", (3, 3)) == [6, 6, 6, 6]
    assert times("slot", (1, 2)) == [-1, -1, -1, -1]


# ---- properties of the sheet: attention ------------------------------------------------------------------------------

ENTITIES = (
    Entity((Event(0.0, 2.0, 3), Event(1.0, 1.0, 2)), global_tokens=1, reference_tokens=2),
    Entity((Event(0.5, 3.0, 2),), reference_tokens=1),
)


def scores(where, made=None, seed=0):
    made = rw.CrossRoPE2D(16) if made is None else made
    q = random(1, 2, where.positions.query.length, 16, seed=seed)
    k = random(1, 2, where.positions.key.length, 16, seed=seed + 1)
    return logits(made(rw.Attention(q, k, k, where.positions, causal=False)))


def test_a_shift_of_events_and_frames_changes_nothing_for_the_video():
    where = rw.event_layout(ENTITIES, 4, 2, 1.0)
    n = where.video
    by = torch.tensor([5.0, 0.0], dtype=torch.float64)
    query, key = (t.position.clone() for t in (where.positions.query, where.positions.key))
    query[:, :n] += by
    moved = where._replace(positions=rw.Positions(q=query, k=key + by))
    close(scores(moved)[:, :, :n], scores(where)[:, :, :n])
    differ(scores(moved)[:, :, n:], scores(where)[:, :, n:])


def test_entities_count_as_differences():
    where = rw.event_layout(ENTITIES, 4, 2, 1.0)
    query, key = where.positions.query.position, where.positions.key.position
    up = torch.tensor([0.0, 3.0], dtype=torch.float64)
    close(scores(where._replace(positions=rw.Positions(q=query + up, k=key + up))), scores(where))
    # Between a reference image and the captions of its own entity the axis of entities does nothing.
    own = where.positions.query.column("reference")[0] == 2
    captions = key[0, :, 1] == 1
    plain = rw.CrossRoPE2D(16)
    flat = [torch.cat([t[..., :1], torch.zeros_like(t[..., 1:])], -1) for t in (query, key)]
    zero = where._replace(positions=rw.Positions(q=flat[0], k=flat[1]))
    close(scores(where, plain)[:, :, own][..., captions], scores(zero, plain)[:, :, own][..., captions])
    differ(scores(where)[..., captions], scores(zero)[..., captions])


def test_without_an_axis_of_entities_it_is_rope():
    where = rw.event_layout(ENTITIES, 4, 2, 1.0)
    times = rw.Positions(q=where.positions.query.position[..., 0], k=where.positions.key.position[..., 0])
    q, k = random(1, 2, where.positions.query.length, 16), random(1, 2, where.positions.key.length, 16, seed=1)
    a, b = (
        e(rw.Attention(q, k, k, p, causal=False))
        for e, p in ((rw.CrossRoPE2D(16, 0), where.positions), (rw.RoPE(16), times))
    )
    close(a.q, b.q)
    close(a.k, b.k)
    one = rw.event_layout([Entity((Event(0.0, 4.0, 4),))], 4, 1, 1.0)
    halves = rw.Positions(q=torch.arange(4.0), k=torch.arange(4.0) + 0.5)
    close(scores(one, rw.CrossRoPE2D(16, 0)), scores(one._replace(positions=halves), rw.RoPE(16)))


def test_widths():
    assert [rw.CrossRoPE2D(d).entity_dim for d in (128, 64, 12, 10)] == [32, 16, 2, 2]
    assert str(rw.CrossRoPE2D(12, 4).allocation) == "t t t t entity entity"


def test_tokens_of_an_instant_are_turned_alike():
    where = rw.event_layout([Entity((Event(1.5, 1.5, 3),))], 4, 1, 2.0)
    assert where.positions.key.position[0].tolist() == [[3, 0]] * 3


def test_repeated_tokens_are_the_mean_over_their_times():
    where = rw.event_layout(ENTITIES, 4, 2, 1.0, mode="repeat", repeats=3)
    assert where.positions.key.position.shape == (1, 8, 4)
    got = scores(where, rw.CrossRoPE2D(16, samples=3))
    query, key = where.positions.query.position, where.positions.key.position
    each = [scores(where._replace(positions=rw.Positions(q=query[..., [c, 3]], k=key[..., [c, 3]]))) for c in range(3)]
    close(got, torch.stack(each).mean(0))


def test_video_tokens_do_not_depend_on_when_references_are_dropped():
    where = figure()
    assert where.video == 4
    x = random(1, where.positions.query.length, 8)
    kept = where.positions.query.column("reference")[0] == 0
    assert torch.equal(x[:, : where.video], x[:, kept])
    turned = of(FIGURE, where)
    video = where.positions.take_queries(torch.arange(where.video))
    q, k, v = inputs(FIGURE, where)
    alone = made_for(FIGURE.params)(rw.Attention(q[:, :, : where.video], k, v, video, causal=False))
    close(rw.attend(turned, "dense")[:, :, : where.video], rw.attend(alone, "dense"))


def test_references_in_self_attention():
    where = rw.reference_coords((2, 1, 2), [(1, 1), (1, 2)], 2, 3, -1, True, first=False)
    assert where.query.position[0].tolist() == [
        [0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1], [-1, 2, 3], [-1, 4, 6], [-1, 4, 7],
    ]  # fmt: skip


def test_the_gate():
    entities = [
        Entity((Event(0.0, 1.0, 1), Event(1.2, 1.7, 1), Event(2.0, 2.0, 1)), global_tokens=1, reference_tokens=1)
    ]
    gate = rw.event_layout(entities, 4, 1, 1.0).gate[0, 0]
    assert gate.int().tolist() == [
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 0, 0, 1],
        [1, 0, 0, 0],
        [1, 1, 1, 1],
    ]
    where = rw.event_layout([Entity((Event(0.0, 1.0, 2),))], 2, 1, 1.0)
    q, k = random(1, 1, 2, 16), random(1, 1, 2, 16, seed=1)
    gated = rw.Attention(q, k, k, where.positions, causal=False, mask=where.gate)
    out = attend(rw.CrossRoPE2D(16), gated)
    assert out[0, 0, 1].abs().max() == 0  # nothing happens in frame 1
    assert out[0, 0, 0].abs().max() > 0


def test_videos_of_a_batch():
    rows = [ENTITIES, (Entity((Event(0.0, 1.0, 2),)),)]
    where = rw.event_layout(rows, 4, 2, 1.0)
    made = rw.CrossRoPE2D(16)
    n, m = where.positions.query.length, where.positions.key.length
    q, k = random(2, 2, n, 16), random(2, 2, m, 16, seed=1)
    out = attend(made, rw.Attention(q, k, k, where.positions, causal=False, mask=where.gate))
    for row, entities in enumerate(rows):
        alone = rw.event_layout(entities, 4, 2, 1.0)
        a, b = alone.positions.query.length, alone.positions.key.length
        p = rw.Attention(
            q[row : row + 1, :, :a], k[row : row + 1, :, :b], k[row : row + 1, :, :b], alone.positions, causal=False,
            mask=alone.gate,
        )  # fmt: skip
        close(out[row : row + 1, :, :a], attend(made, p))


def test_keys_turned_once_serve_all_steps():
    where = rw.event_layout(ENTITIES, 4, 2, 1.0)
    made = rw.CrossRoPE2D(16)
    k = random(1, 2, where.positions.key.length, 16)
    first, second = (
        made(rw.Attention(random(1, 2, where.positions.query.length, 16, seed=s), k, k, where.positions, causal=False))
        for s in (1, 2)
    )
    assert torch.equal(first.k, second.k)


def frames_that_find_their_event(events, frames, mode):
    """Return the share of frames whose nearest token, of equal content, is of the event that goes on."""
    entities = [Entity((Event(start, end, 6),)) for start, end in events]
    where = rw.event_layout(entities, frames, 1, 1.0, mode=mode)
    one = torch.ones(1, 1, 1, 32, dtype=torch.float64)
    q, k = (one.expand(-1, -1, t.length, -1) for t in (where.positions.query, where.positions.key))
    best = logits(rw.CrossRoPE2D(32, 0)(rw.Attention(q, k, k, where.positions, causal=False)))[0, 0].argmax(1) // 6
    going_on = torch.tensor([next(i for i, (s, e) in enumerate(events) if s <= f < e) for f in range(frames)])
    return (best == going_on).double().mean().item()


@pytest.mark.parametrize("longer", [1, 4])
def test_frames_find_long_events_beside_short_ones(longer):
    """What an untrained model can see of times: with tokens in the middle, or counted from the start, it goes astray."""
    events = [(longer * s, longer * e) for s, e in ((0, 10), (10, 11), (11, 16))]
    found = {mode: frames_that_find_their_event(events, 16 * longer, mode) for mode in ("center", "native", "midpoint")}
    assert found["midpoint"] > 0.9  # the first frame of an event is nearer to a short one that has just ended
    assert found["midpoint"] > max(found["center"], found["native"]) + 0.1


def test_a_reference_image_reads_its_own_entity():
    entities = [Entity((Event(0.0, 4.0, 4),), reference_tokens=1) for _ in range(3)]
    where = rw.event_layout(entities, 4, 1, 1.0)
    one = torch.ones(1, 1, 1, 32, dtype=torch.float64)
    q, k = (one.expand(-1, -1, t.length, -1) for t in (where.positions.query, where.positions.key))
    got = logits(rw.CrossRoPE2D(32)(rw.Attention(q, k, k, where.positions, causal=False)))[0, 0, where.video :]
    assert got.unflatten(1, (3, 4)).sum(-1).argmax(1).tolist() == [0, 1, 2]


def test_longer_clips_take_larger_times():
    where = rw.event_layout([Entity((Event(0.0, 40.0, 4),))], 400, 1, 10.0)
    assert where.positions.key.position[0, :, 0].tolist() == [50, 150, 250, 350]


# ---- records and bad input -------------------------------------------------------------------------------------------


def test_records():
    entities = read_entities(
        [
            {
                "name": "man",
                "global_tokens": 2,
                "events": [{"start": 0, "end": 1.5, "tokens": 3}],
                "presence": [[0, 2]],
            },
            {"name": "transition", "events": [[1.0, 1.00001, 2]]},
        ]
    )
    assert entities[0] == Entity((Event(0, 1.5, 3),), 2, ((0.0, 2.0),), 0, "man")
    assert entities[1].events[0].tokens == 2


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"events": [[2.0, 1.0, 3]]}, "ends before it begins: from 2.0 to 1.0"),
        ({"events": [[-1.0, 1.0, 3]]}, "in seconds from 0 on"),
        ({"events": [[0.0, math.inf, 3]]}, "in seconds from 0 on"),
        ({"events": [[0.0, 1.0]]}, "its start, its end and its tokens"),
        ({"events": [{"start": 0.0, "end": 1.0}]}, "its start, its end and its tokens"),
        ({"events": [{"start": 0.0, "end": 1.0, "tokens": 1, "who": 2}]}, "its start, its end and its tokens"),
        ({"events": [[0.0, 1.0, -1]]}, "tokens of an event are a whole number"),
        ({"presence": [[2.0, 1.0]]}, "ends before it begins"),
        ({"global_tokens": 1.5}, "global_tokens are a whole number"),
        ({"event": []}, "got 'event'. Did you mean 'events'?"),
    ],
)
def test_records_that_cannot_be(record, match):
    with pytest.raises(PositionError, match=match.replace("?", r"\?")):
        read_entities([record])


def test_bad_input():
    with pytest.raises(PositionError, match="ends before it begins"):
        interval_times(2, 1, 3)
    with pytest.raises(ConfigError, match="Did you mean 'midpoint'"):
        interval_times(1, 2, 3, "midpoints")
    with pytest.raises(ConfigError, match="frames_per_second is a positive"):
        rw.event_layout(ENTITIES, 4, 1, 0.0)
    with pytest.raises(ConfigError, match="global_time is one of"):
        rw.event_layout(ENTITIES, 4, 1, 1.0, global_time="never")
    with pytest.raises(ConfigError, match="clip_seconds is a positive"):
        rw.event_layout(ENTITIES, 4, 1, 1.0, clip_seconds=-1)
    with pytest.raises(ConfigError, match="entity_offset is a whole"):
        rw.event_layout(ENTITIES, 4, 1, 1.0, entity_offset=-1)
    with pytest.raises(PositionError, match="nothing to read"):
        rw.event_layout([Entity()], 4, 1, 1.0)
    with pytest.raises(PositionError, match="got a dict"):
        rw.event_layout([{"events": []}], 4, 1, 1.0)
    with pytest.raises(PositionError, match="got nothing"):
        rw.event_layout([], 4, 1, 1.0)
    for width in (3, 16, -2):
        with pytest.raises(ConfigError, match="entity_dim is an even number from 0 to 14"):
            rw.CrossRoPE2D(16, width)
    made = rw.CrossRoPE2D(16)
    with pytest.raises(PositionError, match="these positions are plain"):
        made(problem(d=16, causal=False))
    with pytest.raises(PositionError, match="3 times and the entity"):
        scores(rw.event_layout(ENTITIES, 4, 1, 1.0), rw.CrossRoPE2D(16, samples=3))
    with pytest.raises(ShapeError, match="made for head_dim 16"):
        made(problem(d=8, positions=rw.Positions(torch.zeros(1, 7, 2)), causal=False))


def test_keys_of_several_times_are_not_moved():
    made = rw.CrossRoPE2D(16, samples=2)
    cache = rw.KVCache(made)
    p = problem(b=1, d=16, positions=rw.Positions(random(1, 7, 3)))
    cache.extend(p)
    with pytest.raises(CannotEdit, match="mean of rotations"):
        cache.edit(torch.arange(3), rw.Positions(random(1, 3, 3)))


def several_times(batch, seq, generator):
    at = sample_events(batch, seq, generator).query.position
    return rw.Positions(torch.cat([at[..., :1], at[..., :1] + 1.5, at[..., 1:]], -1))


@pytest.mark.parametrize(
    "check", ["backends", "padding", "packing", "decoding", "casts", "compile", "gradients", "errors"]
)
def test_contract_of_several_times(check):
    def made(head_dim):
        return rw.CrossRoPE2D(head_dim, samples=2)

    for why in testing.check_encoding(made, checks=[check], positions=several_times).values():
        pytest.skip(why)
