"""The baselines of "The Impact of Positional Encoding on Length Generalization" (arXiv 2305.19466)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import (
    DOUBLE,
    SINGLE,
    added,
    attend,
    close,
    decoded,
    differ,
    golden,
    heads_first,
    logits,
    problem,
    random,
    triangle,
)

import ropewalk as rw

BASE = golden("045")["base"]
ROTARY = BASE.params["rotary_dim"]


def rotary():
    return rw.Partial(rw.RoPE(ROTARY), ROTARY)


def base_problem(**fields):
    q, k = (heads_first(BASE.inputs[n]) for n in "qk")
    return rw.Attention(q, k, k, scale=1.0, **fields)


# ---- golden values ---------------------------------------------------------------------------------------------------


def test_golden_partial_rotary():
    p = base_problem()
    q, k = rotary().rotate(p.q, p.k)
    close(q, BASE.outputs["rotary_q"], SINGLE)
    close(k, BASE.outputs["rotary_k"], SINGLE)
    close(logits(rotary()(p)), BASE.outputs["rotary_scores_unscaled"], SINGLE)


def test_golden_alibi_key_form():
    want = BASE.outputs["alibi_key_form"]
    h, n = want.shape
    got = added(rw.ALiBi(h), base_problem())[0]
    i = torch.arange(n, dtype=torch.float64)
    slope = want[:, 1:2]
    close(got + slope[..., None] * i[:, None], want[:, None].expand(h, n, n), DOUBLE)  # a constant a row apart


def test_golden_sinusoid():
    want = BASE.outputs["sinusoid"]
    n, d = want.shape
    close(rw.Sinusoidal(d, layout="halves").table(torch.arange(n).double()), want, DOUBLE)
    x = random(2, n, d)
    close(rw.Sinusoidal(d, layout="halves").embed(x), x + want, DOUBLE)


def test_golden_t5_buckets():
    want = BASE.outputs["t5_bucket_of_distance_0_to_140"]
    t5 = rw.T5(4)
    assert t5.bucket(torch.arange(141).double()).long().tolist() == want.tolist()
    t5.weight.data = torch.arange(32 * 4.0).reshape(32, 4)  # the bucket can be read off the bias
    p = problem(b=1, s=141, d=2)
    got = added(t5, p.replace(q=p.q * 0))[0]
    i = torch.arange(141)
    distance = (i[:, None] - i).clamp(min=0)
    assert ((got / 4).floor().long() == want[distance]).all()
    assert ((got % 4).round().long() == torch.arange(4)[:, None, None]).all()


@pytest.mark.parametrize(("name", "encoding"), [("probs_rotary", rotary), ("probs_nope", rw.NoPE)])
def test_golden_probabilities(name, encoding):
    _, weights = rw.attend(encoding()(base_problem()), return_weights=True)
    close(weights, BASE.outputs[name], SINGLE, where=triangle(weights.shape[-1]))
    assert not weights[..., ~triangle(weights.shape[-1])].any()


# ---- the constructions of the paper ----------------------------------------------------------------------------------


def test_t1_absolute_position_from_the_causal_mask_alone():
    n = 37
    q, k = torch.zeros(2, 3, n, 4, dtype=torch.float64), random(2, 3, n, 4)  # uniform attention
    v = torch.zeros(2, 3, n, 1, dtype=torch.float64)
    v[:, :, 0] = 1.0  # BOS
    out = rw.attend(rw.NoPE()(rw.Attention(q, k, v)))[..., 0]
    t = torch.arange(1, n + 1).double()
    close(out, (1 / t).expand_as(out), 1e-12)
    close(1 / out, t.expand_as(out), 1e-12)


def test_t2_relative_position_from_the_state_alone():
    slopes = (0.5, 0.25, 0.7)
    content = problem(h=3, s=9, d=5, scale=1.0)
    t = torch.arange(9.0, dtype=torch.float64)[:, None].expand(2, 3, 9, 1)
    c = torch.tensor(slopes, dtype=torch.float64)[None, :, None, None].expand_as(t)
    q = torch.cat([content.q, t, torch.ones_like(t)], -1)
    k = torch.cat([content.k, -c, c * t], -1)
    built = rw.Attention(q, k, content.v, scale=1.0)
    close(logits(rw.NoPE()(built)), logits(rw.ALiBi(slopes=slopes)(content)), 1e-14)
    close(attend(rw.NoPE(), built), attend(rw.ALiBi(slopes=slopes), content), 1e-13)


def test_nope_without_a_mask_is_permutation_equivariant():
    p = problem(causal=False)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    shuffled = rw.Attention(p.q[:, :, order], p.k[:, :, order], p.v[:, :, order], causal=False)
    close(attend(rw.NoPE(), shuffled), attend(rw.NoPE(), p)[:, :, order])
    causal = attend(rw.NoPE(), p.replace(causal=True))
    differ(attend(rw.NoPE(), shuffled.replace(causal=True)), causal[:, :, order])


# ---- ALiBi -----------------------------------------------------------------------------------------------------------


def test_alibi_key_form_and_distance_form_give_one_softmax():
    p = problem(h=4)
    slope = torch.tensor([2.0 ** (-8 * h / 4) for h in (1, 2, 3, 4)], dtype=torch.float64)[:, None, None]
    key_form = logits(p) + slope * torch.arange(7.0, dtype=torch.float64)
    want = key_form.masked_fill(~triangle(7), -torch.inf).softmax(-1)
    _, got = rw.attend(rw.ALiBi(4)(p), return_weights=True)
    close(got, want)


@pytest.mark.parametrize(
    ("heads", "want"),
    [
        (1, [-8]),
        (2, [-4, -8]),
        (8, [-1, -2, -3, -4, -5, -6, -7, -8]),
        (6, [-2, -4, -6, -8, -1, -3]),
        (12, [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]),
    ],
)
def test_alibi_slopes(heads, want):
    p = problem(h=heads, s=3, d=2)
    got = -added(rw.ALiBi(), p)[0, :, 1, 0]
    close(got, 2.0 ** torch.tensor(want, dtype=torch.float64), 1e-12)


# ---- T5 --------------------------------------------------------------------------------------------------------------


def exact_bucket(distance, buckets, longest, bidirectional):
    """The bucket by whole numbers: the largest m with (longest / e)^(m / (n − e)) <= d / e, both sides to a power."""
    n = buckets // 2 if bidirectional else buckets
    e = n // 2
    offset = n if bidirectional and distance < 0 else 0
    d = abs(distance) if bidirectional else max(distance, 0)
    if d < e:
        return offset + d
    m = 0
    while e + m + 1 < n and longest ** (m + 1) * e ** (n - e) <= d ** (n - e) * e ** (m + 1):
        m += 1
    return offset + e + m


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (32, 256), (64, 1024), (20, 50), (8, 16), (128, 4096)])
def test_t5_buckets_are_exact(buckets, longest, bidirectional):
    t5 = rw.T5(2, num_buckets=buckets, max_distance=longest, bidirectional=bidirectional)
    reach = range(-2 * longest - 3, 2 * longest + 4)
    got = t5.bucket(torch.tensor(reach).double()).long().tolist()
    assert got == [exact_bucket(d, buckets, longest, bidirectional) for d in reach]


def test_t5_buckets_are_the_sheets():
    got = rw.T5(2).bucket(torch.arange(1000).double()).long()
    assert (got[1:] >= got[:-1]).all()
    assert got[:16].tolist() == list(range(16))
    assert got[112] == 30
    assert (got[113:] == 31).all()
    assert [math.floor(16 * math.log(d / 16) / math.log(8)) + 16 for d in (112, 113)] == [30, 31]


def test_t5_bidirectional_bias_against_a_loop():
    t5 = rw.T5(3, bidirectional=True).double()
    p = problem(h=3, s=150, d=2, b=1, causal=False)
    got = added(t5, p)[0]
    index = torch.tensor([[exact_bucket(i - j, 32, 128, True) for j in range(150)] for i in range(150)])
    close(got, t5.weight[index].permute(2, 0, 1), 1e-11)


def test_t5_table_is_a_bucket_and_head_and_trains():
    t5 = rw.T5(4, hidden_size=64)
    assert t5.weight.shape == (32, 4)
    assert rw.T5(64, num_buckets=256, max_distance=1024, hidden_size=64).weight.std().item() == pytest.approx(
        64**-0.5, rel=0.05
    )
    attend(t5, problem(h=4)).square().sum().backward()
    assert (t5.weight.grad[:7].abs().sum(-1) > 0).all()
    assert not t5.weight.grad[7:].any()


# ---- rotary and tables -----------------------------------------------------------------------------------------------


def test_no_rotary_channels_is_nope():
    p = problem()
    assert torch.equal(attend(rw.Partial(rw.RoPE(0), 0), p), attend(rw.NoPE(), p))


def test_partial_rotary_takes_its_own_width_into_the_exponent():
    p = problem(d=12)
    q, _ = rw.Partial(rw.RoPE(4), 4).rotate(p.q, p.k)
    want, _ = rw.RoPE(4).rotate(p.q[..., :4], p.k[..., :4])
    close(q[..., :4], want)
    assert torch.equal(q[..., 4:], p.q[..., 4:])


def test_first_row_of_the_sinusoids():
    row = rw.Sinusoidal(10, layout="halves").table(torch.zeros(1, dtype=torch.float64))[0]
    assert row.tolist() == [0.0] * 5 + [1.0] * 5


def test_learned_table_is_added():
    table = rw.LearnedAbsolute(9, 6)
    x = random(2, 7, 6)
    close(table.embed(x), x + table.weight[:7].double(), 1e-7)
    with pytest.raises(rw.PositionError):
        table.embed(random(2, 10, 6))


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [rw.NoPE, rotary, lambda: rw.ALiBi(4), lambda: rw.T5(4).double()])
def test_decoding_is_the_full_pass(make):
    encoding, p = make(), problem(kv=2, scale=1.0)
    close(decoded(encoding, p, 3), attend(encoding, p))


@pytest.mark.parametrize(
    "make", [rw.NoPE, rotary, lambda: rw.ALiBi(4), lambda: rw.T5(4, num_buckets=8, max_distance=6).double()]
)
def test_a_cache_cropped_at_the_front_keeps_its_indices(make):
    encoding, p = make(), problem(s=9)
    cache = rw.KVCache(encoding)
    for start in range(8):
        cache.extend(rw.Attention(*(t[:, :, start : start + 1] for t in (p.q, p.k, p.v))))
    cache.edit(range(3, 8))
    got = rw.attend(cache.extend(rw.Attention(*(t[:, :, 8:] for t in (p.q, p.k, p.v)))), backend="dense")
    seen = torch.ones(9, 9, dtype=torch.bool)
    seen[:, :3] = False
    close(got, attend(encoding, p.replace(mask=seen))[:, :, 8:])
