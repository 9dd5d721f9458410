"""Spectra as values, and schedules that chain."""

from __future__ import annotations

import math

import pytest
import torch

import ropewalk as rw
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import (
    Spectrum,
    dynamic_linear,
    geometric,
    linear,
    longrope,
    longrope_at,
    longrope_attention_factor,
    waveform,
    yarn,
)

LADDER = geometric(64, 5e5)


def test_schedules_chain_as_methods_and_as_functions():
    chained = geometric(128, base=5e5).yarn(factor=8, original=8192)
    assert chained == yarn(geometric(128, base=5e5), 8, 8192)
    assert chained.clipped(4).linear(2.0) == linear(chained.clipped(4), 2.0)
    assert chained.origin == "geometric(128, base=500000.0).yarn(8, original=8192)"
    assert rw.RoPE(spectrum=chained).inv_freq.tolist() == list(chained.inv_freq)


def test_a_schedule_leaves_its_input_alone():
    before = LADDER.inv_freq
    LADDER.linear(2.0), LADDER.yarn(4.0, 100), LADDER.clipped()
    assert LADDER.inv_freq is before
    with pytest.raises(AttributeError):
        LADDER.attention_factor = 2.0


def test_attention_factors_multiply():
    once = LADDER.yarn(8.0, 4096)
    assert once.longrope([1.0] * 32, attention_factor=2.0).attention_factor == 2 * once.attention_factor


@pytest.mark.parametrize("base", [1.5, 100, 10_000, 150_000.0, 5e5, 1e6, 12_345.678, 1e7, 5e8])
def test_base_is_recovered(base):
    for dim in (4, 8, 16, 64, 80, 96, 128, 256):
        assert geometric(dim, base).base == base


def test_what_has_no_base():
    for made in (
        LADDER.linear(2.0),
        LADDER.yarn(4.0, 4096),
        LADDER.clipped(3),
        geometric(2),
        geometric(0),
        LADDER.keep([0]),
    ):
        assert made.base is None
    assert Spectrum((1.0, 0.5, 0.3)).base is None
    assert LADDER.ntk(4.0).base == pytest.approx(5e5 * 4 ** (64 / 62), rel=1e-12)


@pytest.mark.parametrize("wrong", [{"inv_freq": (1.0, math.nan)}, {"inv_freq": (math.inf,)}])
def test_frequencies_are_numbers(wrong):
    with pytest.raises(ConfigError, match="frequencies are numbers"):
        Spectrum(**wrong)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_attention_factor_is_positive(factor):
    with pytest.raises(ConfigError, match="attention_factor"):
        Spectrum((1.0,), factor)


def test_planes_that_stand_still():
    made = LADDER.clipped(8, "hard")
    assert made.turning() == tuple(range(24))
    assert made.wavelengths()[-8:] == (math.inf,) * 8
    assert made.wavelengths()[0] == 2 * math.pi
    assert made.turns(100)[-1] == 0
    for further in (made.linear(4.0), made.yarn(4.0, 100), made.llama3(), made.ntk(2.0)):
        assert further.inv_freq[-8:] == (0.0,) * 8
    distance = torch.tensor([0, 1000])
    assert waveform(made, distance)[0] == 32
    assert waveform(made.keep([]), distance).tolist() == [32, 32]


def test_interpolation_is_division_of_positions():
    at = torch.arange(9.0) * 3
    q = torch.randn(1, 2, 9, 16, dtype=torch.float64)
    scaled = rw.RoPE(spectrum=geometric(16).linear(4.0)).rotate(q, q, at)[0]
    torch.testing.assert_close(scaled, rw.RoPE(16).rotate(q, q, at / 4)[0])
    torch.testing.assert_close(scaled, rw.Sequential(rw.Scale(4.0), rw.RoPE(16)).rotate(q, q, at)[0])


def test_dynamic_interpolation():
    assert dynamic_linear(LADDER, 100, 4096).inv_freq == LADDER.inv_freq
    assert dynamic_linear(LADDER, 8192, 4096).inv_freq == LADDER.linear(2.0).inv_freq


@pytest.mark.parametrize("factor", [0.5, 0, -2, math.nan, math.inf, True, "2", None])
def test_factors_are_at_least_one(factor):
    for call in (
        lambda: LADDER.linear(factor),
        lambda: LADDER.ntk(factor),
        lambda: LADDER.yarn(factor, 4096),
        lambda: LADDER.llama3(factor),
        lambda: LADDER.ntk_by_parts(factor, 4096),
    ):
        with pytest.raises(ConfigError, match="factor"):
            call()


@pytest.mark.parametrize("length", [0, -1, math.nan, math.inf, "4096", True])
def test_lengths_are_positive(length):
    for call in (
        lambda: LADDER.yarn(2.0, length),
        lambda: LADDER.llama3(2.0, length),
        lambda: LADDER.dynamic_ntk(length, 4096),
        lambda: LADDER.dynamic_ntk(4096, length),
        lambda: LADDER.turns(length),
    ):
        with pytest.raises(ConfigError, match="positive number of tokens"):
            call()


# ---- Llama 3, LongRoPE ------------------------------------------------------------------------------------------------


def test_llama3_keeps_what_turns_four_times():
    made = geometric(128, 5e5).llama3(8.0, 8192)
    for w, v, r in zip(geometric(128, 5e5).inv_freq, made.inv_freq, geometric(128, 5e5).turns(8192), strict=True):
        assert v == (w if r >= 4 else w / 8) or 1 < r < 4
        assert w / 8 <= v <= w


def test_longrope_divides():
    factors = [1.0 + i / 10 for i in range(32)]
    made = longrope(LADDER, factors, attention_factor=1.1)
    assert made.inv_freq == tuple(w / f for w, f in zip(LADDER.inv_freq, factors, strict=True))
    assert made.attention_factor == 1.1


def test_longrope_switches_beyond_the_original_length():
    short, long = [1.0] * 32, [2.0] * 32
    for length, want in ((1, LADDER), (4096, LADDER), (4097, LADDER.linear(2.0))):
        assert longrope_at(LADDER, length, 4096, short=short, long=long).inv_freq == want.inv_freq
    assert longrope_attention_factor(1.0, 4096) == 1.0
    assert longrope_attention_factor(16.0, 4096) == math.sqrt(1 + math.log(16) / math.log(4096))


@pytest.mark.parametrize("factors", [[1.0] * 31, [1.0] * 31 + [0.0], [1.0] * 31 + [math.nan], "a" * 32, 2.0])
def test_longrope_wants_a_positive_factor_a_plane(factors):
    with pytest.raises(ConfigError, match="factors"):
        longrope(LADDER, factors)


def test_abf():
    assert LADDER.abf(1e6).inv_freq == geometric(64, 1e6).inv_freq
    with pytest.raises(ConfigError, match="no base to adjust"):
        LADDER.linear(2.0).abf(1e6)
    with pytest.raises(ConfigError, match="base is a positive number"):
        LADDER.abf(-1.0)
