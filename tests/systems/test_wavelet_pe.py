"""Wavelet position encoding (arXiv 2502.02004), and RoPE and ALiBi seen as wavelets and windows."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, added, attend, close, decoded, differ, golden, logits, parse, problem, random, triangle

import ropewalk as rw
from ropewalk.analysis.windows import rotation_by_wavelets, window_sizes

CASE = golden("019")["ricker_T6_d8_s4"]
H, T, D, S = (CASE.params[name] for name in ("H", "T", "d", "s"))


def golden_problem():
    # The first formula gives the shape by letters, the others leave it out.
    q, k, v = (parse(f"{CASE.inputs[n].split(' (')[0]} (1,{H},{T},{D})") for n in "qkv")
    return rw.Attention(q.double(), k.double(), v.double())


def direct(made, p):
    """q_i·p(i − j) for every pair, from a table (S, S, d)."""
    where = p.located().where
    i, j = where.query.coordinates()[0], where.key.coordinates()[0]
    return torch.einsum("bhid,ijd->bhij", p.q, made.wavelets(i[:, None] - j)) * p.logit_scale


# ---- golden values ---------------------------------------------------------------------------------------------------


def test_golden():
    made = rw.WaveletPE(D, num_scales=S, scale_exponents=CASE.params["scale_exponents"])
    close(made.wavelets(torch.arange(T)), CASE.outputs["p_table_by_distance"], DOUBLE)
    p = golden_problem()
    close(logits(made(p)), CASE.outputs["logits"], DOUBLE)  # unmasked: keys after the query too
    close(attend(made, p), CASE.outputs["attn_out_causal"], DOUBLE)


# ---- the wavelets ----------------------------------------------------------------------------------------------------


def test_ricker_peaks_at_its_shift_and_integrates_to_nothing():
    made = rw.WaveletPE(16)
    for c, (_, shift) in enumerate(made.channels):
        assert made.wavelets(torch.tensor(shift))[c] == 1
    for c, (scale, shift) in enumerate(made.channels):
        at = torch.tensor([-1.0, 1.0, math.sqrt(3), -math.sqrt(3)], dtype=torch.float64) * scale + shift
        want = torch.tensor([0, 0, -2 * math.exp(-1.5), -2 * math.exp(-1.5)], dtype=torch.float64)
        close(made.wavelets(at)[:, c], want)
        t = torch.linspace(-12 * scale + shift, 12 * scale + shift, 4001, dtype=torch.float64)
        assert abs(torch.trapezoid(made.wavelets(t)[:, c], t)) < 1e-9 * scale


def test_beyond_the_widest_wavelet_there_is_nothing():
    made = rw.WaveletPE(16, num_scales=4)
    far = math.ceil(4.5 * 2**3 + 16 / 4)
    assert made.wavelets(torch.arange(far, far + 500)).abs().max() < 1e-3
    assert made.wavelets(torch.arange(far - 20)).abs().amax(0).min() > 0.4
    least, most = made.reach
    assert made.wavelets(torch.tensor([least, most, least - 99.0, most + 99.0])).abs().max() < 1e-18


def test_one_scale_lives_near_the_query():
    made = rw.WaveletPE(16, scale_exponents=(0,))
    assert [shift for _, shift in made.channels] == list(range(16))
    assert made.wavelets(torch.arange(16 + 4, 200)).abs().max() < 1e-3  # the last shift is 15
    assert made.wavelets(torch.arange(16 + 6, 200)).abs().max() < 1e-8


@pytest.mark.parametrize(
    ("wavelet", "values"),
    [
        ("gaussian", [math.exp(-1), math.exp(-0.25), 1.0, math.exp(-0.25)]),
        ("haar", [-1.0, 1.0, 0.0, 0.0]),
        ("morlet", [math.exp(-1) * math.cos(2), math.exp(-0.25) * math.cos(1), 1.0, math.exp(-0.25) * math.cos(1)]),
    ],
)
def test_other_wavelets(wavelet, values):
    made = rw.WaveletPE(1, wavelet=wavelet, scale_exponents=(1,), shifts=(3,))
    at = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)  # x = −1, −½, 0, ½
    close(made.wavelets(at)[:, 0], torch.tensor(values, dtype=torch.float64))
    flipped = rw.WaveletPE(1, wavelet=wavelet, scale_exponents=(1,), shifts=(3,), flip=True)
    close(flipped.wavelets(6 - at), made.wavelets(at))


def test_the_paper_layout():
    made = rw.WaveletPE(128)
    assert made.channels == tuple((2.0**e, float(b)) for e in range(8) for b in range(16))
    assert rw.WaveletPE(128, scale_exponents=range(2, 10)).channels[-1] == (512.0, 15.0)
    assert rw.WaveletPE(20).channels[-1] == (16.0, 3.0)  # 5 is the largest divisor of 20 up to 8


# ---- the term --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wavelet", ["ricker", "gaussian", "haar", "morlet"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_term_is_q_times_the_wavelets_of_the_distance(wavelet, causal):
    p = problem(s=23, causal=causal)
    made = rw.WaveletPE(8, wavelet=wavelet)
    close(added(made, p), direct(made, p))
    far = p.replace(positions=rw.Positions(torch.arange(23) * 700))  # beyond the reach of the matrix
    close(added(made, far), direct(made, far))
    differ(added(made, far), added(made, p))


def test_real_positions():
    p = problem(s=23)
    real = p.replace(positions=rw.Positions(torch.linspace(0, 40, 23, dtype=torch.float64).square() / 40))
    made = rw.WaveletPE(8)
    close(added(made, real), direct(made, real))
    whole = p.replace(positions=rw.Positions(torch.arange(23, dtype=torch.float64)))
    close(added(made, whole), added(made, p))
    scaled = rw.Sequential(rw.Scale(4.0), made)
    quarter = p.replace(positions=rw.Positions(torch.arange(23) / 4))
    close(attend(scaled, p), attend(made, quarter))


def test_linear_in_the_query_and_of_distances_only():
    p, made = problem(s=11), rw.WaveletPE(8)
    assert added(made, p.replace(q=0 * p.q)).abs().max() == 0
    close(added(made, p.replace(q=3 * p.q)), 3 * added(made, p))
    moved = p.replace(positions=rw.Positions(torch.arange(11) + 10**6))
    close(added(made, moved), added(made, p))
    close(added(made, p.replace(scale=0.5)), added(made, p) * 0.5 * 8**0.5)


def test_the_query_is_read_before_it_is_turned():
    p, made = problem(s=11), rw.WaveletPE(8)
    close(logits(rw.Sequential(rw.RoPE(8), made)(p)), logits(rw.RoPE(8)(p)) + added(made, p))


@pytest.mark.parametrize("sizes", [(), (4,), (2, 9)])
def test_decoding_is_the_full_pass(sizes):
    p = problem(s=17, kv=2)
    for made in (rw.WaveletPE(8), rw.Sequential(rw.RoPE(8), rw.WaveletPE(8))):
        close(decoded(made, p, *sizes), attend(made, p))


def test_far_attention_is_not_discounted():
    p = rw.Attention(*[torch.zeros(1, 8, 512, 128, dtype=torch.float64)] * 3)
    p = p.replace(q=p.q + 0.3 * random(1, 8, 512, 128))

    def sizes(encoding):
        return window_sizes(rw.attend(encoding(p), "dense", return_weights=True)[1])[0]

    assert (sizes(rw.WaveletPE()) > 500).all()
    assert sizes(rw.ALiBi(8))[:4].tolist() == [11, 21, 38, 65]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 12, "num_scales": 5}, "5 scales"),
        ({"head_dim": 8, "num_scales": 3, "scale_exponents": (0, 1)}, "2 scale_exponents for num_scales=3"),
        ({"head_dim": 8, "wavelet": "rickr"}, "Did you mean 'ricker'"),
        ({"head_dim": 8, "num_scales": 2, "shifts": (0, 1, 2)}, "3 shifts"),
        ({"head_dim": 8, "scale_exponents": ()}, "at least one"),
        ({"head_dim": 8, "scale_exponents": (0, math.nan)}, "finite"),
        ({"head_dim": 4, "shifts": (0, 1, 2, 3, 4)}, "5 shifts"),
        ({"head_dim": 0}, "head_dim"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(rw.ConfigError, match=message):
        rw.WaveletPE(**options)


def test_another_width_is_refused():
    with pytest.raises(rw.ShapeError, match="head_dim 16"):
        rw.WaveletPE(16)(problem())
    with pytest.raises(rw.PositionError):
        rw.WaveletPE(8)(problem(positions=rw.Positions(torch.zeros(1, 7, 2))))


# ---- RoPE as wavelets, ALiBi as windows ------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 7.5])
def test_rope_is_a_transform_by_wavelets_of_one_size(position):
    spectrum = rw.geometric(8).tensor()
    matrix = rotation_by_wavelets(position, spectrum)
    x = random(1, 1, 1, 8)
    turned, _ = rw.RoPE(8).rotate(x, x, torch.tensor([[position]], dtype=torch.float64))
    close(matrix @ x[0, 0, 0], turned[0, 0, 0])
    assert ((matrix != 0).sum(-1) <= 2).all()  # a support of two cells


def test_alibi_is_a_window_that_grows_as_the_slope_falls():
    flat = torch.zeros(1, 8, 2048, 4)
    p = rw.Attention(flat[:, :, -1:], flat, flat)
    weights = rw.attend(rw.ALiBi(8)(p), "dense", return_weights=True)[1]
    sizes = window_sizes(weights)[0].tolist()
    for h, size in enumerate(sizes[:6]):  # e^(−mt) (1 − e^(−m)) of a long sequence
        m = 2.0 ** -(h + 1)
        assert size == math.floor((math.log(1000) + math.log(-math.expm1(-m))) / m)
    assert sizes[:6] == sorted(sizes[:6])
    assert window_sizes(torch.zeros(3, 5)).item() == -1
    assert window_sizes(torch.eye(4)[None].repeat(2, 1, 1)).tolist() == [0, 0]
    assert window_sizes(torch.ones(4, 4)).item() == 3  # keys after the query do not count
    with pytest.raises(rw.ShapeError):
        window_sizes(torch.ones(4, 3))
    with pytest.raises(rw.ConfigError):
        window_sizes(torch.ones(4, 4), 0)
    with pytest.raises(rw.ShapeError):
        rotation_by_wavelets(1.0, torch.ones(2, 2))


def test_triangle_is_what_is_seen():
    p, made = problem(s=11), rw.WaveletPE(8)
    close(attend(made, p), logits(made(p)).masked_fill(~triangle(11), -torch.inf).softmax(-1) @ p.v)
