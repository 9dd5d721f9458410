"""Spectra of W_q W_kᵀ beside random matrices (arXiv 2507.09394)."""

import pytest
import torch
from reference import DOUBLE, close, golden, random

from ropewalk.analysis.random_matrix import (
    SpectrumTracker,
    mp_diagnostics,
    mp_distance,
    mp_edges,
    product_diagnostics,
    product_edges,
    qk_interaction,
)
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.frequencies import geometric

CASES = golden("035")


def agree(found, want):
    close(found.eigenvalues, torch.as_tensor(want["eigenvalues"], dtype=torch.float64), DOUBLE)
    assert found.low == pytest.approx(want["edge_minus"], rel=1e-9, abs=1e-15)
    assert found.high == pytest.approx(want["edge_plus"], rel=1e-9)
    assert found.variance == pytest.approx(want["sigma2"], rel=1e-9)
    assert found.outliers == want["n_outliers"]
    for ours, theirs in (
        (found.gap, "mp_gap"),
        (found.outlier_energy, "outlier_energy"),
        (found.soft_rank, "mp_soft_rank"),
        (found.stable_rank, "stable_rank"),
        (found.entropy_rank, "entropy_rank"),
    ):
        assert ours == pytest.approx(want[theirs], rel=1e-7, abs=1e-9)


def test_golden():
    case = CASES["mha"]
    w_q, w_k, out = case.inputs["W_q"], case.inputs["W_k"], case.outputs
    agree(mp_diagnostics(w_q), out["W_q"])
    agree(mp_diagnostics(qk_interaction(w_q, w_k)), out["layer"])
    width = case.params["head_dim"]
    for h, want in enumerate(out["heads"]):
        part = slice(h * width, (h + 1) * width)
        agree(mp_diagnostics(qk_interaction(w_q[:, part], w_k[:, part])), want)


@pytest.mark.parametrize("name", ["product-null-48x6", "product-null-spike-48x6"])
def test_golden_product(name):
    case = CASES[name]
    out, c = case.outputs, case.params
    n = torch.arange(c["d_model"] * c["head_dim"], dtype=torch.float64)
    w_q = (0.05 * (1.7 * n**1.3).sin() + c.get("shift_q", 0.0)).view(c["d_model"], -1)
    w_k = (0.04 * (2.3 * n**1.2 + 0.4).cos() + c.get("shift_k", 0.0)).view(c["d_model"], -1)
    found = product_diagnostics(w_q, w_k)
    close(found.eigenvalues, out["eigenvalues"], DOUBLE)
    assert found.variance == pytest.approx(out["scale"], rel=1e-9)
    assert found.outliers == out["outliers"]
    assert found.soft_rank == pytest.approx(out["soft_rank"], rel=1e-9)
    assert found.stable_rank == pytest.approx(out["stable_rank"], rel=1e-9)
    if "relative_gap" in out:
        assert found.relative_gap == pytest.approx(out["relative_gap"], rel=1e-9)
        assert found.outlier_energy == pytest.approx(out["outlier_energy"], rel=1e-9)


def test_golden_edges():
    case = CASES["product-null-edges"]
    found = torch.tensor([product_edges(float(c)) for c in case.params["c"]], dtype=torch.float64)
    close(found[:, 0], case.outputs["low"], 1e-12)
    close(found[:, 1], case.outputs["high"], 1e-12)
    assert product_edges(2)[1] == pytest.approx(11.09, abs=0.01)


def test_noise_and_a_spike():
    noise = random(300, 600)
    found = mp_diagnostics(noise)
    assert found.outliers <= 1
    assert found.soft_rank == pytest.approx(1, abs=0.03)
    u, v = (torch.nn.functional.normalize(random(n, seed=n), dim=0) for n in (300, 600))
    spike = mp_diagnostics(noise + 3 * 600**0.5 * u[:, None] * v)
    assert spike.outliers == 1
    assert spike.soft_rank < 0.5
    hidden = mp_diagnostics(noise + 0.5 * 600**0.5 * u[:, None] * v)  # t² = 0.25 < σ²√γ = 0.71
    assert hidden.outliers <= 1
    assert hidden.relative_gap < 0.05


def test_scale_and_transposition_change_nothing():
    a = random(20, 35)
    one = mp_diagnostics(a)
    for other in (mp_diagnostics(1e-3 * a), mp_diagnostics(a.mT)):
        assert other.outliers == one.outliers
        assert other.soft_rank == pytest.approx(one.soft_rank)
        assert other.outlier_energy == pytest.approx(one.outlier_energy)


def test_variance_fitted_without_the_spike():
    u, v = random(60, 1), random(1, 120, seed=1)
    a = random(60, 120, seed=2) + u @ v
    plain, fit = mp_diagnostics(a), mp_diagnostics(a, "fit")
    assert fit.variance < plain.variance
    assert fit.variance == pytest.approx(1, abs=0.1)
    assert fit.outliers >= 1


def test_distance_to_the_law():
    noise = mp_diagnostics(random(300, 600))
    assert mp_distance(noise, 0.5) < 0.02
    assert mp_distance(mp_diagnostics(random(200, 200)), 1.0) < 0.03
    product = mp_diagnostics(random(200, 20) @ random(20, 400, seed=1))
    assert mp_distance(product, 0.5) > 0.3


@pytest.mark.parametrize(("d", "width"), [(512, 64), (512, 128), (512, 512), (768, 64)])
def test_products_of_random_factors_have_no_outliers_beside_their_own_law(d, width):
    w_q, w_k = random(d, width), random(d, width, seed=1)
    found = product_diagnostics(w_q, w_k)
    assert found.outliers == 0
    assert found.soft_rank == pytest.approx(1, abs=0.1)
    if d == 512 and width == 64:
        assert mp_diagnostics(w_q @ w_k.mT).outliers > 40  # and many beside the wrong one


def test_wide_layers_and_rank():
    found = product_diagnostics(random(64, 128), random(64, 128, seed=1))
    assert len(found.eigenvalues) == 64
    assert found.outliers <= 1
    assert found.high == pytest.approx(product_edges(2)[1])
    thin = product_diagnostics(random(64, 8) @ random(8, 16, seed=1), random(64, 16, seed=2))  # W_DQ W_UQ
    assert int((thin.eigenvalues > 1e-10 * thin.eigenvalues[0]).sum()) == 8


def test_interaction_at_a_distance():
    w_q, w_k = random(12, 8), random(12, 8, seed=1)
    spectrum = geometric(8)
    close(qk_interaction(w_q, w_k, spectrum=spectrum), w_q @ w_k.mT)
    far = qk_interaction(w_q, w_k, spectrum=spectrum, distance=50)
    assert not torch.allclose(far, w_q @ w_k.mT, rtol=0.1)
    assert float(far.norm()) > 0
    assert torch.linalg.matrix_rank(far) == 8


def test_tracker():
    weights = [random(32, 8), random(32, 8, seed=1)]
    tracker = SpectrumTracker(lambda: [tuple(weights), tuple(weights)], every=5)
    for step in range(11):
        tracker(step)
        weights[0] = weights[0] + 0.2
    assert tracker.steps == [0, 5, 10]
    found = tracker.map("outlier_energy")
    assert found.shape == (2, 3)
    assert float(found[0, 2]) > float(found[0, 0])
    with pytest.raises(ConfigError, match="nothing was tracked"):
        SpectrumTracker(lambda: []).map("outliers")
    with pytest.raises(ConfigError, match="every"):
        SpectrumTracker(lambda: [], every=0)


def test_bad_matrices():
    for bad in (torch.zeros(3, 3), torch.full((3, 3), torch.nan)):
        with pytest.raises(ValueError, match="NaN or infinity, or zeros"):
            mp_diagnostics(bad)
    with pytest.raises(ShapeError, match="repeat key heads"):
        product_diagnostics(random(4, 2), random(4, 3))
    with pytest.raises(ConfigError):
        mp_edges(1.5)
