"""Retrieval heads and statistics of groups of heads (arXiv 2606.21249)."""

import math

import pytest
import torch
from reference import DOUBLE, close, golden, random

from ropewalk.analysis.group_tests import (
    benjamini_hochberg,
    centre_of_mass,
    cohens_d,
    gini,
    jaccard,
    layer_partial_spearman,
    layer_permutation,
    mcnemar,
)
from ropewalk.analysis.retrieval_heads import (
    argmax_hits,
    copy_hits,
    coverage,
    heads_above,
    needle,
    pair_channels,
    rotary_channels,
    row_norms,
    spectral_signature,
    spectral_windows,
    token_span,
)
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import geometric

CASE = golden("058")["d16-k4"]
SPECTRUM = geometric(16)


def scores(q, k):
    angles = torch.arange(q.shape[-2], dtype=torch.float64)[:, None] * SPECTRUM.tensor()
    cos, sin = tables(angles, q.dtype)
    return rotate(q, cos, sin, "half") @ rotate(k, cos, sin, "half").mT / q.shape[-1] ** 0.5


def test_golden():
    out, given = CASE.outputs, CASE.inputs
    low = rotary_channels(SPECTRUM, 4, "low_freq", "half")
    assert low == out["low_dims_half_split"].tolist()
    assert rotary_channels(SPECTRUM, 4, "low_freq", "interleaved") == out["low_dims_interleaved"].tolist()
    q, k = given["q"], given["k"]
    close(scores(q, k), out["logits_full"], DOUBLE)
    q0, k0 = q.clone(), k.clone()
    q0[..., low] = k0[..., low] = 0
    close(scores(q0, k0), out["logits_low_zeroed"], DOUBLE)
    close(scores(q0, k), out["logits_low_zeroed"], DOUBLE)  # queries alone do
    assert cohens_d(given["group_a"], given["group_b"]) == pytest.approx(out["cohens_d"], rel=1e-10)
    assert benjamini_hochberg(given["p_values"].tolist()) == pytest.approx(out["bh_adjusted"].tolist(), rel=1e-9)
    assert mcnemar(7, 1) == out["mcnemar_exact_b7_c1"] == mcnemar(1, 7)
    close(row_norms(given["W_q_two_heads"], 2), out["q_row_l1"], DOUBLE)


# ---- needles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_needle(depth):
    one = needle(200, depth, seed=5)
    assert one == needle(200, depth, seed=5)
    assert one.answer != needle(200, depth, seed=6).answer
    assert one.prompt[one.start : one.stop] == f"The secret passphrase is {one.answer}."
    assert one.prompt.count(one.answer) == 1
    assert one.prompt[slice(*one.source)] == one.answer
    assert len(one.answer) == 5
    assert one.prompt.endswith("The secret passphrase is")
    words = len(one.prompt[: one.start].split())
    assert abs(words / 200 - depth) < 0.1
    with pytest.raises(ConfigError, match="depth"):
        needle(200, -0.1)


def test_token_span():
    offsets = [(0, 0), (0, 3), (3, 7), (7, 9), (9, 12)]
    assert token_span(offsets, 3, 9) == (2, 4)
    assert token_span(offsets, 4, 5) == (2, 3)
    assert token_span(offsets, 20, 30) is None


def test_detectors():
    row = torch.zeros(3, 10)
    row[0, 4], row[1, 9] = 1, 1
    assert argmax_hits(row, (4, 6)).tolist() == [True, False, False]
    assert argmax_hits(row, (0, 1)).tolist() == [False, False, True]  # of equal ones the first
    rows = torch.zeros(2, 2, 10)
    rows[0, 0, 4], rows[0, 1, 5], rows[1, 0, 4], rows[1, 1, 4] = 1, 1, 1, 1
    assert copy_hits(rows, (4, 5)).tolist() == [[True, True], [True, False]]
    with pytest.raises(ShapeError, match="span"):
        argmax_hits(row, (4, 11))
    with pytest.raises(ShapeError, match="tokens of the answer"):
        copy_hits(rows, (4,))


def test_choice_of_heads():
    found = torch.tensor([[0.1, 0.0, 0.5], [0.05, 0.1, 0.9]])
    assert heads_above(found) == [(1, 2), (0, 2), (0, 0), (1, 1)]
    assert coverage(heads_above(found)) == [(1, 2), (0, 2)]
    assert coverage(heads_above(found), 1.0, most=3) == [(1, 2), (0, 2), (0, 0)]
    assert coverage([]) == []


# ---- channels -------------------------------------------------------------------------------------------------------


def test_channels():
    for pairing in ("half", "interleaved"):
        low, high = (rotary_channels(SPECTRUM, 6, b, pairing) for b in ("low_freq", "high_freq"))
        assert not set(low) & set(high)
        assert low == pair_channels([5, 6, 7], 8, pairing)
        assert high == pair_channels([0, 1, 2], 8, pairing)
    assert rotary_channels(SPECTRUM, 6, "low_freq", "half") != rotary_channels(SPECTRUM, 6, "low_freq", "interleaved")
    some = rotary_channels(SPECTRUM, 6, "random", "half", seed=2)
    assert some == sorted(set(some))
    assert len(some) == 6
    assert some == rotary_channels(SPECTRUM, 6, "random", "half", seed=2)
    for bad in (3, -2, 18, True):
        with pytest.raises(ConfigError, match="even number"):
            rotary_channels(SPECTRUM, bad, "low_freq", "half")
    with pytest.raises(ConfigError, match="band"):
        rotary_channels(SPECTRUM, 2, "middle", "half")


def test_windows_slide_from_slow_to_fast():
    found = spectral_windows(geometric(64), "half")
    assert len(found) == 8
    assert all(len(w) == 8 for w in found)
    assert found[0] == pair_channels(range(28, 32), 32, "half")
    assert found[-1] == pair_channels(range(4), 32, "half")
    lost = spectral_signature(1.0, [0.0, 0.5, 1.0, 1.0])
    assert lost.drops == (1.0, 0.5, 0.0, 0.0)
    assert lost.centre == pytest.approx(1 / 3)
    assert spectral_signature(1.0, [1.0] * 4) == ((0.0,) * 4, None, None)


# ---- statistics -----------------------------------------------------------------------------------------------------


def test_mcnemar():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(10, 0) == 2 / 1024
    with pytest.raises(ConfigError):
        mcnemar(-1, 2)


def test_benjamini_hochberg():
    assert benjamini_hochberg([]) == []
    assert benjamini_hochberg([0.9, 0.8]) == [0.9, 0.9]
    assert benjamini_hochberg([0.001, 0.2, 0.05, 0.051]) == pytest.approx([0.004, 0.2, 0.068, 0.068])
    with pytest.raises(ConfigError, match="between 0 and 1"):
        benjamini_hochberg([1.2])


def test_cohens_d():
    assert cohens_d(torch.ones(1), torch.zeros(3)) is None
    assert cohens_d(torch.ones(3), torch.ones(3)) == 0.0
    assert cohens_d(torch.ones(3), torch.zeros(3)) == math.inf
    assert cohens_d(random(4000) + 0.5, random(4000, seed=1)) == pytest.approx(0.5, abs=0.05)


def test_permutation_is_uniform_without_an_effect_and_small_with_one():
    found = []
    for seed in range(60):
        values = random(4, 8, seed=seed) + 3 * random(4, 1, seed=seed + 1000)  # layers differ, groups do not
        chosen = torch.zeros(4, 8, dtype=torch.bool)
        chosen[:, :3] = True
        found.append(layer_permutation(values, chosen, draws=200, seed=seed))
    p = torch.tensor(found)
    assert 0.35 < float(p.mean()) < 0.65
    assert 0.02 < float((p < 0.2).double().mean()) < 0.4
    values[chosen] += 10
    assert layer_permutation(values, chosen, draws=200) == 1 / 201
    assert layer_permutation(values, torch.zeros_like(chosen)) is None


def test_partial_spearman_removes_a_pure_layer_effect():
    layers = torch.arange(6.0)[:, None].expand(6, 10)
    x, y = layers + 0.01 * random(6, 10), layers + 0.01 * random(6, 10, seed=1)
    found = layer_partial_spearman(x, y, draws=100)
    assert abs(found.value) < 0.3
    assert found.low <= found.value <= found.high
    same = layer_partial_spearman(x, 3 * x, draws=50)
    assert same.value == pytest.approx(1)
    assert layer_partial_spearman(layers, layers, draws=5).value == 0.0


def test_summaries():
    assert gini(torch.ones(5)) == pytest.approx(0)
    assert gini(torch.tensor([0.0, 0, 0, 1])) == pytest.approx(0.75)
    assert gini(torch.zeros(3)) == 0.0
    with pytest.raises(ConfigError):
        gini(torch.tensor([-1.0, 1]))
    assert centre_of_mass(torch.tensor([0.0, 1, 1])) == pytest.approx((1.5, 0.5))
    assert centre_of_mass(torch.zeros(3)) is None
    assert jaccard([(0, 1), (0, 2)], [(0, 2)]) == 0.5
    assert jaccard([], []) is None
