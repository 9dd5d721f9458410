"""Embeddings of orthogonal functions, and what the theory says of codes (arXiv 2506.06398)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reference import FULL, attend, close, differ, golden, problem, random, triangle

import ropewalk as rw
from ropewalk.analysis.expressiveness import alibi_tail, approximation_error, code_report, position_vectors, rademacher
from ropewalk.catalog import Traits
from ropewalk.embedding.orthogonal_functions import chebyshev, legendre, wavelet_basis, wavelet_embedding

CASES = golden("050")
DECODES = Traits(relative=False, norm_preserving=True, content_dependent=False, streamable=True, linear_attention=True)


def codes(encoding, length, width):
    return position_vectors(encoding, length, width)


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options"), [("legendre", {}), ("legendre_orthonormal", {"orthonormal": True})])
def test_golden_legendre(name, options):
    case = CASES["legendre"]
    n, d, length = (case.params[key] for key in ("n_positions", "dim", "L_ref"))
    u = rw.Legendre(d, length, extension="raw").interval.map(torch.arange(n).double())
    close(u, case.outputs["x"], FULL)
    for extension in ("raw", "clamp", "reflect"):
        close(codes(rw.Legendre(d, length, extension=extension, **options), n, d), case.outputs[name], FULL)
    close(codes(rw.Legendre(d, **options), n, d), case.outputs[name], FULL)  # rescaled to its own length, which is L


def test_golden_haar():
    want = CASES["haar-8"].outputs["haar"]
    close(wavelet_basis(8, 8), want, FULL)
    close(codes(rw.WaveletBasis(8, CASES["haar-8"].params["L"]), 8, 8), want, FULL)
    close(codes(wavelet_embedding(8, 8), 8, 8), want, FULL)


# ---- polynomials -----------------------------------------------------------------------------------------------------


def test_polynomials_are_those_of_numpy():
    u = torch.linspace(-1.5, 1.5, 31, dtype=torch.float64)
    close(legendre(u, 12), torch.from_numpy(np.polynomial.legendre.legvander(u.numpy(), 11)))
    close(chebyshev(u, 12), torch.from_numpy(np.polynomial.chebyshev.chebvander(u.numpy(), 11)))


def test_polynomials_are_orthogonal():
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(40))
    table = rw.Legendre(24, 5, extension="clamp", orthonormal=True).table(nodes)
    close(table.t() @ (weights[:, None] * table), torch.eye(24).double(), 1e-10)
    plain = rw.Legendre(24, 5, extension="clamp").table(nodes)
    close((plain.t() @ (weights[:, None] * plain)).diag(), 2 / (2 * torch.arange(24).double() + 1), 1e-10)
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.chebyshev.chebgauss(40))
    table = rw.Chebyshev(24, 5, extension="clamp", orthonormal=True).table(nodes)
    close(table.t() @ (weights[:, None] * table), torch.eye(24).double(), 1e-10)


def test_polynomials_at_the_ends():
    u = torch.tensor([1.0, -1.0], dtype=torch.float64)
    for family in (legendre, chebyshev):
        assert family(u, 9)[0].tolist() == [1] * 9
        close(family(u, 9)[1], (-1.0) ** torch.arange(9))
        assert family(torch.linspace(-1, 1, 301).double(), 64).abs().max() <= 1 + 1e-12
        assert family(u, 1).tolist() == [[1], [1]]
    assert codes(rw.Legendre(1), 5, 1).tolist() == [[1]] * 5
    close(codes(rw.Legendre(4), 1, 4), torch.tensor([[1.0, -1, 1, -1]]))  # one position, no division by 0
    close(codes(rw.Legendre(4, 1, extension="clamp"), 1, 4), torch.tensor([[1.0, -1, 1, -1]]))
    close(codes(rw.Legendre(4, drop_constant=True), 9, 4), codes(rw.Legendre(5), 9, 5)[:, 1:])
    orthonormal = codes(rw.Legendre(5, orthonormal=True), 9, 5)[:, 1:]
    close(codes(rw.Legendre(4, drop_constant=True, orthonormal=True), 9, 4), orthonormal)


@pytest.mark.parametrize("family", [rw.Legendre, rw.Chebyshev])
def test_beyond_the_length(family):
    inside = codes(family(16, 8, extension="clamp"), 8, 16)
    clamped = codes(family(16, 8, extension="clamp"), 20, 16)
    close(clamped[8:], inside[7:].expand(12, 16))
    reflected = codes(family(16, 8, extension="reflect"), 20, 16)
    index = torch.tensor([*range(8), 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5])
    close(reflected, inside[index])
    assert codes(family(16), 20, 16).abs().max() <= 1 + 1e-12
    assert codes(family(16, 8, extension="raw"), 20, 16).abs().max() > 1e10
    with pytest.raises(rw.PositionError, match="float32"):
        codes(family(128, 8, extension="raw"), 40, 128)


def test_rescaling_measures_each_document_and_no_padding():
    def embed(**facts):
        return rw.Legendre(6).embed(torch.zeros(1, 9, 6, dtype=torch.float64), rw.Positions.arange(9, **facts))[0]

    whole, five, four = (codes(rw.Legendre(6), n, 6) for n in (9, 5, 4))
    close(embed(), whole)
    close(embed(document_ids=torch.tensor([[7] * 5 + [3] * 4])), torch.cat([five, four]))
    padded = embed(valid=torch.tensor([[False] * 4 + [True] * 5]))
    close(padded[4:], five)
    apart = rw.Positions(
        torch.tensor([[0, 0, 1, 1, 2, 2, 3, 3, 4]]), document_ids=torch.tensor([[5, 2] * 4 + [5]])
    )  # documents that take turns
    mixed = rw.Legendre(6).embed(torch.zeros(1, 9, 6, dtype=torch.float64), apart)[0]
    close(mixed[0::2], five)
    close(mixed[1::2], four)


def test_rescaling_refuses_a_cache():
    with pytest.raises(rw.Refusal, match="fix length="):
        rw.KVCache(rw.Legendre(8))
    with pytest.raises(rw.PositionError, match="from 0 on"):
        rw.Legendre(8).embed(torch.zeros(1, 2, 8), rw.Positions(torch.tensor([-1, 0])))


@pytest.mark.parametrize("extension", ["clamp", "reflect"])
@pytest.mark.parametrize("family", [rw.Legendre, rw.Chebyshev])
def test_a_fixed_length_keeps_the_contract(family, extension):
    def made(hidden_size):
        return family(hidden_size, 30, extension=extension)

    checks = ["decoding", "decoding_counted", "decoding_padded", "packing", "short", "max_position"]
    rw.testing.check_encoding(made, DECODES, checks=checks)


# ---- cosines and wavelets --------------------------------------------------------------------------------------------


def test_cosine_transform():
    n = 12
    i, k = torch.arange(n).double()[:, None], torch.arange(n).double()
    want = (torch.pi * (2 * i + 1) * k / (2 * n)).cos() * (2 / n) ** 0.5
    want[:, 0] = n**-0.5
    got = codes(rw.CosineTransform(n, n), n, n)
    close(got, want)
    close(got.t() @ got, torch.eye(n))
    close(codes(rw.CosineTransform(n, n), 3 * n, n), torch.cat([got, got.flip(0), got]))
    wide = codes(rw.CosineTransform(n + 4, n), n, n + 4)
    close(wide[:, :n], got)
    assert not wide[:, n:].any()


@pytest.mark.parametrize("wavelet", ["haar", "daubechies4"])
@pytest.mark.parametrize("length", [1, 2, 4, 64])
def test_wavelets_are_orthonormal(wavelet, length):
    basis = wavelet_basis(length, length, wavelet)
    close(basis.t() @ basis, torch.eye(length))
    close(basis[:, 0], torch.full((length,), length**-0.5, dtype=torch.float64))
    for count in (1, 3, length - 1, length + 5):
        if count > 0:
            have = min(count, length)
            part = wavelet_basis(length, count, wavelet)
            close(part[:, :have], basis[:, :have])
            assert part.shape == (length, count)
            assert not part[:, have:].any()


def test_haar_is_scaled_and_shifted():
    def psi(x):
        return ((x >= 0) & (x < 0.5)).double() - ((x >= 0.5) & (x < 1)).double()

    i = torch.arange(32).double()
    columns = [torch.full((32,), 32**-0.5, dtype=torch.float64)]
    columns += [2 ** (-j / 2) * psi(2.0**-j * i - k) for j in range(5, 0, -1) for k in range(32 // 2**j)]
    close(wavelet_basis(32, 32), torch.stack(columns, -1))


def test_daubechies_wavelets_have_no_moments():
    finest = wavelet_basis(64, 64, "daubechies4")[:, 32:-2]  # those that do not wrap around
    i = torch.arange(64).double()
    assert (finest.t() @ torch.stack([torch.ones(64).double(), i], -1)).abs().max() < 1e-10
    assert (wavelet_basis(64, 64)[:, 32:].t() @ i).abs().min() > 0.5


def test_truncation_warns_and_says_what_is_left():
    with pytest.warns(UserWarning, match="8 codes for 64 positions"):
        made = rw.WaveletBasis(8, 64, truncate=True)
    table = codes(made, 64, 8)
    assert len(table.unique(dim=0)) == 8
    close(table, table[::8].repeat_interleave(8, 0))
    with pytest.raises(rw.ConfigError, match="truncate=True"):
        rw.WaveletBasis(8, 64)


@pytest.mark.parametrize("length", [1, 2, 8, 13, 64])
def test_square_waves_tell_positions_apart(length):
    octaves = max(1, math.ceil(math.log2(length)))
    made, width = rw.SquareWaves(None, length), 2 * octaves + 3
    table = codes(made, 3 * 2**octaves, width)
    assert len(table[: 2**octaves].unique(dim=0)) == 2**octaves
    close(table[2**octaves :], table[: -(2**octaves)])
    close(table[:, 2 * octaves :], table[:, :3])
    assert set(table.unique().tolist()) == {-1.0, 1.0}
    close(table[:, 0], table[:, 1])  # j = 1: the two coincide at whole positions
    for j in range(1, octaves + 1):
        i = torch.arange(len(table)) / 2**j
        close(table[:, 2 * j - 2], torch.where(i % 1 < 0.5, 1.0, -1.0))
        close(table[:, 2 * j - 1], torch.where((i + 0.25) % 1 < 0.5, 1.0, -1.0))


def test_the_form_that_fits():
    assert isinstance(wavelet_embedding(64, 64), rw.WaveletBasis)
    assert isinstance(wavelet_embedding(32, 64), rw.SquareWaves)
    with pytest.warns(UserWarning, match="codes"):
        assert isinstance(wavelet_embedding(32, 64, truncate=True), rw.WaveletBasis)
    with pytest.raises(rw.ConfigError, match="no periodic form"):
        wavelet_embedding(32, 64, wavelet="daubechies4")


def test_a_learned_gain():
    made = rw.CosineTransform(8, 8, learned_gain=True)
    plain = codes(rw.CosineTransform(8, 8), 8, 8)
    close(codes(made, 8, 8), plain)
    made.gain.data.fill_(3.0)
    close(codes(made, 8, 8), 3 * plain)
    made.embed(torch.zeros(1, 8, 8)).sum().backward()
    assert made.gain.grad != 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rw.Legendre(8, 16), "leave length out"),
        (lambda: rw.Legendre(8, extension="clamp"), "give length="),
        (lambda: rw.Legendre(8, 16, extension="reflct"), "Did you mean 'reflect'"),
        (lambda: rw.Legendre(0), "hidden_size"),
        (lambda: rw.WaveletBasis(16, 12), "power of two"),
        (lambda: rw.WaveletBasis(16, 16, wavelet="har"), "Did you mean 'haar'"),
        (lambda: rw.SquareWaves(8, 32), "at least 10"),
        (lambda: rw.CosineTransform(8, 0), "length"),
        (lambda: rw.Legendre().table(torch.zeros(3)), "no width yet"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(rw.ConfigError, match=message):
        make()


def test_bad_positions():
    made = rw.WaveletBasis(16, 16)
    x = torch.zeros(1, 2, 16)
    for position in ([15, 16], [-1, 0], [0.5, 1.0]):
        with pytest.raises(rw.PositionError, match=r"0 \.\.\. 15"):
            made.embed(x, rw.Positions(torch.tensor(position)))
    with pytest.raises(rw.ShapeError, match="width 16"):
        made.embed(torch.zeros(1, 2, 8))


# ---- theory ----------------------------------------------------------------------------------------------------------


def test_report_of_sinusoids():
    n, d = 50, 8
    p = codes(rw.Sinusoidal(d), n, d)
    report = code_report(p)
    close(p.square().sum(-1), torch.full((n,), d / 2))
    freq = rw.geometric(d).tensor()
    far = torch.arange(n).double()[:, None] - torch.arange(n)
    gram = (freq * far[..., None]).cos().sum(-1)
    close(p @ p.t(), gram)
    assert report.max_norm == pytest.approx(math.sqrt(d / 2))
    assert report.coherence == pytest.approx((gram.abs() - 99 * torch.eye(n)).max().item() / (d / 2))
    nearest = (gram - 99 * torch.eye(n)).max().item()
    assert report.min_distance == pytest.approx(math.sqrt(d - 2 * nearest))
    assert report.information == pytest.approx(torch.logdet(torch.eye(n) + p @ p.t()).item() / 2)
    assert report.condition == pytest.approx(torch.linalg.cond(p.t() @ p).item(), rel=1e-3)


def test_report_of_an_orthonormal_basis():
    report = code_report(wavelet_basis(16, 16), parameters=7)
    assert (report.positions, report.width, report.parameters, report.rank) == (16, 16, 7, 16)
    assert report.condition == pytest.approx(1)
    assert report.coherence < 1e-12
    assert report.min_distance == pytest.approx(math.sqrt(2))
    assert report.max_norm == pytest.approx(1)


def test_report_of_degenerate_codes():
    one = code_report(torch.ones(1, 3))
    assert (one.coherence, one.min_distance, one.rank, one.condition) == (None, None, 1, math.inf)
    none = code_report(torch.zeros(4, 2))
    assert (none.coherence, none.min_distance, none.rank, none.condition) == (None, 0.0, 0, math.inf)
    for bad in (torch.ones(3), torch.ones(0, 2), torch.tensor([[math.nan]])):
        with pytest.raises(rw.ShapeError, match="finite numbers"):
            code_report(bad)


@pytest.mark.parametrize("make", [rw.Sinusoidal, rw.Legendre, lambda d: rw.SquareWaves(d, 64)])
def test_rademacher_is_below_its_bound(make):
    p = codes(make(16), 64, 16)
    sampled, bound = rademacher(p, 2.0)
    assert 0 < sampled <= bound
    assert rademacher(p, 2.0) == (sampled, bound)
    assert rademacher(p, 4.0)[1] == pytest.approx(2 * bound)
    # all signs of a small table
    few = p[:6]
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 6)
    exact = (signs @ few).norm(dim=-1).mean().item() / 6
    assert rademacher(few, 1.0, draws=20_000)[0] == pytest.approx(exact, rel=0.02)
    with pytest.raises(rw.ConfigError):
        rademacher(p, 0)


def test_polynomials_are_fitted_exactly():
    n = 64
    t = torch.linspace(-1, 1, n, dtype=torch.float64)
    p = codes(rw.Legendre(8), n, 8)
    target = (t[:, None] ** torch.arange(8) * random(8)).sum(-1)
    assert approximation_error(p, target) < 1e-12
    assert approximation_error(p, t**8) > 1e-3
    assert approximation_error(codes(rw.Sinusoidal(8), n, 8), target) > 1e-2
    by_hand = (t**8 - p @ torch.linalg.lstsq(p, (t**8)[:, None]).solution[:, 0]).norm()
    assert approximation_error(p, t**8) == pytest.approx(by_hand.item())
    assert approximation_error(torch.zeros(n, 3), target) == pytest.approx(target.norm().item())
    with pytest.raises(rw.ShapeError, match="64 positions"):
        approximation_error(p, target[:3])


@pytest.mark.parametrize("length", [16, 200])
def test_alibi_keeps_to_its_tail(length):
    bound = 0.7
    p = problem(b=3, h=4, s=length, d=6)
    raw = p.q @ p.k.transpose(-1, -2) * 6**-0.5
    p = p.replace(q=p.q * bound / raw.abs().max())  # content logits within [−bound, bound]
    weights = rw.attend(rw.ALiBi(4)(p), "dense", return_weights=True)[1]
    far = torch.arange(length)[:, None] - torch.arange(length)
    for h, slope in enumerate((2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8)):
        for distance in (0, 3, 30, 150):
            mass = (weights[:, h] * (far > distance)).sum(-1).max().item()
            assert mass <= alibi_tail(slope, distance, bound)
    # Every key but the nearest as likely as can be, over many keys: the bound is all but reached.
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.full((1, 1, 4000, 1), 10.0, dtype=torch.float64)
    k[:, :, -1:] = -10.0
    flat = rw.Attention(q, k, k, scale=1.0)
    far = rw.attend(rw.ALiBi(slopes=[5.0])(flat), "dense", return_weights=True)[1][..., :-1]
    assert far.sum().item() <= alibi_tail(5.0, 0, 10.0)
    with pytest.raises(rw.ConfigError):
        alibi_tail(0.0, 3, 1.0)


def test_codes_reach_attention():
    p = problem(s=9)
    w = random(8, 3 * 8, seed=5)
    x = rw.Legendre(8).embed(torch.zeros(1, 9, 8, dtype=torch.float64))
    q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (x @ w).chunk(3, -1))
    out = attend(rw.Legendre(8), rw.Attention(q, k, v))
    close(out, ((q @ k.transpose(-1, -2) / 2).masked_fill(~triangle(9), -torch.inf).softmax(-1)) @ v)
    differ(out[:, :, 1:], out[:, :, :-1])
    close(attend(rw.Legendre(8), p), attend(rw.NoPE(), p))
