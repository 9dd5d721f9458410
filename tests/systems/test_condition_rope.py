"""Condition-aware 3-D RoPE and what goes with it (arXiv 2603.12257)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.coordinates.conditions import EMPTY, TRAJECTORY, ConditionIds, condition_blocks, pooled_boxes
from ropewalk.core.errors import CannotCache, ConfigError, NotCausal, PositionError, ShapeError
from ropewalk.embedding.conditions import BoxInjection, ConditionEmbedding
from ropewalk.rotary.video_axes import video_widths

CASES = golden("060")


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p = case.params
    sizes = p["video_thw"], p["n_ref"], p["max_ref"]
    where = rw.condition_coords(*sizes, p["t_ref"], p["t_invalid"], p["trajectory_tokens"])
    assert torch.equal(where.query.position[0], case.outputs["coords_thw"])
    assert list(video_widths(p["head_dim"])) == p["axis_dims"]
    made = rw.ConditionRoPE(p["head_dim"], p["t_ref"], p["t_invalid"], base=p["theta"])
    q = case.inputs["q"].reshape(1, -1, *case.inputs["q"].shape[-2:])
    for positions in (where, rw.layout(condition_blocks(*sizes, p["trajectory_tokens"]))):
        turned = made(rw.Attention(q, q, q, positions, causal=False))
        close(turned.q, case.outputs["q_rot"].reshape(q.shape), DOUBLE)
        close(turned.k, turned.q)


# ---- properties of the sheet: coordinates ----------------------------------------------------------------------------


def test_without_conditions_it_is_plain():
    p = problem(b=1, s=12, d=16, causal=False)
    a = attend(rw.ConditionRoPE(16, 40, 60), p.replace(positions=rw.condition_coords((2, 2, 3), 0, 0, 40, 60)))
    plain = rw.AxialRoPE(16, 3, widths=video_widths(16))
    close(a, attend(plain, p.replace(positions=rw.grid_positions(2, 2, 3))))


def test_where_conditions_are():
    tokens = rw.condition_coords((2, 1, 3), 2, 4, -5, 2.5, with_traj=True).query
    at, kind, number = tokens.position[0], tokens.column("condition")[0], tokens.column("reference")[0]
    assert kind.tolist() == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    assert number.tolist() == [0] * 6 + [1] * 3 + [2] * 3 + [0] * 12
    assert torch.equal(at[kind == 3], at[kind == 0])  # trajectories turn as the video does
    for which, time in ((1, -5), (2, 2.5)):
        assert at[kind == which].tolist() == [[time, 0, x] for x in range(3)] * 2


def test_references_differ_in_nothing_but_what_is_added():
    where = rw.layout(condition_blocks((1, 1, 2), 2, 2))
    made = rw.ConditionRoPE(16, 40, 60)
    p = problem(b=1, s=6, d=16, positions=where, causal=False)
    order = torch.tensor([0, 1, 4, 5, 2, 3])
    here = logits(made(p))
    swapped = logits(made(p.replace(q=p.q[:, :, order], k=p.k[:, :, order])))
    close(swapped, here[..., order, :][..., order])


def test_empty_slots_that_nobody_sees_do_not_count():
    made = rw.ConditionRoPE(16, 40, 60)
    p = problem(b=1, s=6 * 5, d=16, causal=False)

    def out(max_ref, mask):
        where = rw.condition_coords((2, 1, 3), 1, max_ref, 40, 60, mask_empty=mask)
        n = where.query.length
        few = rw.Attention(p.q[:, :, :n], p.k[:, :, :n], p.v[:, :, :n], where, causal=False)
        return attend(made, few)[:, :, :9]

    close(out(3, True), out(1, True))
    close(out(7, True), out(1, True))
    differ(out(3, False), out(1, False))


def test_a_shift_of_time_changes_nothing():
    where = rw.condition_coords((2, 1, 3), 1, 2, 40, 60, with_traj=True)
    made = rw.ConditionRoPE(16, 40, 60)
    p = problem(b=1, s=18, d=16, positions=where, causal=False)
    moved = rw.Positions(where.query.position + torch.tensor([7, 0, 0]))
    close(logits(made(p.replace(positions=moved))), logits(made(p)), 1e-11)


def test_without_special_times():
    where = rw.condition_coords((2, 1, 1), 1, 3, 40, 60, special=False)
    assert where.query.position[0, :, 0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(PositionError, match="no coordinates"):
        rw.condition_coords((2, 1, 1), 1, 3, 40, 60, True, special=False)
    documents = rw.packed_layout([[condition_blocks((2, 1, 1), 1, 2), condition_blocks((1, 1, 1), 1, 1)]])
    assert ConditionIds(4, 5, special=False).coordinates(documents.query)[0, :, 0].tolist() == [0, 1, 2, 3, 0, 1]


# ---- properties of the sheet: what is added --------------------------------------------------------------------------


def embedding(**sizes):
    torch.manual_seed(0)
    return ConditionEmbedding(4, **sizes).double()


@pytest.mark.parametrize(("frames", "groups"), [(1, 1), (5, 2), (9, 3), (7, 3)])
def test_pooling_of_boxes(frames, groups):
    masks = (random(2, frames, 6, 8) > 0).double()
    got = pooled_boxes(masks, 3, 4)
    assert got.shape == (2, groups, 3, 4)
    small = masks[..., ::2, ::2]
    close(got[:, 0], small[:, 0])
    for g in range(1, groups):
        close(got[:, g], small[:, 4 * g - 3 : 4 * g + 1].mean(1))
    nearest = torch.nn.functional.interpolate(masks[:, 0, None], (4, 5), mode="nearest")[:, 0]
    close(pooled_boxes(masks, 4, 5)[:, 0], nearest)


def test_references_and_boxes():
    made = embedding()
    refs = random(2, 3, 4, 2, 2)
    added = made.references(refs) - refs
    close(added[1, 2, :, 1, 0], made.object + made.group[3])
    boxes, masks = random(2, 4, 3, 2, 2), random(2, 2, 3, 2, 2).abs()
    added = made.boxes(boxes, masks) - boxes
    want = made.control + masks[1, 0, 2, 1, 1] * made.group[1] + masks[1, 1, 2, 1, 1] * made.group[2]
    close(added[1, :, 2, 1, 1], want)


def test_map_of_trajectories():
    made = embedding()
    points = torch.zeros(4, 5, 2)
    points[0] = torch.tensor([9.5, 17.0])  # row 1, column 2
    points[1] = torch.tensor([9.0, 18.9])  # the same cell
    points[2, 4] = torch.tensor([16.0, 0.0])  # below the picture
    points[3, 0] = torch.tensor([0.0, math.nan])
    visible = torch.ones(4, 5, dtype=torch.bool)
    visible[2, :4] = visible[3] = False
    visible[1, 4] = False
    masks = torch.zeros(2, 5, 16, 24)
    masks[1, 0, 9, 17] = 1  # the start of track 0 is in subject 1
    got = made.trajectories(points, visible, (16, 24), masks=masks)
    assert got.shape == (4, 2, 2, 3)
    code = made.track_codes(4)
    close(code[1], torch.tensor([math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)], dtype=torch.float64))
    first = code[0] + made.group[2] + made.control
    close(got[:, 0, 1, 2], first + code[1] + made.control)
    close(got[:, 1, 1, 2], first)
    assert (got != 0).any(0).sum() == 2
    shuffled = made.trajectories(points, visible, (16, 24), generator=torch.Generator().manual_seed(3))
    order = torch.randperm(4, generator=torch.Generator().manual_seed(3))
    close(shuffled[:, 1, 1, 2], code[order[0]] + made.control)
    assert made.trajectories(points[:, :3], visible[:, :3], (15, 17)).shape == (4, 2, 2, 3)


def test_the_map_learns():
    made = embedding()
    visible = torch.ones(1, 1, dtype=torch.bool)
    made.trajectories(torch.zeros(1, 1, 2), visible, (8, 8), masks=torch.ones(1, 1, 8, 8)).sum().backward()
    assert made.control.grad.tolist() == [1] * 4
    assert made.group.grad[1].tolist() == [1] * 4
    assert made.group.grad[0].tolist() == [0] * 4


def test_injection_starts_as_nothing_and_learns():
    torch.manual_seed(0)
    made = BoxInjection(4, 6, 2).double()
    video, boxes = random(2, 4, 3, 2, 4), random(2, 4, 3, 2, 4, seed=1)
    assert torch.equal(made.latents(video, boxes), video)
    patches = made.patches(boxes)
    assert patches.shape == (2, 6, 16)
    close(patches[1, 3], boxes[1, :, 1, :, 2:].flatten())  # frame 1, second patch
    hidden = random(2, 10, 6)
    assert torch.equal(made(hidden, patches, 1, start=3), hidden)
    (made.latents(video, boxes).square().sum() + made(hidden, patches, 1, start=3).square().sum()).backward()
    assert made.of_latents.weight.grad.abs().max() > 0
    assert made.of_layers[1].weight.grad.abs().max() > 0
    assert made.of_layers[0].weight.grad is None
    with torch.no_grad():
        made.of_layers[0].bias.fill_(1.0)
    added = made(hidden, patches, 0, start=3) - hidden
    assert added.sum((0, 2)).round().tolist() == [0] * 3 + [12] * 6 + [0]


# ---- bad input -------------------------------------------------------------------------------------------------------

VIDEO = rw.Video(2, 2, 3)


@pytest.mark.parametrize(
    ("blocks", "match"),
    [
        ([rw.Image(2, 3, reference=1)], "one Video and at most one"),
        ([VIDEO, VIDEO], "one Video and at most one"),
        ([VIDEO, *[rw.Video(2, 2, 3, modality=TRAJECTORY)] * 2], "one Video and at most one"),
        ([VIDEO, rw.Image(2, 3)], "a slot without one"),
        ([VIDEO, rw.Image(2, 3, reference=1, modality=EMPTY)], "a slot without one"),
        ([VIDEO, rw.Image(3, 3, reference=1)], "other rows than the video"),
        ([VIDEO, rw.Image(2, 2, modality=EMPTY)], "other columns than the video"),
        ([VIDEO, rw.Video(1, 2, 3, modality=TRAJECTORY)], "other frames than the video"),
        ([rw.Video(41, 1, 1)], "t_ref=40 is the time of a frame"),
        ([rw.Video(61, 1, 1)], "is the time of a frame"),
        ([VIDEO, rw.Text(1)], "text by cross-attention"),
    ],
)
def test_samples_that_cannot_be(blocks, match):
    where = rw.layout(blocks)
    p = problem(b=1, h=1, s=where.query.length, d=16, positions=where, causal=False)
    with pytest.raises(PositionError, match=match):
        rw.ConditionRoPE(16, 40, 60)(p)


def test_bad_input_of_coordinates():
    with pytest.raises(ConfigError, match="at different times"):
        rw.ConditionRoPE(16, 40, 40)
    with pytest.raises(ConfigError, match="t_ref is a number"):
        rw.ConditionRoPE(16, math.nan, 40)
    with pytest.raises(PositionError, match="3 references and 2 slots"):
        rw.condition_coords((1, 1, 1), 3, 2, 40, 60)
    with pytest.raises(ConfigError, match="n_ref is a whole number"):
        rw.condition_coords((1, 1, 1), -1, 2, 40, 60)
    with pytest.raises(PositionError, match="three sizes"):
        rw.condition_coords((1, 1), 1, 2, 40, 60)
    with pytest.raises(PositionError, match="frames, height, width"):
        pooled_boxes(torch.ones(3, 3), 2, 2)
    made = rw.ConditionRoPE(16, 40, 60)
    with pytest.raises(NotCausal, match="causal=False"):
        made(problem(b=1, s=12, d=16, positions=rw.layout([VIDEO])))
    with pytest.raises(CannotCache, match="each step of denoising"):
        rw.KVCache(made)


def test_bad_input_of_what_is_added():
    with pytest.raises(ConfigError, match="channels is even"):
        ConditionEmbedding(3)
    with pytest.raises(ConfigError, match="base is a number above 1"):
        ConditionEmbedding(4, base=1)
    made = embedding(subjects=3)
    with pytest.raises(PositionError, match="from 0 to 1, and 2 is among"):
        made.references(random(3, 4, 1, 1))
    with pytest.raises(ShapeError, match=r"\(batch, 4, F, h, w\)"):
        made.boxes(random(1, 3, 1, 2, 2), random(1, 1, 1, 2, 2))
    with pytest.raises(ShapeError, match="pool them"):
        made.boxes(random(1, 4, 2, 2, 2), random(1, 1, 5, 2, 2))
    points, visible = torch.zeros(2, 5, 2), torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(ShapeError, match="row and column"):
        made.trajectories(points, visible[:, :4], (8, 8))
    with pytest.raises(PositionError, match="True or False"):
        made.trajectories(points, visible.float(), (8, 8))
    with pytest.raises(PositionError, match="NaN or infinite"):
        made.trajectories(points / 0, visible, (8, 8))
    with pytest.raises(ShapeError, match="frames of the tracks"):
        made.trajectories(points, visible, (8, 8), masks=torch.ones(1, 5, 8, 9))
    injection = BoxInjection(4, 6, 1)
    with pytest.raises(ShapeError, match="not cut into patches"):
        injection.patches(torch.zeros(1, 4, 1, 3, 2))
    with pytest.raises(ShapeError, match="latents of one shape"):
        injection.latents(torch.zeros(1, 4, 1, 2, 2), torch.zeros(1, 4, 2, 2, 2))
    with pytest.raises(ShapeError, match="there are 3 tokens"):
        injection(torch.zeros(1, 3, 6), torch.zeros(1, 4, 16), 0)
    with pytest.raises(ConfigError, match="counted from 0 to 0"):
        injection(torch.zeros(1, 4, 6), torch.zeros(1, 4, 16), 1)
    with pytest.raises(ConfigError, match="three sizes"):
        BoxInjection(4, 6, 1, (2, 2))
