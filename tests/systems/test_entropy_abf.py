"""Entropy-aware ABF (arXiv 2401.07004)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.analysis.entropy import entropy_by_position
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.frequencies import geometric
from ropewalk.rotary.entropy_abf import LogLengthScale, entropy_abf

CASE = golden("081")["eabf_4096"]


def test_golden():
    c, out = CASE.params, CASE.outputs
    at = torch.tensor(c["positions"])
    made = entropy_abf(c["head_dim"], c["pretrain_len"], c["base"])
    q, k = CASE.inputs["q"], CASE.inputs["k"]
    for layer, name in (
        (0, "q_first2_layers"),
        (1, "q_first2_layers"),
        (2, "q_scaled_layers"),
        (31, "q_scaled_layers"),
    ):
        got_q, got_k = made.layer(layer).rotate(q, k, at)
        close(got_q, out[name], 1e-7)  # the factor came from float32
        close(got_k, out["k_scaled_layers"], DOUBLE)
    close(LogLengthScale(4096).factors(at.double()), out["scale"], DOUBLE)


def test_within_the_training_length_nothing_changes():
    p = problem(s=9)
    made = entropy_abf(8, 9, base=10_000.0, exempt_layers=0)
    assert torch.equal(attend(made, p), attend(rw.RoPE(8, pairing="half"), p))
    differ(attend(entropy_abf(8, 4, base=10_000.0, exempt_layers=0), p), attend(rw.RoPE(8, pairing="half"), p))


@pytest.mark.parametrize("length", [2, 7, 64, 100, 4096, 8191, 100_000])
def test_factors(length):
    scale = LogLengthScale(length)
    got = scale.factors(torch.arange(3 * length, dtype=torch.float64))
    assert got[length - 1] == 1.0
    assert bool((got.diff() >= 0).all())
    assert torch.equal(got > 1, torch.arange(3 * length) + 1 > length)
    loose = LogLengthScale(length, lower_bound=False).factors(torch.arange(length, dtype=torch.float64))
    assert loose[0] == 0
    assert bool((loose[1:-1] < 1).all())
    assert bool(scale.factors(torch.tensor([-5.0, -1.0])).eq(1).all())


def test_factor_is_a_temperature_of_the_row():
    p = problem(s=9)
    made = entropy_abf(8, 4, exempt_layers=0)
    plain = logits(rw.RoPE(8, 500_000.0, "half")(p))
    scale = LogLengthScale(4).factors(torch.arange(9.0, dtype=torch.float64))
    close(logits(made(p)), scale[:, None] * plain, 1e-12)
    k = made.rotate(p.q, p.k)[1]
    assert torch.equal(k, rw.RoPE(8, 500_000.0, "half").rotate(p.q, p.k)[1])


def test_exempt_layers():
    layers = rw.PerLayer(entropy_abf(8, 4), 4)
    p = problem(s=9)
    plain, scaled = attend(rw.RoPE(8, 500_000.0, "half"), p), attend(entropy_abf(8, 4, exempt_layers=0), p)
    differ(plain, scaled)
    for i, layer in enumerate(layers):
        close(attend(layer, p), plain if i < 2 else scaled)


def test_decoding_and_documents():
    p, made = problem(s=9), entropy_abf(8, 3, exempt_layers=0)
    close(decoded(made, p, 4), attend(made, p), 1e-12)
    packed = p.replace(positions=rw.Positions.arange(9, document_ids=torch.tensor([[0] * 4 + [1] * 5])))
    alone = rw.Attention(p.q[:, :, 4:], p.k[:, :, 4:], p.v[:, :, 4:])
    close(attend(made, packed)[:, :, 4:], attend(made, alone), 1e-12)


def test_with_any_schedule():
    p, spectrum = problem(s=9), geometric(8).linear(4.0)
    both = rw.Sequential(rw.RoPE(spectrum=spectrum, pairing="half"), LogLengthScale(4))
    close(attend(both, p), attend(entropy_abf(8, 4, spectrum=spectrum, exempt_layers=0), p))


def entropy(scores):
    weights = scores.softmax(-1)
    return -(weights * weights.clamp(min=1e-300).log()).sum(-1)


def test_entropy_grows_less_with_length():
    z = random(200, 4096)
    assert bool((entropy(1.3 * z) <= entropy(z) + 1e-12).all())
    plain, scaled = [], []
    for n in (64, 1024, 4096):
        factor = float(LogLengthScale(64).factors(torch.tensor(n - 1.0, dtype=torch.float64)))
        plain.append(float(entropy(z[:, :n]).mean()))
        scaled.append(float(entropy(factor * z[:, :n]).mean()))
    assert scaled[0] == plain[0]
    assert scaled[-1] - scaled[0] < plain[-1] - plain[0]


def test_entropy_by_position():
    p = problem(s=12)
    weights = rw.attend(rw.RoPE(8)(p), backend="dense", return_weights=True)[1]
    got = entropy_by_position(weights, [0, 4, 8, 12])
    each = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
    close(got[:, 1], each[:, :, 4:8].mean((0, 2)))
    assert bool((got.diff() > 0).all())
    sharper = rw.attend(entropy_abf(8, 3, base=1e4, exempt_layers=0)(p), backend="dense", return_weights=True)[1]
    assert bool((entropy_by_position(sharper, [4, 12]) < entropy_by_position(weights, [4, 12])).any())
    with pytest.raises(ConfigError, match="rising"):
        entropy_by_position(weights, [4, 4])
    with pytest.raises(ConfigError, match="to 12"):
        entropy_by_position(weights, [0, 13])
    with pytest.raises(ShapeError):
        entropy_by_position(weights[0], [0, 4])


@pytest.mark.parametrize(
    "call",
    [
        lambda: LogLengthScale(1),
        lambda: LogLengthScale(math.nan),
        lambda: LogLengthScale(-4),
        lambda: LogLengthScale(8, exempt_layers=-1),
        lambda: entropy_abf(8, 4, base=0.0),
    ],
)
def test_what_cannot_be(call):
    with pytest.raises(ConfigError):
        call()
