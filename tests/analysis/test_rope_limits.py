"""What RoPE scores can tell apart (arXiv 2605.15514)."""

import math

import pytest
import torch
from reference import close, golden, random

from ropewalk.analysis.rope_limits import (
    aligned_inversion,
    amplitudes,
    anchored_token_inversion,
    closest_pair,
    correlation_at,
    crossing_base,
    equal_amplitude_inversion,
    fit_normal,
    normal_fit,
    position_aliases,
    position_inversion,
    position_sensitivity,
    rounded,
    score_curve,
    strongest_place,
    swap_changes,
    sweep,
    token_aliases,
    token_inversion,
    token_order_changes,
)
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import Spectrum, geometric

CASES = golden("075")


@pytest.mark.parametrize("name", ["d128_b10000", "d128_b500000"])
def test_golden(name):
    case = CASES[name]
    c, out = case.params, case.outputs
    spectrum = geometric(c["head_dim"], c["base"])
    close(
        torch.tensor([token_inversion(spectrum, n) for n in c["lengths"]], dtype=torch.float64),
        out["token_inversion"],
        1e-8,
    )
    close(
        torch.tensor([position_sensitivity(spectrum, n) for n in c["lengths"]], dtype=torch.float64),
        out["position_sensitivity"],
        1e-8,
    )
    close(
        torch.tensor([aligned_inversion(spectrum, *p) for p in c["near_far_pairs"]], dtype=torch.float64),
        out["position_inversion"],
        1e-8,
    )
    scores = score_curve(case.inputs["amplitude"], case.inputs["phase"], spectrum, c["alias_length"])
    close(scores, out["alias_scores"], 1e-8)
    found = closest_pair(scores, c["alias_tol"])
    assert [found.first, found.second] == out["alias_closest_pair"].tolist()
    assert found.gap == pytest.approx(float(out["alias_gap"]), abs=1e-7)
    assert found.within == int(out["alias_pairs_within_tol"])


def windows_case():
    n = torch.arange(64, dtype=torch.float64)
    spectrum = geometric(128, 5e5)
    first = score_curve(1 + 0.5 * (0.7 * n).sin(), 0.9 * (1.3 * n + 0.2).sin(), spectrum, 4096)
    second = score_curve(1 + 0.4 * (0.9 * n).cos(), 0.9 * (0.8 * n + 0.5).cos(), spectrum, 4096)
    return spectrum, first, second


def test_golden_windows():
    out = CASES["windows-h64-b5e5"].outputs
    spectrum, first, second = windows_case()
    ones = torch.ones(64, dtype=torch.float64)
    assert float(position_inversion(score_curve(ones, 0 * ones, spectrum, 4096))) == pytest.approx(
        out["position_inversion_equal"], abs=1e-12
    )
    assert equal_amplitude_inversion(4096, 5e5, 64) == pytest.approx(out["position_inversion_closed"], abs=1e-12)
    assert float(position_inversion(first)) == pytest.approx(out["position_inversion_S1"], abs=1e-12)
    assert anchored_token_inversion(spectrum, 4096) == pytest.approx(out["token_inversion_anchored_gauss"], abs=1e-12)
    assert float(token_order_changes(first, second)) == pytest.approx(out["token_inversion_S1S2"], abs=1e-12)
    for f in (7, 10):
        found = position_aliases(first, f)
        assert found.pairs == out[f"position_alias_pairs_f{f}"]
        assert found.places == out[f"position_alias_positions_f{f}"]
        assert token_aliases(first, second, f) == out[f"token_alias_positions_f{f}"]


@pytest.mark.parametrize(
    ("base", "inversion", "sensitivity"),
    [
        (1e4, (0.272, 0.388, 0.462, 0.499), (0.359, 0.660, 0.882, 0.998)),
        (5e5, (0.227, 0.319, 0.376, 0.430), (0.254, 0.466, 0.624, 0.783)),
        (1e7, (0.204, 0.286, 0.336, 0.382), (0.209, 0.381, 0.510, 0.639)),
    ],
)
def test_reference_table(base, inversion, sensitivity):
    spectrum = geometric(128, base)
    lengths = (64, 1024, 8192, 65536)
    assert [round(token_inversion(spectrum, n), 3) for n in lengths] == list(inversion)
    assert [round(position_sensitivity(spectrum, n), 3) for n in lengths] == list(sensitivity)


def test_against_draws():
    spectrum, length = geometric(64, 1e4), 256
    q, k1, k2 = (random(1500, 64, seed=i) for i in range(3))
    one, two = (score_curve(*amplitudes(q, k, "half"), spectrum, length) for k in (k1, k2))
    gap = (one - two).sign()
    pick = torch.randint(length, (2, 1500), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(1500)
    changed = (gap[rows, pick[0]] * gap[rows, pick[1]] < 0).double().mean()
    assert float(changed) == pytest.approx(token_inversion(spectrum, length), abs=0.04)
    assert float(token_order_changes(one, two).mean()) == pytest.approx(
        anchored_token_inversion(spectrum, length), abs=0.02
    )
    share = 1 - (one.mean(-1).square().mean() / one.square().mean())
    assert float(share) == pytest.approx(position_sensitivity(spectrum, length), abs=0.03)


@pytest.mark.parametrize(("planes", "by"), [(64, 0.03), (32, 0.05)])
@pytest.mark.parametrize("base", [1e5, 5e5, 1e7])
def test_closed_form_follows_the_count(planes, by, base):
    spectrum = geometric(2 * planes, base)
    ones = torch.ones(planes, dtype=torch.float64)
    for length in (512, 2048, 8192):
        if length <= base / 50:
            counted = float(position_inversion(score_curve(ones, 0 * ones, spectrum, length)))
            assert counted == pytest.approx(equal_amplitude_inversion(length, base, planes), abs=by)


def test_positions_and_tokens_pull_the_base_in_opposite_directions():
    bases, lengths = (1e4, 5e5, 1e7), (512, 2048, 8192)
    closed = [[equal_amplitude_inversion(m, b, 64) for m in lengths] for b in bases]
    tokens = [[anchored_token_inversion(geometric(128, b), m) for m in lengths] for b in bases]
    for table, rises in ((closed, True), (tokens, False)):
        assert all(sorted(row) == row for row in table)  # with the length
        assert all(sorted(col, reverse=not rises) == list(col) for col in zip(*table, strict=True))


def test_corner_cases():
    spectrum = geometric(128)
    assert token_inversion(spectrum, 1) == 0.0
    assert position_sensitivity(geometric(128, 5e5), 1) == pytest.approx(0.004, abs=0.0005)
    still = Spectrum((0.0,) * 4)
    assert token_inversion(still, 100) == position_sensitivity(still, 100) == 0.0
    assert aligned_inversion(still, 1, 10) == 0.5
    fast = Spectrum((2.0,))
    assert token_inversion(fast, 20000) == pytest.approx(0.5, abs=0.01)
    assert float(correlation_at(spectrum, torch.zeros(1))) == 1.0


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_curve_is_the_score_at_each_distance(pairing):
    spectrum = geometric(16)
    q, k = random(16), random(16, seed=1)
    curve = score_curve(*amplitudes(q, k, pairing), spectrum, 20)
    for m in (0, 1, 7, 19):
        a, b = (tables(torch.tensor(p) * spectrum.tensor(), torch.float64) for p in (30.0, 30.0 - m))
        assert float(curve[m]) == pytest.approx(float(rotate(q, *a, pairing) @ rotate(k, *b, pairing)), abs=1e-10)
    close(score_curve(*amplitudes(3 * q, k, pairing), spectrum, 20), 3 * curve)
    assert float(strongest_place(curve)) == int(curve.argmax())


def test_additive_decay_inverts_nothing():
    decay = -0.1 * torch.arange(100.0, dtype=torch.float64)
    assert float(position_inversion(decay)) == 0.0
    assert float(token_order_changes(decay + 1.0, decay)) == 0.0
    assert float(position_inversion(torch.zeros(10))) == 0.0  # ties are none


def test_rounding():
    x = torch.tensor([1.0, 1.00390625, 1.01171875, -300.7, 1e-30], dtype=torch.float64)
    close(rounded(x, 7), x.bfloat16().double())
    assert torch.equal(rounded(x, 52), x)
    curve = windows_case()[1]
    counts = [position_aliases(curve, f).pairs for f in (5, 7, 10, 14)]
    assert counts == sorted(counts, reverse=True)
    _, first, second = windows_case()
    assert token_aliases(first, second, 23) <= 1
    with pytest.raises(ConfigError):
        rounded(x, 60)


def test_swapped_keys_on_an_aliased_pair_change_nothing():
    spectrum = Spectrum((2 * math.pi / 12,))  # distances 12 apart are alike
    q, keys = random(2), random(2, 2, seed=1)
    assert swap_changes(q, keys, spectrum, "half", (3, 15)) < 1e-12
    assert swap_changes(q, keys, spectrum, "half", (3, 9)) > 0.01


def test_normal_fit():
    fit = fit_normal(random(20000))
    assert abs(fit.mean) < 0.02
    assert fit.variance == pytest.approx(1, abs=0.03)
    assert fit.distance < 0.01
    assert fit_normal(torch.ones(5)).variance == 0
    real = normal_fit(random(128), random(128, seed=1), geometric(128), 4096, "half")
    assert real.distance < 0.1
    assert real.bound >= 0
    assert fit_normal(random(5000).exp()).distance > 0.1


def test_sweep_and_crossing():
    rows = sweep({"rope": geometric(64), "yarn": geometric(64).yarn(factor=4, original=512)}, (64, 512))
    assert [(r.name, r.length) for r in rows] == [("rope", 64), ("rope", 512), ("yarn", 64), ("yarn", 512)]
    assert all(0 <= r.token_inversion <= 0.6 and 0 <= r.position_sensitivity <= 1 for r in rows)
    base = crossing_base(lambda b: geometric(64, b), 1024)
    assert base is None or equal_amplitude_inversion(1024, base, 32) == pytest.approx(
        anchored_token_inversion(geometric(64, base), 1024), abs=1e-6
    )
    small = crossing_base(lambda b: geometric(8, b), 1024)
    assert small is not None
    assert equal_amplitude_inversion(1024, small, 4) == pytest.approx(
        anchored_token_inversion(geometric(8, small), 1024), abs=1e-6
    )


def test_bad_input():
    with pytest.raises(ShapeError):
        score_curve(torch.ones(3), torch.ones(3), geometric(8), 5)
    with pytest.raises(ShapeError):
        closest_pair(torch.ones(1))
    with pytest.raises(ConfigError):
        equal_amplitude_inversion(1, 1e4, 8)
