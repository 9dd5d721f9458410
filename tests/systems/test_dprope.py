"""DPRoPE (arXiv 2410.01490)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import SINGLE, close, golden

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import angle_histogram, disturbance, dprope, dprope_report, geometric

CASES = golden("057")
LLAMA = geometric(128)


def taken(case):
    c = case.params
    original = c["origin_max_position"]
    return geometric(c["head_dim"], c["rope_theta"]), original, int(original * c["scaling_factor"]), c["intervals"]


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    spectrum, original, length, bins = taken(CASES[name])
    out = CASES[name].outputs
    report = dprope_report(spectrum, original, length, bins=bins)
    close(torch.tensor([p.kept for p in report.planes], dtype=torch.float64), out["paper_D_extrap"], 1e-9)
    close(torch.tensor([p.changed for p in report.planes], dtype=torch.float64), out["paper_D_interp"], 1e-9)
    made = dprope(spectrum, original, length, bins=bins)
    changed = [a != b for a, b in zip(made.inv_freq, spectrum.inv_freq, strict=True)]
    assert changed == out["paper_interp_mask_t0"].tolist()


@pytest.mark.parametrize("name", list(CASES))
def test_golden_of_the_released_code(name):
    spectrum, original, length, bins = taken(CASES[name])
    out = CASES[name].outputs
    report = dprope_report(spectrum, original, length, bins=bins, rule="code")
    close(torch.tensor([p.kept for p in report.planes]), out["code_similarity_extrap"], SINGLE)
    close(torch.tensor([p.changed for p in report.planes]), out["code_similarity_interp"], SINGLE)
    made = dprope(spectrum, original, length, bins=bins, rule="code")
    torch.testing.assert_close(made.tensor(), out["code_inv_freq"], rtol=1e-6, atol=0)
    torch.testing.assert_close(spectrum.tensor() / made.tensor(), out["code_scaling_factors"])


def test_golden_histograms():
    spectrum, original, _, bins = taken(CASES["small-d16-L64-s4"])
    got = torch.stack([angle_histogram(w, original, bins) for w in spectrum.inv_freq])
    assert torch.equal(got, CASES["small-d16-L64-s4"].outputs["hist_orig_counts"])
    assert got.sum(-1).tolist() == [original] * 8


def test_every_plane_takes_one_of_two():
    made = dprope(LLAMA, 512, 1300)  # any ratio
    for w, v in zip(LLAMA.inv_freq, made.inv_freq, strict=True):
        assert v in (w, w / (1300 / 512))
    assert dprope(LLAMA, 512, 512).inv_freq == LLAMA.inv_freq


def test_disturbance():
    counts = torch.tensor([3, 0, 5])
    assert disturbance(counts, counts) == pytest.approx(0, abs=1e-12)
    assert disturbance(counts, torch.tensor([1, 1, 6])) > 0
    assert disturbance(torch.tensor([1, 1, 6]), counts) > 1  # mass where there was none
    assert all(p.kept > -1e-9 and p.changed > -1e-9 for p in dprope_report(LLAMA, 256, 512).planes)


def test_slow_planes_by_the_reach_of_their_bins():
    spectrum, original, length, bins = geometric(64, 1e6), 256, 512, 360
    made = dprope(spectrum, original, length, bins=bins)
    seen = set()
    for w, v in zip(spectrum.inv_freq, made.inv_freq, strict=True):
        if length * w >= 2 * math.pi:
            continue
        new, old, half = (
            math.floor(a * bins / (2 * math.pi)) for a in ((length - 1) * w, (original - 1) * w, (length - 1) * w / 2)
        )
        if new > old == half:
            assert v == w / 2
            seen.add("interpolated")
        elif new == 0:
            assert v == w  # a tie, and ties are left alone
            seen.add("tie")
    assert seen == {"interpolated", "tie"}


@pytest.mark.parametrize(
    ("length", "kept", "changed", "best", "planes"), [(8192, 2.73, 0.335, 0.055, 46), (16_384, 3.74, 0.367, 0.226, 42)]
)
def test_llama2(length, kept, changed, best, planes):
    report = dprope_report(LLAMA, 4096, length)
    assert report.kept == pytest.approx(kept, abs=0.005)
    assert report.changed == pytest.approx(changed, abs=0.001)
    assert report.best == pytest.approx(best, abs=0.001)
    assert report.best <= min(report.kept, report.changed)
    paper, code = (dprope(LLAMA, 4096, length, rule=rule).inv_freq for rule in ("paper", "code"))
    assert paper == code
    assert sum(a != b for a, b in zip(paper, LLAMA.inv_freq, strict=True)) == planes


def test_threshold_and_number():
    spectrum = geometric(32)
    counts = [
        sum(a != b for a, b in zip(dprope(spectrum, 128, 256, threshold=t).inv_freq, spectrum.inv_freq, strict=True))
        for t in (-math.inf, -1, 0, 0.01, 1, 5, math.inf)
    ]
    assert counts[0] == 16
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)
    for n in range(17):
        made = dprope(spectrum, 128, 256, interpolated=n)
        assert sum(a != b for a, b in zip(made.inv_freq, spectrum.inv_freq, strict=True)) == n
    assert dprope(LLAMA, 1024, 2048, interpolated=40) == dprope(LLAMA, 1024, 2048, interpolated=40)


def test_ties_by_number_go_to_the_slower_plane():
    slow = geometric(16, 1e30)  # all but the fastest stay in the first bin
    made = dprope(slow, 32, 64, interpolated=2)
    gains = [p.kept - p.changed for p in dprope_report(slow, 32, 64).planes]
    assert gains[2:] == [gains[2]] * 6
    changed = [i for i, (a, b) in enumerate(zip(made.inv_freq, slow.inv_freq, strict=True)) if a != b]
    assert changed == ([0, 7] if gains[0] > gains[7] else [6, 7])


def test_other_candidates_are_measured_alike():
    yarn = LLAMA.yarn(2.0, 1024)
    report = dprope_report(LLAMA, 1024, 2048, candidate=yarn)
    assert tuple(p.candidate for p in report.planes) == yarn.inv_freq
    made = dprope(LLAMA, 1024, 2048, candidate=yarn)
    assert all(v in (w, y) for v, w, y in zip(made.inv_freq, LLAMA.inv_freq, yarn.inv_freq, strict=True))
    assert str(report).count("\n") == 64


def test_angles_of_planes_that_stand_still_or_turn_fully():
    assert angle_histogram(0.0, 50, 10).tolist() == [50] + [0] * 9
    assert angle_histogram(2 * math.pi, 50, 10).sum() == 50  # rounding never leaves the bins
    assert angle_histogram(-1e-17, 50, 10).sum() == 50


@pytest.mark.parametrize(
    "call",
    [
        lambda: dprope(LLAMA, 128, 256, threshold=0.0, interpolated=3),
        lambda: dprope(LLAMA, 128, 256, rule="code", interpolated=3),
        lambda: dprope(LLAMA, 128, 256, rule="code", threshold=1.0),
        lambda: dprope(LLAMA, 128, 256, interpolated=65),
        lambda: dprope(LLAMA, 128, 256, interpolated=-1),
        lambda: dprope(LLAMA, 128, 256, threshold=math.nan),
        lambda: dprope(LLAMA, 128, 64),
        lambda: dprope(LLAMA, 128, 256, bins=0),
        lambda: dprope(LLAMA, 128, 256, rule="other"),
        lambda: dprope(LLAMA, 128, 256, candidate=geometric(32)),
        lambda: angle_histogram(math.nan, 10),
    ],
)
def test_what_cannot_be(call):
    with pytest.raises(ConfigError):
        call()
