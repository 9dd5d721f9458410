"""EndPrompt and PoSE: positions that skip (arXiv 2605.14589, 2309.10400)."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from reference import close, golden, random

import ropewalk as rw
from ropewalk.analysis.seen_distances import score_slope_bound, seen_distances
from ropewalk.coordinates.skipped import (
    endprompt_positions,
    endprompt_random_positions,
    endprompt_tokens,
    pose_positions,
)
from ropewalk.lab.tuning.endprompt import collate, endprompt_random_sample, endprompt_sample, with_prompt

CASES = golden("111")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    p, outputs = case.params, case.outputs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sample = endprompt_sample(case.inputs["input_ids"], p["chunk2_length"], p["final_position_id"], p["max_length"])
    assert bool(caught) == (p["chunk2_length"] >= len(sample.input_ids))
    for field in ("input_ids", "labels", "position_ids"):
        assert torch.equal(getattr(sample, field), outputs[field]), field
    seen = seen_distances(sample.position_ids, p["final_position_id"] + 1).seen
    assert torch.equal(seen, outputs["distinct_relative_distances"])


@pytest.mark.parametrize("terminal", range(1, 9))
def test_the_end_of_the_text_as_the_end_of_the_context_changes_nothing(terminal):
    assert torch.equal(endprompt_positions(9, terminal, 8), torch.arange(9))


@pytest.mark.parametrize(("n", "c", "final"), [(10, 3, 63), (10, 7, 30), (5, 1, 4), (12, 6, 12), (64, 18, 511)])
def test_distances_are_those_of_the_closed_form(n, c, final):
    positions = endprompt_positions(n, c, final)
    assert len(positions) == n and bool((positions.diff() > 0).all()) and int(positions[-1]) == final
    seen = set(seen_distances(positions, final + 1).seen.tolist())
    assert seen == set(range(max(n - c, c))) | set(range(final - n + 2, final + 1))


def test_the_random_variant():
    starts = set()
    for seed in range(300):
        positions = endprompt_random_positions(10, 3, 16, seeded(seed))
        assert torch.equal(positions[:7], torch.arange(7)) and bool((positions[7:].diff() == 1).all())
        starts.add(int(positions[7]))
    assert starts == set(range(7, 14))  # both ends of the range
    assert torch.equal(*(endprompt_random_positions(10, 3, 16, seeded(5)) for _ in "ab"))
    assert torch.equal(endprompt_random_positions(6, 3, 100, physical=8), torch.arange(6))
    ids = torch.arange(100, 130)
    sample = endprompt_random_sample(ids, 3, 64, 12, seeded())
    assert sample.input_ids.tolist() == [*range(100, 109), 127, 128, 129] and len(sample.position_ids) == 12
    assert endprompt_tokens(5, 2, 9).tolist() == [0, 1, 2, 3, 4]


def test_pose():
    cuts, skips = set(), set()
    for seed in range(400):
        positions = pose_positions(6, 11, seeded(seed))
        steps = positions.diff()
        assert int(positions[0]) == 0 and int(positions[-1]) <= 10 and int((steps != 1).sum()) <= 1
        skips.add(int(positions[-1]) - 5)
        cuts |= set(((steps != 1).nonzero()[:, 0] + 1).tolist())
    assert skips == set(range(6)) and cuts == set(range(1, 6))
    many = pose_positions(40, 400, seeded(), pieces=5)
    assert bool((many.diff() > 0).all()) and int(many[-1]) < 400 and int((many.diff() > 1).sum()) >= 2
    assert torch.equal(pose_positions(6, 6), torch.arange(6)) and torch.equal(
        pose_positions(6, 9, pieces=1), torch.arange(6)
    )


def test_batches_are_padded_on_the_right():
    samples = [endprompt_sample(with_prompt(range(50, 50 + n), [7, 8], 9), 2, 31, 9) for n in (4, 30)]
    batch = collate(samples, pad=3)
    assert batch["input_ids"].tolist() == [[50, 51, 52, 53, 7, 8, 3, 3, 3], [*range(50, 57), 7, 8]]
    assert batch["labels"][0].tolist() == [50, 51, 52, 53, 7, 8, -100, -100, -100]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 30, 31, 0, 0, 0], [*range(7), 30, 31]]
    assert batch["attention_mask"].tolist() == [[1] * 6 + [0] * 3, [1] * 9]


def test_report_of_distances():
    report = seen_distances(endprompt_positions(10, 3, 63), 64)
    assert report.gaps() == [(7, 54)] and report.share == 16 / 64
    assert int(report.counts.sum()) == 55
    assert abs(float(report.histogram(8).sum()) - 1) < 1e-12
    padded = seen_distances(torch.tensor([[0, 1, 9, 0], [0, 1, 2, 3]]), 16, torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]))
    assert int(padded.counts.sum()) == 6 + 10 and padded.seen.tolist() == [0, 1, 2, 3, 8, 9]
    sees = [
        seen_distances(torch.stack([pose_positions(32, 256, seeded(i)) for i in range(n)]), 256).share for n in (1, 20)
    ]
    assert sees[1] > 2 * sees[0]


@pytest.mark.parametrize("factor", [1, 4, 8])
def test_scores_change_slowly(factor):
    """Bernstein's bound and the finer one hold on a dense grid, and interpolation divides both."""
    spectrum = rw.geometric(16).linear(factor)
    w = spectrum.tensor()
    for seed in range(5):
        amplitude, phase = random(8, seed=seed).abs(), 6 * random(8, seed=seed + 50)
        r = torch.linspace(0, 600, 60_001, dtype=torch.float64)
        angle = r[:, None] * w + phase
        slope = (amplitude * w * angle.sin()).sum(-1).abs().max()
        bound = score_slope_bound(spectrum, amplitude)
        assert slope <= bound + 1e-12 and slope <= w.max() * (amplitude * angle.cos()).sum(-1).abs().max() * 1.05
        close(bound * factor, score_slope_bound(rw.geometric(16), amplitude))
        curve = (amplitude * w.square() * angle.cos()).sum(-1).abs().max()
        assert curve <= w.max() ** 2 * amplitude.sum() + 1e-12


def test_interpolated_scores_are_those_of_shorter_distances():
    q, k = random(1, 1, 2, 8), random(1, 1, 2, 8, seed=1)
    far = rw.RoPE(8, spectrum=rw.geometric(8).linear(4)).rotate(q, k, torch.tensor([0, 60]))
    near = rw.RoPE(8).rotate(q, k, torch.tensor([0, 15]))
    for a, b in itertools.product(range(2), range(2)):
        close(far[0][0, 0, a] @ far[1][0, 0, b], near[0][0, 0, a] @ near[1][0, 0, b])


def test_what_cannot_be():
    with pytest.raises(rw.PositionError, match="cannot be made to end"):
        endprompt_positions(10, 3, 8)
    with pytest.warns(UserWarning, match="nothing to skip"):
        assert torch.equal(endprompt_positions(4, 0, 30), torch.arange(4))
    with pytest.raises(rw.PositionError, match="do not fit"):
        endprompt_random_positions(30, 3, 16)
    with pytest.raises(rw.ConfigError, match="terminal"):
        endprompt_random_positions(10, 10, 16)
    with pytest.raises(rw.PositionError, match="12 tokens"):
        pose_positions(12, 11)
    with pytest.raises(rw.ConfigError, match="pieces"):
        pose_positions(3, 11, pieces=4)
    with pytest.raises(rw.ConfigError, match="rise"):
        seen_distances(torch.tensor([3, 1]), 9)
    with pytest.raises(rw.ConfigError, match="context of 4"):
        seen_distances(torch.tensor([0, 4]), 4)
    with pytest.raises(rw.ShapeError, match="amplitudes"):
        score_slope_bound(rw.geometric(16), torch.ones(7))
    with pytest.raises(rw.ConfigError, match="prompt"):
        with_prompt([1, 2], [], 9)
    with pytest.raises(rw.ConfigError, match="no samples"):
        collate([])


def test_published_recipes_can_be_applied():
    from ropewalk.catalog.expression import parse
    from ropewalk.lab.tuning.published import RECIPES, published

    schedules = {"linear", "dprope", "abf"}
    for name, one in RECIPES.items():
        assert published(name) is one and one.source and one.trains
        method = one.method.format(factor=8, length=512, half_head=8)
        assert method.partition("(")[0] in schedules or parse(method)
    assert published("psc").trains == ("lora", "phase")
    with pytest.raises(rw.UnknownNameError, match="Did you mean 'endprompt'"):
        published("endpromt")
