"""Dynamic NTK and LongRoPE as encodings whose frequencies follow the length."""

from __future__ import annotations

import math

import pytest
import torch
from reference import attend, close, decoded, differ, logits, problem, random

import ropewalk as rw
from ropewalk import testing
from ropewalk.core.errors import CannotCompose, ConfigError, ShapeError
from ropewalk.frequencies import geometric, longrope_attention_factor
from ropewalk.rotary.dynamic_ntk import DynamicNTK
from ropewalk.rotary.longrope import LongRoPE

SHORT, LONG = [1.0, 1.0, 1.5, 2.0], [1.0, 3.0, 5.0, 8.0]


def dynamic(**options):
    return DynamicNTK(8, original=4, factor=2.0, **options)


def long(**options):
    return LongRoPE(8, 4, short=SHORT, long=LONG, attention_factor=1.2, **options)


def of_length(made, n):
    """Return the RoPE that an implementation makes for n tokens."""
    if isinstance(made, DynamicNTK):
        spectrum = geometric(8).dynamic_ntk(n, 4, factor=2.0)
    else:
        spectrum = geometric(8).longrope_at(n, 4, short=SHORT, long=LONG, attention_factor=1.2)
    return rw.RoPE(pairing=made.pairing, spectrum=spectrum)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("make", [dynamic, long])
def test_last_token_is_as_published_at_every_length(make, pairing):
    made = make(pairing=pairing)
    p = problem(s=9, kv=2)
    for n in range(1, 10):
        part = rw.Attention(p.q[:, :, :n], p.k[:, :, :n], p.v[:, :, :n])
        close(logits(made(part))[:, :, -1], logits(of_length(made, n)(part))[:, :, -1], 1e-12)
    differ(logits(of_length(made, 9)(p)), logits(of_length(made, 4)(p)))


@pytest.mark.parametrize("make", [dynamic, long])
def test_decoding_and_chunks_across_the_threshold(make):
    p, made = problem(s=11, kv=2), make()
    whole = attend(made, p)
    for sizes in ((), (3,), (4,), (5,), (2, 7), (6, 3)):
        close(decoded(made, p, *sizes), whole, 1e-12)


@pytest.mark.parametrize("make", [dynamic, long])
def test_keys_that_stay_as_they_were_turned_are_another_thing(make):
    # What a cache of turned keys holds: each turned by the frequencies of the length at which it came.
    made, p = make(), problem(s=9)
    turned = [of_length(made, n).rotate(p.q[:, :, :n], p.k[:, :, :n])[1][:, :, -1:] for n in range(1, 10)]
    last = of_length(made, 9).rotate(p.q, p.k)[0][:, :, -1:]
    stale = last @ torch.cat(turned, 2).transpose(-1, -2) * 8**-0.5
    differ(stale, logits(made(p))[:, :, -1:])


@pytest.mark.parametrize("make", [dynamic, long])
def test_up_to_the_original_length_it_is_rope(make):
    p, made = problem(s=4), make()
    close(attend(made, p), attend(of_length(made, 4), p), 1e-12)


@pytest.mark.parametrize("make", [dynamic, long])
def test_a_request_depends_on_itself_alone(make):
    made = make()
    short, far = problem(s=3), problem(s=40, seed=9)
    before = attend(made, short)
    attend(made, far)
    assert torch.equal(attend(made, short), before)
    # A short row beside a longer one.
    valid = torch.tensor([[True] * 9, [False] * 6 + [True] * 3])
    both = problem(s=9, positions=rw.Positions.arange(9, valid=valid))
    alone = rw.Attention(both.q[1:, :, 6:], both.k[1:, :, 6:], both.v[1:, :, 6:])
    close(attend(made, both)[1:, :, 6:], attend(made, alone), 1e-12)


@pytest.mark.parametrize(
    "check", ["decoding", "decoding_padded", "packing", "padding", "batch", "nothing_captured", "stored"]
)
@pytest.mark.parametrize("make", ["dynamic", "long"])
def test_contract_beyond_the_threshold(make, check):
    def factory(head_dim):
        return DynamicNTK(head_dim, original=3) if make == "dynamic" else LongRoPE(head_dim, original=3)

    testing.check_encoding(factory, checks=[check])


@pytest.mark.parametrize("make", [dynamic, long])
def test_gradients_and_precision(make):
    made = make()
    q, k, v = (random(1, 2, 7, 8, seed=i).requires_grad_() for i in range(3))
    assert torch.autograd.gradcheck(lambda *x: rw.attend(made(rw.Attention(*x)), backend="dense"), (q, k, v))
    low = made.to(torch.bfloat16)
    assert low.inv_freq.dtype == torch.float64
    p = problem(s=7)
    close(attend(low, p), attend(make(), p), 1e-15)


def test_all_pairs_form_is_the_same():
    # Compiled, every query goes the way of those beyond the threshold.
    made, p = dynamic(), problem(s=9)
    want = logits(made(p))
    made._within = lambda i: 0
    close(logits(made(p)), want, 1e-12)


def test_part_of_the_head():
    spectrum = geometric(8)
    made = DynamicNTK(12, original=4, factor=2.0, spectrum=spectrum)
    p = problem(s=9, d=12)
    rope = rw.RoPE(12, pairing="half", spectrum=spectrum.dynamic_ntk(9, 4, factor=2.0))
    close(logits(made(p))[:, :, -1], logits(rope(p))[:, :, -1], 1e-12)


def test_composes_with_a_bias():
    p = problem(s=9)
    both = rw.Sequential(dynamic(), rw.ALiBi(4))
    close(logits(both(p)) - logits(dynamic()(p)), logits(rw.ALiBi(4)(p)) - logits(p), 1e-11)
    close(decoded(both, p, 3), attend(both, p), 1e-12)
    with pytest.raises(CannotCompose):
        attend(rw.Sequential(dynamic(), dynamic()), p)


def test_defaults_of_longrope():
    made = LongRoPE(8, 100, 8.0)
    assert made.spectrum.inv_freq == geometric(8).inv_freq
    assert made.spectrum.attention_factor == longrope_attention_factor(8.0, 100)
    torch.testing.assert_close(made.beyond.tensor(), geometric(8).ntk(8.0).tensor())


@pytest.mark.parametrize(
    "call",
    [
        lambda: DynamicNTK(8, original=0),
        lambda: DynamicNTK(8, factor=0.5),
        lambda: DynamicNTK(7),
        lambda: DynamicNTK(8, pairing="both"),
        lambda: DynamicNTK(8, original=math.nan),
        lambda: DynamicNTK(6, spectrum=geometric(8)),
        lambda: LongRoPE(8, short=[1.0]),
        lambda: LongRoPE(8, long=[0.0] * 4),
    ],
)
def test_what_cannot_be(call):
    with pytest.raises(ConfigError):
        call()


def test_other_widths():
    with pytest.raises(ShapeError, match="head_dim 8"):
        attend(dynamic(), problem(d=10))
