"""HoPE, high-frequency rotary position encoding (arXiv 2410.21216)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, golden, logits, problem, random
from sine_cases import check_rotation

import ropewalk as rw
from ropewalk.analysis.pairs import activated_pairs, attention_by_position, contributions
from ropewalk.frequencies import geometric, high_frequency, p_rope, waveform

CASES = golden("025")


def kept(width, length, base=10_000.0, **options):
    return sum(w != 0 for w in high_frequency(geometric(width, base), length, **options).inv_freq)


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    c = case.params
    made = rw.HoPEHighFrequency(c["D"], train_length=c["train_length"], base=c["base"])
    close(made.inv_freq, case.outputs["inv_freq"], DOUBLE)
    assert int((made.inv_freq != 0).sum()) == case.outputs["n_kept"]
    check_rotation(case, made)
    at = case.outputs["curve_distances"]
    close(waveform(geometric(c["D"], c["base"]), at), case.outputs["g_rope"], DOUBLE)
    close(waveform(made.frequencies(c["D"]), at), case.outputs["g_hope"], DOUBLE)


@pytest.mark.parametrize(("width", "length", "pairs"), [(64, 512, 16), (64, 4096, 23), (16, 512, 4)])
def test_known_counts(width, length, pairs):
    assert kept(width, length) == pairs


def test_closed_form_of_the_count():
    for width in (2, 8, 16, 64, 128):
        for base in (500.0, 10_000.0, 5e5):
            for length in (*range(1, 40), 100, 511, 512, 4096, 131_072, 10**7):
                r = math.floor(width * math.log(length / (2 * math.pi)) / (2 * math.log(base))) + 1
                assert kept(width, length, base, keep_one=False) == min(max(r, 0), width // 2)
                assert kept(width, length, base) == max(1, min(r, width // 2))


def test_what_is_kept_is_a_prefix():
    for length in (7, 50, 700, 10_000):
        spectrum = high_frequency(geometric(64), length)
        r = kept(64, length)
        assert spectrum.inv_freq == geometric(64).inv_freq[:r] + (0.0,) * (32 - r)
        assert spectrum.inv_freq == p_rope(geometric(64), (r + 0.5) / 32).inv_freq  # p-RoPE with as many pairs
        assert all(w * length >= 2 * math.pi for w in spectrum.inv_freq[:r])  # every phase was seen in training


def test_ends_are_rope_and_nope():
    p = problem(d=16)
    far, near = rw.HoPEHighFrequency(train_length=1e9), rw.HoPEHighFrequency(train_length=6, keep_one=False)
    for got, want in zip(far.rotate(p.q, p.k), rw.RoPE(16, pairing="half").rotate(p.q, p.k), strict=True):
        assert torch.equal(got, want)
    assert all(torch.equal(a, b) for a, b in zip(near.rotate(p.q, p.k), (p.q, p.k), strict=True))
    one = rw.HoPEHighFrequency(16, train_length=6)
    assert one.inv_freq.tolist() == [1.0] + [0.0] * 7
    assert high_frequency(rw.Spectrum(()), 512).inv_freq == ()


def test_no_decay_far_away():
    length, r = 512, kept(64, 512)
    hope, rope = high_frequency(geometric(64), length), geometric(64)
    at = torch.arange(8 * length)
    g = waveform(hope, at)
    assert g[0] == 32
    assert (g[1:] < 32).all()
    assert (g >= 32 - 2 * r).all()
    assert abs(g[length : 4 * length].mean() - (32 - r)) < 0.5
    assert abs(g[4 * length :].mean() - g[length : 4 * length].mean()) < 0.1
    other = waveform(rope, at)
    assert abs(other[4 * length :].mean() - other[length : 4 * length].mean()) > 1  # RoPE's keeps moving


def test_interleaved_pairs():
    p = problem(d=16)
    made = rw.HoPEHighFrequency(16, train_length=512, pairing="interleaved")
    whole = rw.RoPE(16, spectrum=high_frequency(geometric(16), 512))
    assert len(made.inv_freq) == 4
    close(made.rotate(p.q, p.k)[0], whole.rotate(p.q, p.k)[0], 1e-15)


def test_relative_and_decodes():
    p, made = problem(d=16, kv=2), rw.HoPEHighFrequency(train_length=20)
    at = torch.tensor([0, 3, 3, 11, 5, 40, 2])
    want = logits(made(p.replace(positions=rw.Positions(at))))
    close(logits(made(p.replace(positions=rw.Positions(at + 1234)))), want, 1e-11)
    differ(want, logits(made(p)))
    close(decoded(made, p, 2), attend(made, p))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_length": 0}, "positive"),
        ({"train_length": -4}, "-4"),
        ({"train_length": math.nan}, "nan"),
        ({"train_length": math.inf}, "inf"),
        ({"train_length": 512, "head_dim": 7}, "even"),
    ],
)
def test_errors(options, message):
    with pytest.raises(rw.ConfigError, match=message):
        rw.HoPEHighFrequency(**options)


# ---- analysis --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_contributions_add_up_to_the_mean_logit(pairing):
    p = problem(d=8, kv=2, s=9, scale=1.0)
    spectrum = geometric(8)
    got = contributions(p.q, p.k, spectrum, pairing)
    assert got.shape == (4, 4, 9)
    whole = logits(rw.RoPE(spectrum=spectrum, pairing=pairing)(p)).mean(0)
    want = torch.stack([whole.diagonal(-m, 1, 2).mean(-1) for m in range(9)], -1)
    close(got.sum(1), want)
    first = rw.RoPE(spectrum=spectrum, pairing=pairing)
    mine = [0, 4] if pairing == "half" else [0, 1]
    only = torch.zeros(8, dtype=torch.float64)
    only[mine] = 1.0
    alone = logits(first(p.replace(q=p.q * only))).mean(0)
    close(got[:, 0], torch.stack([alone.diagonal(-m, 1, 2).mean(-1) for m in range(9)], -1))


def test_activated_pairs_are_found():
    m = torch.arange(400, dtype=torch.float64)
    curves = torch.stack([0.1 * (m * 1.0).cos(), (m * 2 * math.pi / 300).cos(), 0.3 * (m * 1e-4).cos()])[None]
    assert activated_pairs(curves, 2).tolist() == [[1, 0]]
    assert activated_pairs(curves, 1, train_length=20).tolist() == [[0]]  # the slow one has hardly begun
    with pytest.raises(rw.ConfigError, match="4"):
        activated_pairs(curves, 4)
    with pytest.raises(rw.ShapeError, match="frequencies"):
        contributions(random(1, 2, 3, 8), random(1, 2, 3, 8), geometric(6))


def test_attention_by_position():
    p = problem()
    weights = rw.attend(rw.RoPE(8)(p), backend="dense", return_weights=True)[1]
    close(attention_by_position(weights), weights[:, :, -1].mean(0))
    close(attention_by_position(weights, 3), weights[:, :, 4:].mean((0, 2)))
    with pytest.raises(rw.ShapeError, match="last=8"):
        attention_by_position(weights, 8)
