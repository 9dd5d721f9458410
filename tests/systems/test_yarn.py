"""YaRN and the schedules of its repository (arXiv 2309.00071)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import (
    Spectrum,
    dynamic_yarn,
    geometric,
    ntk_by_parts,
    yarn,
    yarn_attention_factor,
    yarn_range,
    yarn_softmax_factor,
)
from ropewalk.frequencies.yarn import part_ntk

CASES = golden("031")
LADDER = geometric(128)


def numbers(spectrum):
    return spectrum.tensor()


# ---- golden values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["yarn_d16_L2048_s4", "yarn_d128_L4096_s16_inv_only"])
def test_golden(name):
    c, out = CASES[name].params, CASES[name].outputs
    made = yarn(geometric(c["dim"], c["base"]), c["scale"], c["original_max_position_embeddings"])
    assert yarn_range(c["dim"], c["base"], c["original_max_position_embeddings"]) == (out["low"], out["high"])
    torch.testing.assert_close(numbers(made), out["inv_freq"], rtol=1e-6, atol=0)
    assert made.attention_factor == pytest.approx(out["mscale"], rel=1e-8)


def test_golden_rotation():
    case = CASES["yarn_d16_L2048_s4"]
    at = torch.tensor(case.params["positions"], dtype=torch.float64)
    n = torch.arange(1 * 2 * 6 * 16, dtype=torch.float64)
    q, k = (0.1 * n).sin().reshape(1, 2, 6, 16), (0.07 * n + 0.5).sin().reshape(1, 2, 6, 16)
    encoding = rw.RoPE(pairing="half", spectrum=geometric(16).yarn(4, 2048))
    got_q, got_k = encoding.rotate(q, k, at)
    close(got_q, case.outputs["q_rot"], DOUBLE)
    close(got_k, case.outputs["k_rot"], DOUBLE)
    close(logits(encoding(rw.Attention(q, k, k, rw.Positions(at)))), case.outputs["logits"], DOUBLE)
    angles = at[:, None] * encoding.inv_freq.repeat(2)
    close(angles.cos() * encoding.magnitude, case.outputs["cos"], DOUBLE)
    close(angles.sin() * encoding.magnitude, case.outputs["sin"], DOUBLE)


def test_golden_siblings():
    c, out = CASES["siblings_d16"].params, CASES["siblings_d16"].outputs
    plain, original, length = geometric(c["dim"], c["base"]), c["original_max_position_embeddings"], c["seq_len"]
    grown = dynamic_yarn(plain, length, original)
    for name, made in {
        "ntk_aware": plain.ntk(c["scale"]),
        "ntk_by_parts_code": part_ntk(plain, c["scale"], original),
        "dynamic_ntk_alpha1": plain.dynamic_ntk(length, original),
        "dynamic_ntk_alpha2": plain.dynamic_ntk(length, original, factor=2),
        "dynamic_yarn_before": dynamic_yarn(plain, original, original),
        "dynamic_yarn_after": grown,
    }.items():
        torch.testing.assert_close(numbers(made), out[name], rtol=1e-6, atol=0, msg=lambda m, n=name: f"{n}: {m}")
    assert grown.attention_factor == pytest.approx(out["dynamic_yarn_mscale"], rel=1e-8)


# ---- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ramp", ["code", "paper"])
def test_factor_one_is_rope(ramp):
    made = yarn(LADDER, 1.0, 4096, ramp=ramp)
    torch.testing.assert_close(numbers(made), numbers(LADDER), rtol=1e-15, atol=0)
    assert made.attention_factor == 1.0


@pytest.mark.parametrize("ramp", ["code", "paper"])
def test_between_interpolation_and_rope(ramp):
    made = numbers(yarn(LADDER, 16.0, 4096, ramp=ramp))
    assert bool((made <= numbers(LADDER)).all())
    assert bool((made >= numbers(LADDER) / 16).all())
    assert bool((made.diff() < 0).all())


def test_ramps_agree_outside_and_differ_inside():
    code, paper = (numbers(yarn(LADDER, 16.0, 4096, ramp=ramp)) for ramp in ("code", "paper"))
    low, high = yarn_range(128, 10_000.0, 4096)
    assert (low, high) == (20, 46)
    assert code[: low + 1].tolist() == list(LADDER.inv_freq[: low + 1])
    assert code[high:].tolist() == [w / 16 for w in LADDER.inv_freq[high:]]
    assert torch.equal(code[:low], paper[:low])
    assert torch.equal(code[high + 1 :], paper[high + 1 :])
    assert bool((code[low + 1 : high] != paper[low + 1 : high]).all())
    assert numbers(ntk_by_parts(LADDER, 16.0, 4096)).tolist() == paper.tolist()


def test_ramp_of_other_frequencies_is_the_papers():
    scaled = LADDER.linear(2.0)
    assert yarn(scaled, 4.0, 4096).inv_freq == yarn(scaled, 4.0, 4096, ramp="paper").inv_freq
    assert yarn(LADDER, 4.0, 4096).inv_freq == yarn(LADDER, 4.0, 4096, ramp="code").inv_freq
    with pytest.raises(ConfigError, match="ramp='paper'"):
        yarn(scaled, 4.0, 4096, ramp="code")
    with pytest.raises(ConfigError, match="not of that form"):
        part_ntk(scaled, 4.0, 4096)


def test_planes_that_turn_backwards_are_scaled_like_others():
    there, back = (Spectrum((1.0 * sign, 0.01 * sign, 1e-5 * sign)) for sign in (1, -1))
    assert yarn(back, 4.0, 4096).inv_freq == tuple(-w for w in yarn(there, 4.0, 4096).inv_freq)


def test_ntk_keeps_the_fastest_and_interpolates_the_slowest():
    made = LADDER.ntk(8.0)
    assert made.inv_freq[0] == 1.0
    assert made.inv_freq[-1] == pytest.approx(LADDER.inv_freq[-1] / 8, rel=1e-12)
    torch.testing.assert_close(numbers(made), numbers(geometric(128, 1e4 * 8 ** (128 / 126))), rtol=1e-12, atol=0)
    assert geometric(2).ntk(8.0).inv_freq == (1.0,)


def test_only_differences_matter_and_norms_grow_by_the_factor():
    encoding = rw.RoPE(spectrum=geometric(8).yarn(8.0, 64))
    p = problem(s=6)
    here, there = (logits(encoding(p.replace(positions=rw.Positions(torch.arange(6) + at)))) for at in (0, 1000))
    close(here, there, 1e-11)
    turned = encoding.rotate(p.q, p.k)[0]
    close(turned.norm(dim=-1), yarn_attention_factor(8.0) * p.q.norm(dim=-1))


def test_temperature_alone_scales_the_logits():
    # The ramp begins after the last plane, so that all frequencies are kept.
    dim, length = 16, 2048
    turns = [length * 10_000.0 ** (-2 * i / dim) / (2 * math.pi) for i in (dim // 2 + 1, dim // 2 + 4)]
    made = geometric(dim).yarn(4.0, length, fast=turns[0], slow=turns[1])
    torch.testing.assert_close(numbers(made), numbers(geometric(dim)), rtol=1e-14, atol=0)
    p = problem(d=dim)
    plain, scaled = (logits(rw.RoPE(spectrum=s)(p)) for s in (geometric(dim), made))
    close(scaled, yarn_attention_factor(4.0) ** 2 * plain)
    differ(scaled, plain)


def test_step_where_the_ramp_has_no_length():
    low, high = yarn_range(8, 100.0, 1_000_000)
    assert high == low + 0.001
    assert geometric(8, 100.0).yarn(4.0, 1_000_000).inv_freq == geometric(8, 100.0).inv_freq  # every plane turned often


def test_untruncated_ramp():
    low, high = yarn_range(128, 1e4, 4096, truncate=False)
    assert 20 < low < 21
    assert 45 < high < 46
    for n, at in ((32, low), (1, high)):
        assert 4096 * 1e4 ** (-2 * at / 128) / (2 * math.pi) == pytest.approx(n, rel=1e-12)


def test_extrapolation_factor():
    assert yarn(LADDER, 4.0, 4096, extrapolation=0.0).inv_freq == LADDER.linear(4.0).inv_freq
    with pytest.raises(ConfigError, match="extrapolation"):
        yarn(LADDER, 4.0, 4096, extrapolation=2.0)


def test_magnitude():
    assert yarn_attention_factor(16.0) == pytest.approx(1.27725887, rel=1e-8)
    assert yarn_attention_factor(16.0, mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert yarn_attention_factor(16.0, mscale=0.707) == yarn_attention_factor(16.0)
    assert yarn_attention_factor(16.0, mscale=1.0, mscale_all_dim=0.0) == yarn_attention_factor(16.0)
    assert yarn_attention_factor(16.0, coefficient=0.07) == 0.07 * math.log(16) + 1
    assert yarn_attention_factor(40.0, mscale=2.0, mscale_all_dim=1.0) == pytest.approx(
        (0.2 * math.log(40) + 1) / (0.1 * math.log(40) + 1)
    )
    assert yarn_softmax_factor(40.0, 1.0) == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    assert yarn_softmax_factor(1.0, 1.0) == 1.0
    assert yarn(LADDER, 16.0, 4096, attention_factor=1.0).attention_factor == 1.0


def test_entropy_shrinks_as_the_magnitude_grows():
    p = problem(d=16, s=20)
    entropies = []
    for factor in (1.0, 1.5, 2.5):
        spectrum = geometric(16).yarn(8.0, 64, attention_factor=factor)
        weights = logits(rw.RoPE(spectrum=spectrum)(p)).softmax(-1)
        entropies.append(float(-(weights * weights.log()).sum(-1).mean()))
    assert entropies[0] > entropies[1] > entropies[2]


def test_dynamic_forms_are_plain_up_to_the_original_length():
    for n in (1, 100, 2048):
        assert LADDER.dynamic_ntk(n, 2048, factor=4).inv_freq == LADDER.inv_freq
        assert dynamic_yarn(LADDER, n, 2048) == LADDER
    assert dynamic_yarn(LADDER, 4096, 2048).inv_freq == yarn(LADDER, 2.0, 2048).inv_freq
    assert dynamic_yarn(LADDER, 4096, 2048).attention_factor == yarn_attention_factor(2.0)
    torch.testing.assert_close(numbers(LADDER.dynamic_ntk(4096, 2048)), numbers(LADDER.ntk(2.0)), rtol=1e-14, atol=0)
    assert dynamic_yarn(LADDER, 100, 2048, at_least=4.0).inv_freq == yarn(LADDER, 4.0, 2048).inv_freq
    assert dynamic_yarn(LADDER, 4096, 2048, attention_factor=2.0).attention_factor == 2 * yarn_attention_factor(2.0)


def test_partly_turned_heads_use_the_width_that_is_turned():
    spectrum = geometric(16).yarn(4.0, 2048)
    encoding = rw.RoPE(24, spectrum=spectrum)
    q = random(1, 2, 5, 24)
    turned = encoding.rotate(q, q)[0]
    assert torch.equal(turned[..., 16:], q[..., 16:])  # the magnitude is on the turned channels only
    close(turned[..., :16].norm(dim=-1), spectrum.attention_factor * q[..., :16].norm(dim=-1))


@pytest.mark.parametrize("options", [{"slow": 5.0, "fast": 2.0}, {"slow": 0.0}, {"slow": math.nan}, {"ramp": "turns"}])
def test_ramp_that_cannot_be(options):
    with pytest.raises(ConfigError):
        yarn(LADDER, 4.0, 2048, **options)
