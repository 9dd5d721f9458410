"""Unused fast planes (arXiv 2502.11276)."""

import math

import pytest
import torch
from reference import DOUBLE, close, golden, random, triangle

from ropewalk.analysis.dimension_inefficiency import (
    HeadInputs,
    ablate_pairs,
    learn_query_mask,
    mask_objective,
    mean_cosine,
    pair_magnitudes,
    pair_mask,
    planes_by_frequency,
    query_sizes,
    retrieval_score,
    toy_retrieval,
)
from ropewalk.analysis.positional_heads import plane_scores
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import Spectrum, geometric

CASE = golden("033")["a"]


def head(pairing="half"):
    given = CASE.inputs
    made = [tables(given[f"pos_{n}"].double()[:, None] * geometric(8).tensor(), torch.float64) for n in "qk"]
    return HeadInputs(given["q"], given["K"], given["V"], None, *made, pairing=pairing)


def turned(one):
    return one._replace(
        q=rotate(one.q, *one.query, one.pairing), k=rotate(one.k, *one.key, one.pairing), query=None, key=None
    )


def test_golden():
    out, u, alpha = CASE.outputs, CASE.inputs["u"], CASE.params["alpha"]
    before, after = head(), turned(head())
    for one, name in ((before, "before"), (after, "after")):
        close(one.attend(), out["attn"], DOUBLE)
        close(one.attend(u), out[f"attn_mask_{name}_rope"], DOUBLE)
        assert float(mask_objective(one, u, alpha)) == pytest.approx(out[f"objective_{name}_rope"], rel=1e-8)
    assert float(mask_objective(before, u)) == float(mask_objective(before, u, 1 / 8))
    close(query_sizes(CASE.inputs["q"]), out["q_row_l1_like"], DOUBLE)


def test_all_and_nothing():
    one = head()
    assert float(mask_objective(one, torch.ones(8).double(), 0.125)) == pytest.approx(1.0)
    close(one.attend(torch.zeros(8).double()), one.v.mean(0).expand(3, 8))


def test_gradient():
    one = head()
    u = CASE.inputs["u"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda u: mask_objective(one, u, 0.125), (u,))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_masks_of_whole_pairs_commute_with_the_rotation(pairing):
    one = head(pairing)
    mask = pair_mask(4, [1, 2], pairing).double()
    close(turned(one).attend(mask), one.attend(mask))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_ablation_takes_off_the_planes_terms(pairing):
    q, k = random(3, 5, 8), random(3, 5, 8, seed=1)
    lost = plane_scores(q, k, pairing)[..., [0, 3]].sum(-1)
    close((q * k).sum(-1) / 8**0.5 - (ablate_pairs(q, [0, 3], pairing) * k).sum(-1) / 8**0.5, lost)


def test_planes_are_sorted_by_frequency():
    spectrum = Spectrum((0.1, 1.0, 0.0, 0.5))
    assert planes_by_frequency(spectrum, "first", 2) == [1, 3]
    assert planes_by_frequency(spectrum, "last", 2) == [0, 2]
    assert planes_by_frequency(spectrum, "first", 0) == []
    with pytest.raises(ConfigError, match="0 to 4"):
        planes_by_frequency(spectrum, "first", 5)
    with pytest.raises(ConfigError, match="planes \\[4\\]"):
        pair_mask(4, [4], "half")


def test_learned_mask_keeps_what_is_used():
    # Logits hang on plane 1 alone; the other channels of q are noise that meets zeros in k.
    q, k, v = random(20, 8), torch.zeros(30, 8, dtype=torch.float64), 3 * random(30, 4, seed=2)
    k[:, [1, 5]] = 4 * random(30, 2, seed=1)
    one = HeadInputs(q, k, v)
    u = learn_query_mask(one, steps=200)
    assert float(u[[1, 5]].min()) > 0.5
    assert float(u[[0, 2, 3, 4, 6, 7]].max()) < 0.1
    pairs = learn_query_mask(one, by_pair=True, steps=200)
    assert torch.equal(pairs[:4], pairs[4:])
    assert int(pairs[:4].argmax()) == 1
    assert float(mask_objective(one, u)) < float(mask_objective(one, torch.ones(8).double()))


def test_retrieval_score():
    weights = torch.zeros(2, 5, 5)
    weights[0, :, 2] = 1  # context
    weights[1, :, 0] = 1  # the first token, which is no context
    context = torch.tensor([False, True, True, False, False])
    asks = torch.tensor([False, False, False, True, True])
    assert retrieval_score(weights, context, asks).tolist() == [1.0, 0.0]
    uniform = torch.ones(1, 5, 5).masked_fill(~triangle(5), 0).softmax(-1)
    assert 0 < float(retrieval_score(uniform, context, asks)) < 1
    with pytest.raises(ConfigError, match="no token asks"):
        retrieval_score(weights, context, ~(asks | ~asks))
    with pytest.raises(ShapeError):
        retrieval_score(weights, context[:3], asks)


@pytest.mark.parametrize(("frequency", "length"), [(1.0, 100), (0.01, 700), (0.3, 1), (0.0, 5)])
def test_mean_cosine(frequency, length):
    want = sum(math.cos(m * frequency) for m in range(length)) / length
    assert mean_cosine(frequency, length) == pytest.approx(want, abs=1e-12)


def test_whole_turns_leave_nothing():
    assert mean_cosine(2 * math.pi / 50, 200) == pytest.approx(0, abs=1e-12)


def test_magnitudes():
    q = torch.tensor([[3.0, 0, 4, 0], [0, 1, 0, 0]])
    assert pair_magnitudes(q, 0 * q, "half").tolist() == [2.5, 0.5]


def test_toy_in_short():
    found = toy_retrieval(True, items=20, shown=6, head_dim=16, max_position=512, steps=200, lr=1e-2)
    assert found.magnitudes.shape == (8,)
    assert found.loss < 2.9  # ln 20 is 3.0
    again = toy_retrieval(True, items=20, shown=6, head_dim=16, max_position=512, steps=200, lr=1e-2)
    assert torch.equal(again.q, found.q)
    with pytest.raises(ConfigError, match="show fewer"):
        toy_retrieval(True, items=5, shown=6)


@pytest.mark.slow
def test_toy_as_published():
    """Half a minute: with RoPE fast planes stay small and are not missed, without it all are alike."""
    rope, nope = toy_retrieval(True), toy_retrieval(False)
    assert rope.slow_to_fast > 3
    assert 0.7 < nope.slow_to_fast < 1.4
    assert rope.without_fast - rope.loss < 0.1
    assert rope.without_slow - rope.loss > 1
    assert nope.without_fast - nope.loss < 0.1
    assert nope.without_slow - nope.loss < 0.1
