"""Bounds of the base from phase modulation (arXiv 2602.10959)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import golden

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import (
    Spectrum,
    distinct_phase_codes,
    geometric,
    oscillator_report,
    p_rope,
    phase_budget,
    rope_base_bounds,
    suggest_base,
)
from ropewalk.frequencies.feasibility import (
    aliasing_bound,
    angle_error,
    depth_bound,
    drift_bound,
    longest_context,
    precision_bound,
    precision_wall,
    smallest_gap,
)

CASES = golden("009")
LAWS = ["product", "linear", "sqrt"]


@pytest.mark.parametrize("name", ["llama1", "llama2", "mistral-v0.1"])
def test_golden_bounds(name):
    c, out = CASES[name].params, CASES[name].outputs
    for suffix, limit in (("", False), ("_limit", True)):
        made = rope_base_bounds(c["L"], c["head_dim"], c["layers"], tau=c["tau"], limit=limit)
        assert made.aliasing == pytest.approx(out[f"aliasing{suffix}"], rel=1e-9)
        assert made.drift == pytest.approx(out[f"dc{suffix}"], rel=1e-9)
        assert made.depth == pytest.approx(out[f"depth{suffix}"], rel=1e-9)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("budget-")])
def test_golden_budget(name):
    c, out = CASES[name].params, CASES[name].outputs
    made = phase_budget(geometric(c["head_dim"], c["base"]), c["L"], c["layers"])
    for ours, theirs in (
        ("slowest", "w_min"),
        ("phase", "phase"),
        ("turns", "turns"),
        ("coherence", "coherence"),
        ("depth_coherence", "depth_coherence"),
        ("ulps", "ulps_per_token_fp32"),
    ):
        assert getattr(made, ours) == pytest.approx(out[theirs], rel=1e-9, abs=1e-12)
    assert made.aliased is not out["aliasing_ok"]


def test_golden_distinct_codes():
    c, out = CASES["distinct-codes"].params, CASES["distinct-codes"].outputs
    for base, counts in out.items():
        w = geometric(c["head_dim"], float(base)).inv_freq[c["pair"]]
        got = [distinct_phase_codes(w, c["L"], dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
        assert got == counts.tolist()


def test_codes_do_not_fall_steadily():
    counts = [distinct_phase_codes(geometric(128, b).inv_freq[-1], 4096, torch.float16) for b in (1e6, 1e7, 1e8)]
    assert counts == [2907, 3004, 917]
    assert distinct_phase_codes(geometric(128, 1e7).inv_freq[-1], 4096, torch.float32) == 4096


def test_bounds_of_longer_contexts():
    for length, wanted in (
        (4096, (723, 4460, 23_108)),
        (32_768, (5974, 36_879, 191_067)),
        (131_072, (24_428, 150_797, 781_270)),
    ):
        made = rope_base_bounds(length, 128, 32)
        assert [round(b) for b in (made.aliasing, made.drift, made.depth)] == list(wanted)


@pytest.mark.parametrize("law", LAWS)
def test_depth_one_is_drift_and_bounds_rise(law):
    assert depth_bound(4096, layers=1, depth_law=law) == pytest.approx(drift_bound(4096), rel=1e-12)
    depths = [depth_bound(4096, layers=n, depth_law=law) for n in (1, 2, 8, 32)]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]
    assert depth_bound(8192, layers=8, depth_law=law) > depths[2]
    assert depth_bound(4096, layers=8, depth_law=law, tau=0.3) < depths[2]


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.9])
def test_drift_is_stricter_than_aliasing(tau):
    assert drift_bound(4096, tau=tau) > aliasing_bound(4096)
    assert aliasing_bound(4096, nyquist=True) > aliasing_bound(4096)


@pytest.mark.parametrize("tau", [0.3, 0.5, 0.9])
def test_sqrt_law_is_near_the_product(tau):
    got = [depth_bound(4096, layers=32, tau=tau, depth_law=law, limit=True) for law in ("product", "sqrt")]
    assert got[1] == pytest.approx(got[0], rel=0.25)
    rough = 4096 * math.sqrt(32 / (2 * math.log(1 / tau)))
    assert got[0] == pytest.approx(rough, rel=0.05)


def test_bounds_are_equalities():
    length, dim, layers, tau = 5000, 64, 12, 0.4

    def slowest(base):
        return geometric(dim, base).inv_freq[-1]

    assert length * slowest(aliasing_bound(length, dim)) == pytest.approx(2 * math.pi, rel=1e-10)
    assert length * slowest(aliasing_bound(length, dim, nyquist=True)) == pytest.approx(math.pi, rel=1e-10)
    assert math.cos(length * slowest(drift_bound(length, dim, tau=tau))) == pytest.approx(tau, rel=1e-10)
    phase = {law: length * slowest(depth_bound(length, dim, layers=layers, tau=tau, depth_law=law)) for law in LAWS}
    assert math.cos(phase["product"]) ** layers == pytest.approx(tau, rel=1e-10)
    assert layers * phase["linear"] == pytest.approx(math.acos(tau), rel=1e-10)
    assert math.sqrt(layers) * phase["sqrt"] == pytest.approx(math.acos(tau), rel=1e-10)
    assert slowest(precision_bound(torch.float32, dim)) == pytest.approx(2**-23, rel=1e-10)


def test_precision():
    assert precision_bound(dim=128) == pytest.approx(1.08e7, rel=0.01)
    assert precision_bound(dim=64) == pytest.approx(1.40e7, rel=0.01)
    for dtype, wall in ((torch.float32, 8_388_608), (torch.float16, 1024), (torch.bfloat16, 128)):
        assert precision_bound(dtype, limit=True) == pytest.approx(wall, rel=1e-9)
    assert precision_wall(80) == pytest.approx(1.1e6, rel=0.03)


def test_zone():
    widths = [b[1] / b[0] for b in (rope_base_bounds(n, 128, 32).zone for n in (4096, 65_536, 524_288))]
    assert widths == sorted(widths, reverse=True)
    assert rope_base_bounds(4096, 128, 64).zone[0] > rope_base_bounds(4096, 128, 32).zone[0]
    assert rope_base_bounds(4096, 128, 32).feasible
    assert 5e5 in rope_base_bounds(4096, 128, 32)
    assert 1e4 not in rope_base_bounds(4096, 128, 32)
    assert 1e8 not in rope_base_bounds(4096, 128, 32)
    made = rope_base_bounds(1 << 21, 128, 64)
    assert not made.feasible
    assert 1e7 not in made
    base = suggest_base(8192, 128, 32)
    assert base in rope_base_bounds(8192, 128, 32)
    with pytest.raises(ConfigError, match="no base is feasible"):
        suggest_base(1 << 21, 128, 64)


def test_longest_context():
    spectrum = geometric(128, depth_bound(4096, layers=12))
    assert longest_context(spectrum, 12) == pytest.approx(4096, rel=1e-10)
    assert longest_context(Spectrum((0.0, 0.0))) == math.inf


def test_budget_of_any_schedule():
    ladder = geometric(128)
    for made in (ladder.linear(4.0), ladder.yarn(8.0, 4096), Spectrum(tuple(reversed(ladder.inv_freq)))):
        assert phase_budget(made, 4096).phase == 4096 * min(made.inv_freq)
    assert phase_budget(ladder.linear(4.0), 4 * 4096).phase == pytest.approx(
        phase_budget(ladder, 4096).phase, rel=1e-12
    )
    part = p_rope(ladder, 0.5)
    assert phase_budget(part, 4096).slowest == ladder.inv_freq[31]  # planes at rest are left out
    still = phase_budget(Spectrum((0.0,)), 4096, 32)
    assert (still.phase, still.coherence, still.aliased) == (0, 1, False)


@pytest.mark.parametrize(
    ("base", "length", "phase", "coherence", "depth", "ulps"),
    [
        (1e4, 4096, 0.473, 0.890, 0.024, 969),
        (5e5, 8192, 0.020, 0.9998, 0.994, 20.6),
        (5e5, 131_072, 0.322, 0.949, 0.185, 20.6),
        (1e4, 32_768, 3.78, -0.80, 0.0, 969),
        (1e6, 32_768, 0.041, 0.9992, 0.974, 10.4),
    ],
)
def test_public_models(base, length, phase, coherence, depth, ulps):
    made = phase_budget(geometric(128, base), length, 32)
    assert made.phase == pytest.approx(phase, abs=0.005)
    assert made.coherence == pytest.approx(coherence, abs=0.005)
    assert made.depth_coherence == pytest.approx(depth, abs=0.0005)
    assert made.ulps == pytest.approx(ulps, rel=0.005)
    assert not made.aliased


def test_a_million_tokens():
    assert phase_budget(geometric(128, 1e7), 1 << 20, 32).phase < 0.5
    assert phase_budget(geometric(128, 5e5), 1 << 20, 32).phase > 2.5


def test_report():
    spectrum = p_rope(geometric(16), 0.75)
    made = oscillator_report(spectrum, 100)
    assert [o.kind for o in made] == ["aliased"] * 3 + ["sub-cycle"] * 3 + ["still"] * 2
    for o in made:
        assert o.turns == 100 * o.frequency / (2 * math.pi)
        assert o.coherence == math.cos(100 * o.frequency)
        if o.kind == "still":
            assert o.opposed is None
        else:
            assert math.cos(o.opposed * o.frequency) < 0
            assert all(math.cos(m * o.frequency) >= 0 for m in range(o.opposed))
    assert made[0].opposed == 2  # the first whole number above π/2
    assert oscillator_report(Spectrum((2 * math.pi,)), 10)[0].opposed is None


def test_low_precision():
    assert smallest_gap(0.5, 100, torch.float32) == 1
    slow = geometric(128, 1e8).inv_freq[-1]
    gaps = [smallest_gap(slow, 100_000, dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    assert 1 <= gaps[0] < gaps[1] < gaps[2]
    assert smallest_gap(0.0, 10, torch.float32) == 10
    error = angle_error(geometric(128).inv_freq[1], torch.tensor([10, 10_000_000]))
    assert error[0] < 1e-6
    assert 1e-3 < error[1] < 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: aliasing_bound(4096, 2),
        lambda: aliasing_bound(4096, 7),
        lambda: aliasing_bound(-1),
        lambda: drift_bound(4096, tau=1.0),
        lambda: drift_bound(4096, tau=math.nan),
        lambda: depth_bound(4096, layers=0),
        lambda: depth_bound(4096, layers=2, tau=0.0),
        lambda: depth_bound(4096, layers=2, depth_law="cubic"),
        lambda: phase_budget(geometric(8), 0),
    ],
)
def test_what_cannot_be(call):
    with pytest.raises(ConfigError):
        call()
