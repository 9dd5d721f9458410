"""Untwisting RoPE: gains of frequencies on reference keys in shared attention (arXiv 2602.05013)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, SINGLE, attend, close, differ, golden, logits, random

import ropewalk as rw
from ropewalk.analysis.shared_attention import (
    aligned_mass,
    band_similarity,
    isolate_band,
    reference_mass,
    semantic_mass,
)
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, ShapeError
from ropewalk.rotary.untwisting import (
    ReferenceGain,
    UntwistingRoPE,
    adain,
    channel_gain,
    frequency_gain,
    gain_schedule,
    shared_attention,
)

CASES = golden("047")
WHERE = rw.shared_grid_positions((2, 3), [(2, 3)], num_text=2)
Q, K = WHERE.query.length, WHERE.key.length


@pytest.mark.parametrize("name", ["one-axis", "flux-like-3-axes"])
def test_golden_gains(name):
    params = CASES[name].params
    gain = frequency_gain(params["axes_dims"], params["s_hf"], params["s_lf"], params["beta"])
    close(channel_gain(gain, params["head_dim"]), CASES[name].outputs["scale_vector"], SINGLE)


def test_golden_shared_attention():
    case = CASES["shared-attention"]
    params, inputs = case.params, case.inputs
    d, n = params["head_dim"], params["n_target"]
    gain = channel_gain(frequency_gain([d], params["s_hf"], params["s_lf"], params["beta"]), d)
    close(gain, case.outputs["scale_vector"], DOUBLE)
    rope = rw.RoPE(d, params["base"])
    q, k = rope.rotate(inputs["q"], inputs["k_target"])
    _, k_r = rope.rotate(inputs["q"], inputs["k_ref"])
    out = shared_attention(q, k, inputs["v_target"], k_r, inputs["v_ref"], gain)
    close(out, case.outputs["out"], DOUBLE)
    # the same as an encoding of one problem
    index = torch.arange(n)
    keys = rw.Positions(
        torch.cat([index, index])[None, :, None], columns={"reference": (torch.arange(2 * n) >= n)[None].long()}
    )
    joined = rw.Attention(
        inputs["q"],
        torch.cat([inputs["k_target"], inputs["k_ref"]], 2),
        torch.cat([inputs["v_target"], inputs["v_ref"]], 2),
        rw.Positions(q=rw.Positions(index[None, :, None]), k=keys),
        causal=False,
    )
    made = UntwistingRoPE(d, 1, params["s_hf"], params["s_lf"], params["beta"])
    close(logits(made(joined)), case.outputs["logits"], DOUBLE)
    close(attend(made, joined), case.outputs["out"], DOUBLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def shared(d=12, h=2, **more):
    return rw.Attention(
        random(1, h, Q, d), random(1, h, K, d, seed=1), random(1, h, K, d, seed=2), WHERE, False, **more
    )


WIDTHS = (4, 4, 4)


def fixed(high, low, **more):
    return UntwistingRoPE(12, 3, high, low, widths=WIDTHS, **more)


def test_positions():
    assert WHERE.key.column("reference")[0].tolist() == [0] * 8 + [1] * 6
    assert torch.equal(WHERE.query.position[0], WHERE.key.position[0, :8])
    assert torch.equal(WHERE.key.position[0, 8:], WHERE.key.position[0, 2:8])
    beside = rw.shared_grid_positions((2, 3), [(2, 3), (1, 2)], shifted=True, index_axis=False)
    assert beside.key.position[0, :, 1].tolist() == [0, 1, 2] * 2 + [3, 4, 5] * 2 + [6, 7]


def test_gains_of_one_are_plain_shared_attention_bit_by_bit():
    plain = rw.AxialRoPE(12, 3, widths=WIDTHS)(shared())
    got = fixed(1.0, 1.0)(shared())
    assert torch.equal(got.q, plain.q)
    assert torch.equal(got.k, plain.k)


def test_only_reference_keys_change():
    plain = rw.AxialRoPE(12, 3, widths=WIDTHS)(shared())
    got = fixed(0.3, 1.2)(shared())
    assert torch.equal(got.k[:, :, :8], plain.k[:, :, :8])
    assert torch.equal(got.q, plain.q)
    assert got.v is shared().v or torch.equal(got.v, plain.v)
    differ(got.k[:, :, 8:], plain.k[:, :, 8:])
    gain = channel_gain(frequency_gain(WIDTHS, 0.3, 1.2), 12)
    by_query = rw.Attention(plain.q * gain, plain.k, plain.v, causal=False)
    close(logits(got)[..., 8:], logits(by_query)[..., 8:])
    close(logits(got)[..., :8], logits(plain)[..., :8])


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_before_or_after_the_rotation(pairing):
    rope, gain = rw.AxialRoPE(12, 3, widths=WIDTHS, pairing=pairing), ReferenceGain(WIDTHS, 0.3, 1.2, pairing=pairing)
    close(rw.Sequential(gain, rope)(shared()).k, rw.Sequential(rope, gain)(shared()).k)


def test_a_gain_of_zero_is_not_no_reference():
    p = shared()
    zero = fixed(0.0, 0.0)(p)
    assert (logits(zero)[..., 8:] == 0).all()
    out, weights = rw.attend(zero, "dense", return_weights=True)
    assert (weights[..., 8:] > 0).all()
    alone = rw.AxialRoPE(12, 3, widths=WIDTHS)(
        rw.Attention(p.q, p.k[:, :, :8], p.v[:, :, :8], rw.Positions(WHERE.query), causal=False)
    )
    differ(out, rw.attend(alone, "dense"))


def test_the_curve():
    gain = frequency_gain([16], 0.3, 1.7)
    assert (gain.diff() > 0).all()
    assert gain[0] == 0.3
    assert gain[-1] == 1.7
    close(frequency_gain([16], 0.3, 1.7, 1.0), torch.linspace(0.3, 1.7, 8, dtype=torch.float64))
    assert (frequency_gain([16], 0.3, 1.7, 50.0)[:-1] < 0.31).all()
    assert frequency_gain([2], 0.3, 1.7).tolist() == [0.3]
    axes = frequency_gain((4, 6), 0.3, 1.7, first_axis="low").tolist()
    assert axes[:2] == [1.7, 1.7]
    assert axes[2] == 0.3
    assert frequency_gain((4, 6), 0.3, 1.7, first_axis="constant", constant=0.9)[:2].tolist() == [0.9, 0.9]
    assert channel_gain(torch.tensor([2.0, 3.0]), 5, "half").tolist() == [2, 3, 2, 3, 1]


def test_gradients_reach_the_ends():
    high, low = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.3, 1.2))
    p = shared()
    gain = channel_gain(frequency_gain(WIDTHS, high, low), 12)
    shared_attention(p.q, p.k[:, :, :8], p.v[:, :, :8], p.k[:, :, 8:], p.v[:, :, 8:], gain).square().sum().backward()
    assert high.grad.abs() > 0
    assert low.grad.abs() > 0


def test_the_schedule():
    made = fixed((0.25, 0.75), (1.0, 1.4))
    for step, steps, want in ((0, 10, (0.25, 1.0)), (9, 10, (0.75, 1.4)), (0, 1, (0.25, 1.0)), (1, 3, (0.5, 1.2))):
        (own,) = list(made)[1].gains(rw.at_step(WHERE, step, steps).key)
        assert own[0].item() == pytest.approx(want[0])
        assert own[1].item() == pytest.approx(want[1])
    high, low = gain_schedule(torch.tensor([0.0, 1.0]), torch.tensor([0.1, 0.2]), torch.tensor([1.0, 3.0]))
    assert high.tolist() == pytest.approx([0.1, 0.2])
    assert low.tolist() == pytest.approx([1.0, 3.0])


def test_a_cache_of_the_reference_goes_from_step_to_step():
    """Reference keys are stored without gains, and each step puts its own on them."""
    where = rw.Positions(WHERE.key)
    p = rw.Attention(*(random(1, 2, K, 12, seed=s) for s in range(3)), where, causal=False)
    made = UntwistingRoPE(12, 3, widths=WIDTHS)
    for step in (1, 4):
        cache = rw.KVCache(made)
        first = rw.at_step(where, 0, 5).slice(0, 8)
        cache.extend(rw.Attention(p.q[:, :, :8], p.k[:, :, :8], p.v[:, :, :8], first, causal=False))
        now = rw.at_step(where, step, 5)
        got = rw.attend(
            cache.extend(rw.Attention(p.q[:, :, 8:], p.k[:, :, 8:], p.v[:, :, 8:], now.slice(8), causal=False)), "dense"
        )
        close(got, attend(made, p.replace(positions=now))[:, :, 8:])


def test_statistics_of_the_reference():
    x, r = random(2, 3, 50, 4), 3 + 2 * random(1, 3, 40, 4, seed=1)
    got = adain(x, r)
    close(got.mean(2), r.mean(2).expand(2, -1, -1), 1e-6)
    close(got.var(2, correction=0), r.var(2, correction=0).expand(2, -1, -1), 1e-5)
    assert torch.equal(adain(x, r, 0.0), x)
    close(adain(x, r, 0.25), 0.75 * x + 0.25 * got)


def test_masks_are_extended_for_the_reference():
    p = shared()
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    got = shared_attention(p.q, p.k[:, :, :8], p.v[:, :, :8], p.k[:, :, 8:], p.v[:, :, 8:], mask=mask)
    wide = torch.cat([mask, torch.ones(8, 6, dtype=torch.bool)], 1)
    close(got, rw.attend(rw.Attention(p.q, p.k, p.v, causal=False, mask=wide)))


# ---- analysis and the experiment of the sheet ------------------------------------------------------------------------


def test_high_bands_decay_and_low_ones_do_not():
    freq = rw.geometric(32).tensor()
    offsets = torch.arange(1, 6)
    assert band_similarity(freq, range(4), offsets)[2:].abs().max() < 0.5
    assert band_similarity(freq, range(12, 16), offsets).min() > 0.99
    assert band_similarity(freq, range(16), torch.tensor(0)) == 1
    x = random(3, 8)
    assert isolate_band(x, [1])[:, [0, 1, 4, 5, 6, 7]].abs().max() == 0
    assert torch.equal(isolate_band(x, [1], "half")[:, [1, 5]], x[:, [1, 5]])


def masses(high, low):
    """An 8 x 8 grid of contents of four kinds, and a reference of the same kinds elsewhere.

    All tokens have something in common in their fast pairs, which draws a query to its own place, as in trained models.
    """
    where = rw.shared_grid_positions((8, 8), [(8, 8)], index_axis=False)
    g = torch.Generator().manual_seed(0)
    kinds = torch.arange(64) % 4
    target, reference = (kinds[torch.randperm(64, generator=g)] for _ in range(2))
    labels = torch.cat([target, reference])
    content = random(4, 16, seed=3)[labels] + 0.3 * random(128, 16, seed=4)
    common = torch.zeros(2, 32, dtype=torch.float64)
    common[:, :12] = 1.0
    k = 0.3 * torch.einsum("nc,hcd->hnd", content, random(8, 16, 64, seed=5) / 4)[None] + common.flatten()
    made = UntwistingRoPE(64, 2, high, low)
    _, weights = rw.attend(made(rw.Attention(k[:, :, :64], k, k, where, causal=False)), return_weights=True)
    mean = weights.mean((0, 1))
    found = aligned_mass(mean, where), semantic_mass(mean, where, target, labels), reference_mass(mean, where)
    return tuple(x.item() for x in found)


def test_content_is_copied_less_than_style():
    """Of what goes to the reference less goes to the same place, and more, per copied token, to those of the same kind."""
    plain, weak, strong = masses(1.0, 1.0), masses(0.2, 1.0), masses(0.2, 1.5)
    assert weak[0] < 0.5 * plain[0]
    assert weak[0] / weak[2] < 0.6 * plain[0] / plain[2]
    assert plain[1] / plain[0] < weak[1] / weak[0] < strong[1] / strong[0]
    assert weak[1] < strong[1]
    whole = [masses(0.2, low)[2] for low in (0.8, 1.0, 1.2, 1.5)]
    assert whole == sorted(whole)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be():
    for options, message in (
        ({"high": (0.7, 0.2)}, "which is not smaller"),
        ({"low": -1.0}, "none negative"),
        ({"first_axis": "cruve"}, "Did you mean 'curve'"),
        ({"beta": 0.0}, "beta is positive"),
    ):
        with pytest.raises(ConfigError, match=message):
            ReferenceGain((4, 4), **options)
    with pytest.raises(ConfigError, match="got none"):
        ReferenceGain(())
    with pytest.raises(NeedsColumn, match="'reference'"):
        fixed(0.5, 1.0)(shared().replace(positions=rw.Positions(q=WHERE.query, k=rw.Positions(WHERE.key.position))))
    with pytest.raises(NeedsColumn, match="at_step"):
        fixed((0.5, 0.6), 1.0)(shared())
    with pytest.raises(ShapeError, match="axes of 16 channels"):
        ReferenceGain((8, 8), 0.5, 1.0)(shared())
    with pytest.raises(ConfigError, match="at least one"):
        rw.shared_grid_positions((2, 3), [])
    p = shared()
    with pytest.raises(ShapeError, match="batch, heads, width"):
        shared_attention(p.q, p.k, p.v, p.k[..., :8], p.v)
    with pytest.raises(ShapeError, match="6 keys and 5 values"):
        shared_attention(p.q, p.k, p.v, p.k[:, :, :6], p.v[:, :, :5])
    with pytest.raises(PositionError, match="at the place of a query"):
        aligned_mass(torch.ones(6, 12), rw.shared_grid_positions((2, 3), [(2, 3)], shifted=True))
