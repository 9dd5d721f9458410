"""Base of RoPE bounds context length (arXiv 2405.14591)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import close, golden

from ropewalk.core.errors import ConfigError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import (
    Spectrum,
    abel_bound,
    count_negative,
    effective_length,
    first_negative,
    fitted_base,
    geometric,
    min_base,
    safe_base,
    too_short,
    waveform,
)
from ropewalk.frequencies.base_bounds import PUBLISHED_BASES

CASES = golden("026")
METHOD_1 = geometric(128, 5e6)
METHOD_2 = Spectrum(
    tuple(1e4 ** (-2 * i / 128) / 8 if i >= 44 else (1e4 * 8 ** (128 / 88)) ** (-2 * i / 128) for i in range(64))
)


def test_golden_curve():
    case = CASES["d128"]
    close(waveform(geometric(128), case.inputs["m"]), case.outputs["B"], 1e-8)
    assert first_negative(geometric(128), 4096) == case.outputs["first_negative_m"]


@pytest.mark.parametrize("length", [1024, 2048, 4096])
def test_golden_smallest_base(length):
    assert min_base(length) == pytest.approx(CASES["d128"].outputs["min_base_on_grid"][str(length)], rel=1e-8)


def test_golden_counts():
    out = CASES["two_methods_table4"].outputs
    for length, wanted in ((15 * 1024, "negatives_upto_15360"), (30 * 1024, "negatives_upto_30720")):
        assert [count_negative(made, length) for made in (METHOD_1, METHOD_2)] == out[wanted].tolist()
    for base, at in out["first_negative"].items():
        assert first_negative(geometric(128, float(base)), 30_000) == at
        assert effective_length(geometric(128, float(base)), 30_000) == at - 1


def test_curve():
    assert waveform(geometric(128), torch.zeros(1)).item() == 64
    far = torch.arange(0, 3000, 7)
    assert float(waveform(geometric(128), far).abs().max()) <= 64
    endless = waveform(geometric(128, 1e250), torch.arange(4))
    close(endless, 63 + torch.arange(4).double().cos(), 1e-2)


@pytest.mark.parametrize("law", ["gaussian", "uniform", "shifted"])
def test_theorem_by_simulation(law):
    # E[q·R_m k*] − E[q·R_m k] = 2 σ² B_m for keys k* = q + noise and random ones.
    dim, m, draws = 16, 3, 200_000
    generator = torch.Generator().manual_seed(0)

    def draw():
        if law == "uniform":
            return torch.rand(draws, dim, generator=generator, dtype=torch.float64)
        return torch.randn(draws, dim, generator=generator, dtype=torch.float64) + (2.0 if law == "shifted" else 0.0)

    q, k = draw(), draw()
    similar = q + 0.1 * torch.randn(draws, dim, generator=generator, dtype=torch.float64)
    cos, sin = tables(m * geometric(dim, 100.0).tensor(), torch.float64)
    scores = [(q * rotate(x, cos, sin, "half")).sum(-1) for x in (similar, k)]
    variance = 1 / 12 if law == "uniform" else 1.0
    got = float((scores[0] - scores[1]).mean()) / (2 * variance)
    spread = float((scores[0] - scores[1]).std()) / (2 * variance) / math.sqrt(draws)
    assert abs(got - float(waveform(geometric(dim, 100.0), torch.tensor(m)))) < 4 * spread + 1e-9


def test_smallest_base_grows_and_reaches():
    bases = [min_base(length, step=0.02) for length in (64, 256, 700, 1500)]
    assert bases == sorted(bases)
    for length, base in zip((64, 256, 700, 1500), bases, strict=True):
        assert first_negative(geometric(128, base), length) is None
        assert first_negative(geometric(128, base / 10**0.02), length) is not None


@pytest.mark.parametrize("length", [1 << 10, 1 << 11, 1 << 12, 1 << 13])
def test_published_table(length):
    assert min_base(length) == pytest.approx(PUBLISHED_BASES[length], rel=0.35)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "ours"), [(1 << 14, 2.34e5), (1 << 15, 6.31e5), (1 << 16, 2.21e6), (1 << 17, 8.91e6)]
)
def test_published_table_of_long_contexts(length, ours):
    base = min_base(length)
    assert base == pytest.approx(ours, rel=0.012)
    assert base == pytest.approx(PUBLISHED_BASES[length], rel=0.35)


def test_fit_is_within_a_factor_of_two():
    for length, base in PUBLISHED_BASES.items():
        assert 0.5 < fitted_base(length) / base < 2


@pytest.mark.parametrize(("length", "base"), [(1024, 6.0e3), (2048, 2.3e4)])
def test_safe_base(length, base):
    got = safe_base(length, stop=1e6)
    assert got == pytest.approx(base, rel=0.02)
    assert first_negative(geometric(128, got), length) is None
    assert first_negative(geometric(128, got / 10**0.005), length) is not None
    with pytest.raises(ConfigError, match="still fails"):
        safe_base(length, stop=200.0)


def test_width_matters():
    assert len({min_base(512, dim, step=0.05) for dim in (64, 128, 256)}) == 3


def test_unrotated_pairs_relax_the_bound():
    part = geometric(64, 100.0)
    assert first_negative(part, 4000) < (first_negative(part, 4000, unrotated=4) or 10_000)
    assert first_negative(part, 4000, unrotated=32) is None
    assert min_base(512, 64, unrotated=8, step=0.05) < min_base(512, 64, step=0.05)
    assert first_negative(part.padded(36), 4000) == first_negative(part, 4000, unrotated=4)


def test_any_schedule():
    plain = geometric(128)
    assert effective_length(plain, 20_000) == 1706
    assert effective_length(plain.linear(4.0), 20_000) == pytest.approx(4 * 1706, abs=4)
    assert effective_length(plain.linear(4.0), 5000) is None  # not found, which is not the same as 5000
    assert effective_length(plain.ntk(8.0), 20_000) > 1706


def test_chunks_do_not_matter():
    exact = waveform(METHOD_2, torch.arange(30 * 1024 + 1)) < 0
    assert count_negative(METHOD_2, 30 * 1024) == int(exact.sum())
    assert first_negative(METHOD_2, 30 * 1024) == int(torch.nonzero(exact)[0])


def test_warning():
    assert too_short(geometric(128), 1706) is None
    said = too_short(geometric(128), 4096)
    assert "from 1707 tokens" in said
    assert "min_base(4096, 128)" in said
    assert "Base" not in too_short(geometric(128).linear(2.0), 8192)


def test_older_bound():
    # |Σ h_l e^(imω_l)| ≤ max |h_(l+1) − h_l| Σ |S_n|, with h beyond the end 0.
    spectrum, h = geometric(16), torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for m in (0, 1, 10, 100):
        angles = m * spectrum.tensor()
        score = torch.complex((h * angles.cos()).sum(), (h * angles.sin()).sum()).abs()
        steps = torch.cat((h, h.new_zeros(1))).diff().abs().max()
        assert float(score) <= float(steps) * 8 * abel_bound(spectrum, m) + 1e-12
    assert abel_bound(spectrum, 0) == pytest.approx(4.5)
    assert abel_bound(spectrum, 500) < abel_bound(spectrum, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: min_base(0),
        lambda: min_base(128, 7),
        lambda: min_base(100_000, 4, stop=1e3),
        lambda: min_base(128, step=0.0),
        lambda: min_base(128, stop=1.0),
        lambda: first_negative(geometric(8), 10, unrotated=-1),
        lambda: fitted_base(-1),
        lambda: abel_bound(Spectrum(()), 1),
        lambda: abel_bound(geometric(8), math.nan),
    ],
)
def test_what_cannot_be(call):
    with pytest.raises(ConfigError):
        call()
