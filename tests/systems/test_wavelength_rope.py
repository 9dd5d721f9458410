"""RoPE at log wavelengths, and a decoder whose sines are gated by the resolution (OmniSpectra)."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.coordinates.spectra import log_coordinate
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.embedding.gated_fourier import (
    GatedFourierDecoder,
    ResolutionGatedFourier,
    resolution_width,
    weighted_flux_loss,
)
from ropewalk.frequencies import physical_period_frequencies
from ropewalk.lab.spectra import Instrument, SpectrumMAE, random_mask, synthetic_spectra

CASE = golden("040")["optical"]
WAVES = torch.tensor([3600.0, 3705.5, 4012.2, 4861.3, 6562.8, 6583.5, 9100.0], dtype=torch.float64)


def made():
    p = CASE.params
    return rw.WavelengthRoPE(p["head_dim"], p["period_min"], p["period_max"])


def test_golden():
    q, k = CASE.inputs["q"], CASE.inputs["k"]
    where = rw.spectrum_positions(CASE.inputs["wavelength"])
    close(where.key.position[0], CASE.outputs["log_coordinate"], DOUBLE)
    close(made().inv_freq, CASE.outputs["angular_freq"], DOUBLE)
    p = made()(rw.Attention(q, k, k, where, causal=False))
    close(p.q, CASE.outputs["q_rot"], DOUBLE)
    close(p.k, CASE.outputs["k_rot"], DOUBLE)
    close(logits(p), CASE.outputs["logits"], DOUBLE)
    moved = rw.spectrum_positions(CASE.inputs["wavelength"] * (1 + CASE.params["redshift"]))
    close(logits(made()(rw.Attention(q, k, k, moved, causal=False))), CASE.outputs["logits_redshifted_coords"], DOUBLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def seen(wavelength, encoding=None, **more):
    encoding = rw.WavelengthRoPE(8) if encoding is None else encoding
    return encoding(problem(b=1, positions=rw.spectrum_positions(wavelength, **more), causal=False))


def test_neither_redshift_nor_unit_change_attention():
    here = logits(seen(WAVES))
    close(logits(seen(1.73 * WAVES)), here, 1e-10)
    close(logits(seen(WAVES / 10)), here, 1e-10)
    linear = [logits(rw.RoPE(8)(problem(b=1, positions=rw.Positions(WAVES * f), causal=False))) for f in (1, 1.73)]
    differ(*linear)


def test_ladder():
    ladder = physical_period_frequencies(0.01, 2.0, 5)
    periods = [2 * math.pi / w for w in ladder.inv_freq]
    assert periods[0] == pytest.approx(0.01)
    assert periods[-1] == pytest.approx(2.0)
    ratios = [b / a for a, b in pairwise(periods)]
    assert ratios == pytest.approx([ratios[0]] * 4)
    assert physical_period_frequencies(0.01, 2.0, 1).wavelengths() == pytest.approx((0.01,))


def test_pixels_apart():
    """With patches of one pixel, a pixel less or twice leaves the others where they are."""
    flux = random(7)
    whole = rw.patch_spectrum(WAVES, flux)
    keep = torch.tensor([0, 1, 2, 4, 4, 5, 6])
    some = rw.patch_spectrum(WAVES[keep], flux[keep])
    assert torch.equal(some.centre[0], whole.centre[0, keep])
    assert torch.equal(whole.width, torch.zeros(1, 7, dtype=torch.float64))


def test_patches():
    valid = torch.tensor([[True] * 7, [True, False, True, True, True, False, True]])
    waves = torch.where(valid, WAVES, -1.0)  # what is not valid may be anything
    flux = random(2, 7)
    p = rw.patch_spectrum(waves, flux, 3, valid=valid, weight=torch.ones(2, 7))
    u = WAVES.log()
    assert p.valid.tolist() == [[True] * 3, [True, True, False]]
    close(p.centre[0], torch.stack([u[:3].mean(), u[3:6].mean(), u[6]]))
    close(p.centre[1, :2], torch.stack([u[[0, 2, 3]].mean(), u[[4, 6]].mean()]))
    close(p.width[0], torch.stack([u[2] - u[0], u[5] - u[3], 0 * u[0]]))
    assert p.real.sum(-1).tolist() == [[3, 3, 1], [3, 2, 0]]
    assert p.weight.sum(-1).tolist() == [[3, 3, 1], [3, 2, 0]]
    close(p.flux[1, 1], torch.stack([flux[1, 4], flux[1, 6], 0 * u[0]]))
    shifted = rw.patch_spectrum(1.5 * waves, flux, 3, valid=valid)
    close((shifted.centre - p.centre)[p.valid], torch.full((5,), math.log(1.5), dtype=torch.float64))
    close(shifted.width, p.width)


def test_a_model_in_bfloat16_has_exact_angles():
    p = problem(b=1, positions=rw.spectrum_positions(WAVES), causal=False)
    want = logits(rw.WavelengthRoPE(8)(p))
    low = p.replace(**{n: getattr(p, n).to(torch.bfloat16) for n in "qkv"})
    got = logits(rw.WavelengthRoPE(8).to(torch.bfloat16)(low))
    close(got, want, 0.05)  # the rounding of q and k, not of angles of 6e4


def test_invalid_pixels():
    valid = torch.tensor([[True, True, False, True, True, True, False]])
    p = problem(b=1, positions=rw.spectrum_positions(WAVES, valid), causal=False)
    out = attend(rw.WavelengthRoPE(8), p)
    k, v = (torch.where(valid[:, None, :, None], t, t + 100) for t in (p.k, p.v))
    close(attend(rw.WavelengthRoPE(8), p.replace(k=k, v=v)), out)
    none = rw.spectrum_positions(WAVES, torch.zeros(1, 7, dtype=torch.bool))
    assert bool((attend(rw.WavelengthRoPE(8), p.replace(positions=none)) == 0).all())


def test_chunks_are_one_pass():
    encoding, where = rw.WavelengthRoPE(8), rw.spectrum_positions(WAVES)
    p = problem(b=1, positions=where)
    cache, out = rw.KVCache(encoding), []
    for a, b in ((0, 3), (3, 4), (4, 7)):
        part = rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], where.slice(a, b))
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), attend(encoding, p))


# ---- gated features --------------------------------------------------------------------------------------------------


def test_gates():
    made = ResolutionGatedFourier(6, 0.01, 1.0)
    sigma = torch.tensor([0.0, 0.001, 0.01, 0.05])
    g = made.gate(sigma)
    assert 0 < g.min() <= g.max() <= 1
    assert torch.equal(g[0], torch.ones(6))
    assert bool((g.diff(dim=0) <= 0).all())  # falls with σ
    assert bool((g.diff(dim=1) >= 0).all())  # slow waves pass
    assert torch.equal(made.gate(resolution_width(math.inf)), torch.ones(6, dtype=torch.float64))
    step = 0.01
    nyquist = ResolutionGatedFourier(1, 2 * step, 2 * step)
    assert nyquist.gate(step / 2).item() == pytest.approx(0.291, abs=5e-4)
    assert nyquist.gate(step).item() == pytest.approx(0.0072, abs=5e-5)


def test_a_linear_read_out_is_convolved():
    made, sigma = ResolutionGatedFourier(4, 0.1, 1.0), 0.03
    w = random(8)
    u = torch.linspace(0, 1, 11, dtype=torch.float64)
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    kernel = (-0.5 * x**2).exp()
    kernel = kernel / kernel.sum()
    plain = made(u[:, None] - sigma * x) @ w
    close(made(u, sigma) @ w, plain @ kernel, 1e-10)


def test_the_decoder_follows_its_centre():
    torch.manual_seed(0)
    made = GatedFourierDecoder(5, ResolutionGatedFourier(4, 0.1, 1.0), 16).double()
    latent, u, centre = random(2, 3, 5), random(2, 3, 4), random(2, 3)
    sigma = torch.full((2, 3, 4), 0.02)
    close(made(latent, u + 7.5, centre + 7.5, sigma), made(latent, u, centre, sigma), 1e-9)
    differ(made(latent, u, centre, 0.0), made(latent, u, centre, 0.2))


def test_loss():
    a, f = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
    asked = torch.tensor([True, True, False])
    assert weighted_flux_loss(a, f, asked).item() == pytest.approx(2.5)
    w = torch.tensor([9.0, 1.0, 5.0])
    assert weighted_flux_loss(a, f, asked, w, 3.0).item() == pytest.approx((3 * 1 + 1 * 4) / 4)
    assert weighted_flux_loss(a, f, asked & False).item() == 0
    assert weighted_flux_loss(a, torch.tensor([0.0, 0.0, math.nan]), asked).isfinite()


# ---- the autoencoder -------------------------------------------------------------------------------------------------

SMALL = Instrument(3600, 9800, 43, 900.0)


def spectra(n=2, **more):
    return synthetic_spectra(n, SMALL, torch.Generator().manual_seed(0), **more)


def test_spectra_are_seen_through_the_instrument():
    sharp = Instrument(4000, 6000, 4000, 3000.0)
    a, b = (
        synthetic_spectra(1, s, torch.Generator().manual_seed(1), noise=0.0).flux
        for s in (sharp, Instrument(4000, 6000, 4000, 500.0))
    )
    assert a.diff().abs().max() > 2 * b.diff().abs().max()
    assert a.sum().item() == pytest.approx(b.sum().item())


def test_random_mask():
    valid = torch.arange(9) < torch.tensor([[9], [4], [1]])
    masked = random_mask(valid, 0.75, torch.Generator().manual_seed(0))
    assert masked.sum(1).tolist() == [6, 3, 0]
    assert not bool((masked & ~valid).any())


def test_the_model_does_not_see_a_redshift():
    torch.manual_seed(0)
    s = spectra()
    patches = [rw.patch_spectrum(f * s.wavelength, s.flux, 4) for f in (1.0, 1.4)]
    masked = random_mask(patches[0].valid, 0.5, torch.Generator().manual_seed(0))
    model = SpectrumMAE(4, 16, 1, 2).double()
    close(model(patches[1], masked, 1e-3), model(patches[0], masked, 1e-3), 1e-8)
    other = SpectrumMAE(4, 16, 1, 2, encoding="rope", coordinate="linear").double()
    other.load_state_dict(model.state_dict())
    assert other(patches[0], masked).shape == (2, 11, 4)


def test_hidden_patches_are_hidden_and_padding_is_nothing():
    torch.manual_seed(0)
    s = spectra()
    patches = rw.patch_spectrum(s.wavelength, s.flux, 4, weight=s.weight)
    masked = random_mask(patches.valid, 0.5, torch.Generator().manual_seed(0))
    model = SpectrumMAE(4, 16, 1, 2).double()
    out = model(patches, masked, 1e-3)
    other = patches._replace(flux=torch.where(masked[..., None], 100.0, patches.flux))
    close(model(other, masked, 1e-3), out)
    valid = torch.ones(2, 43, dtype=torch.bool)
    valid[0, 20:] = False
    mixed = rw.patch_spectrum(s.wavelength, s.flux, 4, valid=valid)
    hide = torch.zeros_like(mixed.valid)
    hide[:, 1] = True
    alone = rw.patch_spectrum(s.wavelength[:20], s.flux[:1, :20], 4)
    close(model(mixed, hide)[:1, :5], model(alone, hide[:1, :5]))
    model.loss(patches, masked, 1e-3, max_weight=100.0).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, -3600.0, math.nan, math.inf])
def test_wavelengths_that_are_none(bad):
    waves = WAVES.clone()
    waves[2] = bad
    for make in (log_coordinate, rw.spectrum_positions, lambda w: rw.patch_spectrum(w, random(7))):
        with pytest.raises(PositionError, match="a wavelength is a positive number"):
            make(waves)


def test_counted_pixels_are_no_wavelengths():
    with pytest.raises(PositionError, match="count pixels"):
        rw.WavelengthRoPE(8)(problem())


def test_other_bad_input():
    with pytest.raises(ConfigError, match="period_min is a positive number"):
        rw.WavelengthRoPE(8, 0.0)
    with pytest.raises(ConfigError, match="longer than period_max"):
        rw.WavelengthRoPE(8, 7.0)
    with pytest.raises(ShapeError, match="one for each pixel"):
        rw.patch_spectrum(WAVES, random(8))
    with pytest.raises(PositionError, match="resolving power"):
        resolution_width(0.0)
    with pytest.raises(PositionError, match="sigma is a width"):
        ResolutionGatedFourier(2, 1.0, 2.0).gate(-1.0)
    with pytest.raises(ConfigError, match="an instrument sees"):
        Instrument(5000, 4000, 10, 900.0)
