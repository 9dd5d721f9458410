"""Matrix entropy of keys, and sinks (arXiv 2511.09146)."""

import math

import pytest
import torch
from reference import DOUBLE, close, golden, random

from ropewalk.analysis.matrix_entropy import (
    band_matrix_entropy,
    choose_heads,
    concentration,
    cone_bounds,
    constant_key_eigenvalues,
    gram_spectrum,
    sink_mass,
    truncated_effective_rank,
)
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import geometric

CASE = golden("036")["h3"]


def turned(x, spectrum, pairing="interleaved"):
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * spectrum.tensor()
    return rotate(x, *tables(angles, x.dtype), pairing)


def test_golden():
    k = turned(CASE.inputs["k"], geometric(8))
    close(k, CASE.outputs["k_rot"], DOUBLE)
    close(band_matrix_entropy(k, "interleaved"), CASE.outputs["band_entropy"], DOUBLE)
    close(band_matrix_entropy(k, "interleaved").mean(-1), CASE.outputs["head_entropy_mean"], DOUBLE)
    for r in (1, 2, 4, 8):
        close(truncated_effective_rank(k, r), CASE.outputs[f"trunc_eff_rank_{r}"], DOUBLE)
    assert torch.equal(truncated_effective_rank(k, 64), truncated_effective_rank(k))
    assert choose_heads(truncated_effective_rank(k, 4)[None], 1) == [(0, CASE.outputs["selected_head"])]


def test_rank_one_and_isotropic_keys():
    one = random(20, 1) * random(1, 8, seed=1)
    assert float(truncated_effective_rank(one)) == pytest.approx(1)
    assert float(truncated_effective_rank(torch.eye(8).double())) == pytest.approx(8)
    assert float(truncated_effective_rank(torch.eye(8).double(), 4)) == pytest.approx(4)
    assert float(truncated_effective_rank(torch.zeros(5, 4))) == pytest.approx(1)  # no keys to speak of


def test_invariance_and_bounds():
    k = random(3, 30, 8)
    basis = torch.linalg.qr(random(8, 8, seed=1)).Q
    whole = truncated_effective_rank(k)
    close(truncated_effective_rank(7 * k), whole)
    close(truncated_effective_rank(k @ basis), whole, 1e-10)
    for r in (1, 2, 5, 8):
        rank = truncated_effective_rank(k, r)
        assert bool((rank >= 1 - 1e-12).all())
        assert bool((rank <= r + 1e-12).all())
    assert bool((band_matrix_entropy(k, "half") <= math.log(2)).all())


@pytest.mark.parametrize("n", [7, 64, 1000])
@pytest.mark.parametrize("theta", [1.0, 0.1, 1e-4])
def test_constant_key(n, theta):
    angle = torch.arange(n, dtype=torch.float64) * theta
    k = torch.stack([angle.cos(), angle.sin()], -1)
    large, small = constant_key_eigenvalues(theta, n)
    close(gram_spectrum(k), torch.tensor([large, small], dtype=torch.float64), 1e-9)
    entropy = float(band_matrix_entropy(k, "half"))
    if n * theta > 60:
        assert entropy == pytest.approx(math.log(2), abs=1e-3)
    if n * theta < 1e-2:
        assert entropy < 1e-3


def test_one_eigenvalue_ranks_by_the_largest():
    k = random(4, 30, 8)
    assert torch.equal(concentration(k, 1), -gram_spectrum(k)[:, 0])
    assert torch.equal(concentration(k, 3), truncated_effective_rank(k, 3))


def test_choice_of_heads():
    scores = torch.tensor([[2.0, 1.0, 1.0], [1.0, 3.0, 3.0]])
    assert choose_heads(scores, 3) == [(0, 1), (0, 2), (1, 0)]
    assert choose_heads(scores, 2, "descending") == [(1, 1), (1, 2)]
    assert choose_heads(scores, 0) == []
    with pytest.raises(ConfigError, match="0 to 6"):
        choose_heads(scores, 7)
    with pytest.raises(ConfigError, match="NaN"):
        choose_heads(scores * torch.nan, 1)
    with pytest.raises(ConfigError, match="ascending"):
        choose_heads(scores, 1, "up")


def test_sink_mass():
    weights = torch.zeros(2, 4, 4)
    weights[0, :, 0] = 1  # all to the first
    weights[1] = torch.eye(4)
    assert sink_mass(weights).tolist() == [1.0, 0.0]  # the first query sees nothing else and does not count
    assert sink_mass(weights[:, 2:]).tolist() == [1.0, 0.0]
    with pytest.raises(ShapeError, match="fewer sinks"):
        sink_mass(weights, 4)


@pytest.mark.parametrize("width", [0.0, 0.1, 0.4])
def test_cone_bounds_hold(width):
    angle = width * (2 * torch.rand(2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1)
    size = 1 + 0.3 * random(2, 40, seed=1).abs()
    q, k = ((size[..., None]) * torch.stack([(angle + a).cos(), (angle + a).sin()], -1) for a in (0.0, 0.2))
    found = cone_bounds(q, k, 64)
    assert bool((found.eigenvalue >= found.eigenvalue_bound * (1 - 1e-12)).all())
    assert bool((found.singular_value >= found.singular_value_bound * (1 - 1e-12)).all())
    assert bool((found.singular_value_bound > 0).all())
    assert bool((found.largest_logit >= found.singular_value / 40 * (1 - 1e-12)).all())


def test_bad_input():
    with pytest.raises(ConfigError, match="NaN"):
        gram_spectrum(torch.full((4, 4), torch.nan))
    with pytest.raises(ConfigError, match="at least 1"):
        truncated_effective_rank(random(4, 4), 0)
