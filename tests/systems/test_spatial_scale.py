"""Spatial RoPE scaling in early steps of denoising, and how attention anchors motion (arXiv 2609.23658)."""

from __future__ import annotations

import math
import re

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.analysis import anchoring
from ropewalk.coordinates.denoising import at_progress, early_biased_progress, flow_sigma
from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, ShapeError
from ropewalk.rotary.spatial_scale import (
    ABLATIONS,
    LearnedSpatialRoPEScale,
    SpatialRoPEScale,
    SpatialTemporalReweight,
    rope3d,
    wan_widths,
)

CASES = golden("098")
GRID = (2, 3, 4)
CELLS = rw.grid_positions(*GRID)
EARLY, LATE = rw.at_step(CELLS, 4, 50), rw.at_step(CELLS, 5, 50)


def written(formula, *shape):
    step, offset = re.match(r"sin\(([\d.]+) n(?:\+([\d.]+))?\)", formula).groups()
    n = torch.arange(math.prod(shape), dtype=torch.float64)
    return (float(step) * n + float(offset or 0)).sin().reshape(shape)


@pytest.mark.parametrize("name", ["linear-07", "wrapped-07"])
def test_golden(name):
    case, params = CASES[name], CASES[name].params
    grid, d = params["grid"], params["head_dim"]
    tokens = math.prod(grid)
    q, k, v = (written(case.inputs[x], tokens, width)[None, None] for x, width in (("q", d), ("k", d), ("v", 4)))
    made = SpatialRoPEScale(
        d,
        [params[f"lambda_{a}"] for a in "fhw"],
        widths=[2 * n for n in params["split_pairs"]],
        base=params["base"],
        phase=params["phase"],
    )
    assert list(made.widths) == list(wan_widths(d))
    encoded = made(rw.Attention(q, k, v, rw.at_step(rw.grid_positions(*grid), 0, 50), causal=False))
    want = case.outputs
    close(encoded.q[0, 0, :3], want["q_rot_first3"], DOUBLE)
    close(encoded.q[0, 0, -1], want["q_rot_last"], DOUBLE)
    close(encoded.k[0, 0, -1], want["k_rot_last"], DOUBLE)
    close(logits(encoded)[0, 0, 0], want["logits_row0"], DOUBLE)
    close(logits(encoded)[0, 0, -1], want["logits_last_row"], DOUBLE)
    close(rw.attend(encoded, "dense")[0, 0], want["out"], DOUBLE)


def test_golden_kernels():
    case = CASES["axis-kernel"]
    width, offsets = 2 * case.params["pairs"], torch.arange(16)
    close(anchoring.axis_kernel(width, offsets), case.outputs["kernel_1"], DOUBLE)
    close(anchoring.axis_kernel(width, offsets, 0.7), case.outputs["kernel_07"], DOUBLE)


def regions_of(case):
    return {int(f): [torch.tensor(r) for r in own] for f, own in case.inputs["regions"].items()}


def test_golden_mutual_consistency():
    case = CASES["mutual-consistency"]
    heads, frames, per = (case.params[n] for n in ("heads", "frames", "tokens_per_frame"))
    n = torch.arange(heads * (frames * per) ** 2, dtype=torch.float64)
    weights = (2 * (0.37 * n).sin()).reshape(heads, frames * per, -1).softmax(-1)
    got = anchoring.mutual_consistency(weights, regions_of(case), per)
    named = lambda r: tuple(int(x) for x in r.split(","))  # noqa: E731
    for a, others in case.outputs["mutual_consistency"].items():
        assert got[named(a)] == pytest.approx({named(b): value for b, value in others.items()}, abs=1e-9)
    want = {named(a): value for a, value in case.outputs["region_score"].items()}
    scores = anchoring.region_scores(got)
    assert scores == pytest.approx(want, abs=1e-9)
    assert anchoring.winner_gap(scores, 0) == pytest.approx(scores[0, 1] - scores[0, 0])
    for a in got:
        for b, value in got[a].items():
            assert value == pytest.approx(got[b][a])
            assert 0 <= value <= 1


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def plain(d=16):
    return rw.AxialRoPE(d, 3, widths=wan_widths(d))


def clip(where, d=16, **more):
    return problem(s=math.prod(GRID), d=d, positions=where, causal=False, **more)


@pytest.mark.parametrize("phase", ["linear", "wrapped"])
def test_bit_by_bit_the_original_where_nothing_is_scaled(phase):
    want = attend(plain(), clip(CELLS))
    assert torch.equal(attend(SpatialRoPEScale(16, phase=phase), clip(LATE)), want)
    assert torch.equal(attend(SpatialRoPEScale(16, (1, 1, 1), phase=phase), clip(EARLY)), want)
    assert torch.equal(attend(SpatialRoPEScale(16, window=(0, 0), phase=phase), clip(EARLY)), want)
    differ(attend(SpatialRoPEScale(16, phase=phase), clip(EARLY)), want)
    whole = SpatialRoPEScale(16, window=(0, 1), phase=phase)
    assert torch.equal(attend(whole, clip(LATE)), attend(SpatialRoPEScale(16, phase=phase), clip(EARLY)))


@pytest.mark.parametrize("phase", ["linear", "wrapped"])
@pytest.mark.parametrize("scale", [0.0, 0.5, 0.85])
def test_time_is_left_alone_and_norms_are_kept(phase, scale):
    made = SpatialRoPEScale(16, (1, scale, scale), phase=phase)
    encoded, p = made(clip(EARLY)), clip(EARLY)
    time = wan_widths(16)[0]
    assert torch.equal(encoded.q[..., :time], plain()(clip(CELLS)).q[..., :time])
    close(encoded.k.norm(dim=-1), p.k.norm(dim=-1))


def test_a_scale_of_zero_forgets_the_place():
    p = clip(EARLY)
    k = p.k[:, :, :1].expand_as(p.k)
    rows = logits(SpatialRoPEScale(16, ABLATIONS["only_f"])(p.replace(k=k))).unflatten(-1, GRID)
    close(rows, rows[..., :1, :1].expand_as(rows))
    differ(rows[..., 0, :, :], rows[..., 1, :, :])
    assert torch.equal(torch.tensor(ABLATIONS["no_f"]), torch.tensor(ABLATIONS["only_hw"]))


def test_the_formula_is_interpolation_and_depends_on_distances_alone():
    made = SpatialRoPEScale(16, (1, 0.7, 0.6))
    there = EARLY.map_sides(
        lambda t: t.with_columns(position=t.position.double() * torch.tensor([1, 0.7, 0.6], dtype=torch.float64))
    )
    close(made(clip(EARLY)).q, plain()(clip(rw.Positions(there.query.position))).q)
    moved = EARLY.map_sides(lambda t: t.with_columns(position=t.position + torch.tensor([2, 40, 9])))
    close(logits(made(clip(moved))), logits(made(clip(EARLY))), 1e-11)
    wrapped = SpatialRoPEScale(16, (1, 0.7, 0.6), phase="wrapped")
    differ(logits(wrapped(clip(moved))), logits(wrapped(clip(EARLY))), 1e-2)


def test_wrapped_is_the_formula_until_a_pair_has_turned_half_around():
    near, far = (rw.grid_positions(2, n, n) for n in (4, 5))  # 3 < π < 4
    for where, same in ((near, True), (far, False)):
        n = where.query.length
        p = problem(s=n, d=16, positions=rw.at_step(where, 0, 50), causal=False)
        a, b = (SpatialRoPEScale(16, phase=phase)(p).q for phase in ("linear", "wrapped"))
        assert torch.allclose(a, b, atol=1e-12) == same


def test_steps_count_by_progress():
    for steps, first in ((50, 5), (20, 2), (30, 3), (7, 1)):
        made = SpatialRoPEScale(16)
        inside = [bool(made.active(rw.at_step(CELLS, n, steps).query)) for n in range(steps)]
        assert inside == [n < first for n in range(steps)]


def test_rows_at_other_steps():
    made = SpatialRoPEScale(16)
    p = clip(at_progress(CELLS, torch.tensor([0.05, 0.5])))
    out = attend(made, p)
    close(out[:1], attend(made, clip(EARLY))[:1])
    close(out[1:], attend(plain(), clip(CELLS))[1:])


def test_some_heads_alone():
    made = SpatialRoPEScale(16, scaled_heads=[1], num_kv_heads=2)
    p = clip(EARLY, h=4, kv=2)
    got, scaled, original = (e(p).q for e in (made, SpatialRoPEScale(16), plain()))
    assert torch.equal(got[:, :2], original[:, :2])
    assert torch.equal(got[:, 2:], scaled[:, 2:])


def test_a_cache_goes_from_step_to_step():
    """Keys of the first frame are kept over the steps, and are turned as the present step has it."""
    made = SpatialRoPEScale(16)
    p = clip(EARLY, b=1)
    half = math.prod(GRID) // 2
    for step in (4, 5):
        cache = rw.KVCache(made)
        past = rw.at_step(CELLS, 4, 50).slice(0, half)
        cache.extend(rw.Attention(p.q[:, :, :half], p.k[:, :, :half], p.v[:, :, :half], past, causal=False))
        now = rw.at_step(CELLS, step, 50)
        new = rw.Attention(p.q[:, :, half:], p.k[:, :, half:], p.v[:, :, half:], now.slice(half), causal=False)
        got = rw.attend(cache.extend(new), "dense")
        close(got, attend(made, p.replace(positions=now))[:, :, half:])


def test_tables_of_a_clip():
    cos, sin = rope3d(GRID, head_dim=16)
    p = clip(EARLY)
    assert cos.shape == (24, 8)
    turned = rotation.rotate(p.q, cos, sin, "interleaved")
    assert torch.equal(turned, SpatialRoPEScale(16)(p).q)


def test_weights_of_time_and_space():
    made, p = SpatialTemporalReweight(16, 0.3), clip(EARLY)
    time = wan_widths(16)[0]
    scores = logits(made(p))
    parts = [p.q[..., s] @ p.k[..., s].mT / 4 for s in (slice(None, time), slice(time, None))]
    close(scores, 0.3 * parts[0] + 0.7 * parts[1])
    half = SpatialTemporalReweight(16, pairing="half")
    close(logits(half(p)), logits(p) / 2)


# ---- learned scales --------------------------------------------------------------------------------------------------


def test_learned_scales_begin_as_nothing_and_learn_inside_the_window_only():
    torch.manual_seed(0)
    made = LearnedSpatialRoPEScale(16, num_kv_heads=4)
    assert torch.equal(attend(made, clip(EARLY)), attend(plain(), clip(CELLS)))
    for where, learns in ((EARLY, True), (LATE, False)):
        made.zero_grad()
        attend(made, clip(where)).square().sum().backward()
        assert bool(made.mean.grad.abs().max() > 1e-6) == learns
    assert made.penalty(torch.tensor([0.05])) == 0
    with torch.no_grad():
        made.mean.fill_(math.log(0.7))
    close(attend(made, clip(EARLY)), attend(SpatialRoPEScale(16), clip(EARLY)), 1e-6)
    assert made.penalty(torch.tensor([0.05])).item() == pytest.approx(1e-4 * math.log(0.7) ** 2, rel=1e-4)


# ---- schedules -------------------------------------------------------------------------------------------------------


def test_most_training_samples_are_early():
    drawn = early_biased_progress(20_000, generator=torch.Generator().manual_seed(0))
    assert (drawn < 0.1).double().mean().item() == pytest.approx(0.9, abs=0.01)
    assert drawn[drawn >= 0.1].mean().item() == pytest.approx(0.55, abs=0.02)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert flow_sigma(torch.tensor(0.0)).item() == 1
    assert flow_sigma(torch.tensor(0.5)).item() == pytest.approx(5 / 6)
    with pytest.raises(ConfigError, match="p_early"):
        early_biased_progress(3, 1.5)


# ---- analysis --------------------------------------------------------------------------------------------------------


def test_the_kernel_with_a_scale_is_the_kernel_at_scaled_distances():
    offsets = torch.arange(40).double()
    close(anchoring.axis_kernel(42, offsets, 0.7), anchoring.axis_kernel(42, 0.7 * offsets))
    whole = anchoring.rope_kernel((44, 42, 42), torch.stack([offsets] * 3, -1), (1, 0.7, 0.7))
    parts = [w * anchoring.axis_kernel(w, offsets, s) for w, s in ((44, 1), (42, 0.7), (42, 0.7))]
    close(whole, sum(parts) / 128)


@pytest.mark.parametrize(("scale", "cells"), [(1, 23), (0.85, 26), (0.75, 30), (0.7, None)])
def test_half_decay_of_the_axes_of_wan(scale, cells):
    assert anchoring.half_decay(42, scale, limit=30) == cells


def test_attention_of_equal_contents_is_less_anchored_with_smaller_scales():
    grid = (8, 12, 12)
    where = rw.at_step(rw.grid_positions(*grid), 0, 50)
    ones = torch.ones(1, 1, math.prod(grid), 48, dtype=torch.float64)
    found = []
    for scale in (1, 0.85, 0.7, 0.5):
        made = SpatialRoPEScale(48, (1, scale, scale))
        _, weights = rw.attend(made(rw.Attention(ones, ones, ones, where, causal=False)), return_weights=True)
        found.append(anchoring.anchoring_index(weights[0], grid))
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.1 * found[-1]


def test_where_a_word_is():
    weights = torch.zeros(2, math.prod(GRID), dtype=torch.float64)
    weights[:, 5] = torch.tensor([0.2, 0.4])
    there = anchoring.word_map(weights, GRID)
    assert there[0, 1, 1] == 1
    assert anchoring.map_entropy(there) == 0
    assert anchoring.map_entropy(torch.full(GRID, 1 / 24)) == pytest.approx(1)
    mask = anchoring.tube(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), GRID, 1)
    assert mask[0].long().tolist() == [[0, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0]]
    assert anchoring.support_quality(there, mask) == 1
    assert anchoring.convergence_speed(torch.arange(24.0).reshape(12, 2)).tolist() == [9, 10]
    regions = anchoring.candidate_regions(torch.where(mask, 1.0, 0.1) + there, 0.6)
    assert [r.tolist() for r in regions[0]] == [[5]]
    assert [r.tolist() for r in regions[1]] == [[12, 13, 16]]
    assert anchoring.anchor_distance(regions[1][0], (1 / 3, 1 / 3), GRID) == pytest.approx(0)


def test_attribution_is_exact_for_a_linear_metric():
    writes = random(1, 3, 5, 4).requires_grad_()
    clean, mask = random(5, 4, seed=1), torch.tensor([1, 1, 0, 0, 1.0]).double()
    metric = anchoring.guidance_metric(writes.sum((0, 1)), clean, mask)
    got = anchoring.head_attribution(metric, writes)
    for h in range(3):
        gate = torch.ones(3, 1, 1).double()
        gate[h] = 0
        without = anchoring.guidance_metric((gate * writes.detach()).sum((0, 1)), clean, mask)
        assert (without - metric).item() == pytest.approx(got[h].item())
    heads = anchoring.motion_heads(torch.tensor([0.1, 0.9, 0.8]), torch.tensor([-5.0, -4.0, 1.0]), 0.3)
    assert heads.tolist() == [False, True, False]


def test_uniform_attention_has_the_shares_of_area():
    weights = torch.full((2, 12, 12), 1 / 12, dtype=torch.float64)
    share = anchoring.region_share(weights, torch.tensor([0, 1]), torch.tensor([4, 5, 6]), 4)
    close(share, torch.full((2,), 0.75))


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be():
    for options, message in (
        ({"scales": (1, -0.1, 1)}, "none negative"),
        ({"scales": (0.7, 0.7)}, "one of time"),
        ({"window": (0.5, 0.1)}, "0 ≤ a ≤ b ≤ 1"),
        ({"phase": "wraped"}, "Did you mean 'wrapped'"),
        ({"scaled_heads": [1]}, "give num_kv_heads="),
        ({"scaled_heads": [2], "num_kv_heads": 2}, "of 2 key heads"),
        ({"widths": (8, 4, 2)}, "16"),
    ):
        with pytest.raises(ConfigError, match=message):
            SpatialRoPEScale(16, **options)
    with pytest.raises(ConfigError, match="at least 6"):
        SpatialRoPEScale(4)
    with pytest.raises(NeedsColumn, match="at_step"):
        SpatialRoPEScale(16)(clip(CELLS))
    with pytest.raises(PositionError, match="wants positions"):
        SpatialRoPEScale(16)(clip(rw.at_step(rw.Positions(torch.arange(24)), 0, 2)))
    for step, steps in ((50, 50), (-1, 50), (0, 0), (1.5, 3)):
        with pytest.raises(ConfigError):
            rw.at_step(CELLS, step, steps)
    with pytest.raises(PositionError, match=r"\[0, 1\)"):
        at_progress(CELLS, torch.tensor([1.0]))
    with pytest.raises(PositionError, match="one frame alone"):
        anchoring.mutual_consistency(torch.ones(1, 4, 4), {0: [torch.tensor([0])]}, 2)
    with pytest.raises(ShapeError, match="same grid"):
        anchoring.support_quality(torch.ones(GRID), torch.ones(2, 3, 3))
