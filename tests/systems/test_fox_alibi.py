"""ALiBi and FoX, the special cases of additive GRAPE (arXiv 2512.07805, 2108.12409, 2503.02130)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, added, attend, close, decoded, expanded, golden, logits, problem, random, triangle
from torch.nn.functional import logsigmoid

import ropewalk as rw
from ropewalk.core.errors import NotCausal

CASES = golden("108")


def fox(heads=4, hidden=5, seed=30):
    made = rw.FoX(heads, hidden).double()
    made.weight.data, made.bias.data = random(heads, hidden, seed=seed), random(heads, seed=seed + 1) + 1
    return made


def with_x(**options):
    return problem(**options, x=random(options.get("b", 2), options.get("s", 7), 5, seed=40))


# ---- ALiBi -----------------------------------------------------------------------------------------------------------


def test_slopes_of_three_heads():
    p = problem(h=3)
    close(-added(rw.ALiBi(3), p)[0, :, 1, 0], torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=torch.float64))
    close(-added(rw.ALiBi(3), p)[0, :, 1, 0], CASES["alibi"].outputs["slopes"], DOUBLE)


def test_golden_both_directions_with_a_discount():
    want = CASES["alibi"].outputs["bias"]
    h, n, _ = want.shape
    p = problem(h=h, s=n, causal=False)
    got = added(rw.ALiBi(h, bidirectional=True, past_discount=0.5), p)
    close(got, want.expand_as(got), DOUBLE)
    mirrored = added(rw.ALiBi(h, bidirectional=True, future_discount=0.5), p)
    close(mirrored, want.transpose(-1, -2).expand_as(got), DOUBLE)


def test_discounts_need_two_directions():
    with pytest.raises(rw.ConfigError, match="bidirectional"):
        rw.ALiBi(2, past_discount=0.5)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_alibi_is_a_dot_product_in_two_more_channels(scale):
    p = problem(h=4, d=6, scale=scale)
    slope = torch.tensor([2.0 ** (-2 * h) for h in (1, 2, 3, 4)], dtype=torch.float64)[None, :, None, None]
    t = torch.arange(7.0, dtype=torch.float64)[:, None].expand(2, 4, 7, 1)
    one, scale = torch.ones_like(t), 6**-0.5 if scale is None else scale
    lifted = rw.Attention(
        torch.cat([p.q, -slope * t / scale, slope * one / scale], -1), torch.cat([p.k, one, t], -1), p.v, scale=scale
    )
    close(logits(lifted), logits(rw.ALiBi(4)(p)))
    close(attend(rw.NoPE(), lifted, "sdpa"), attend(rw.ALiBi(4), p))
    close(attend(rw.ALiBi(4), p, "sdpa"), attend(rw.ALiBi(4), p))


def test_both_directions_penalise_distance():
    p = problem(h=2, causal=False)
    i = torch.arange(7.0, dtype=torch.float64)
    want = -torch.tensor([0.0625, 2.0**-8], dtype=torch.float64)[:, None, None] * (i[:, None] - i).abs()
    close(added(rw.ALiBi(2, bidirectional=True), p), want.expand(2, 2, 7, 7))


def test_real_positions_and_documents():
    at = torch.tensor([0.0, 0.5, 4.25, 4.25, 9.0, 9.5, 20.0], dtype=torch.float64)
    p = problem(h=2).replace(positions=rw.Positions(at))
    slope = torch.tensor([0.0625, 2.0**-8], dtype=torch.float64)[:, None, None]
    close(logits(rw.ALiBi()(p)) - logits(p), (-slope * (at[:, None] - at)).expand(2, 2, 7, 7))


# ---- FoX -------------------------------------------------------------------------------------------------------------


def test_fox_sums_gates_between_key_and_query():
    p, made = with_x(), fox()
    log_f = logsigmoid(torch.einsum("bsx,hx->bhs", p.x, made.weight) + made.bias[:, None])
    want = torch.zeros(2, 4, 7, 7, dtype=torch.float64)
    for i in range(7):
        for j in range(i + 1):
            want[:, :, i, j] = log_f[:, :, j + 1 : i + 1].sum(-1)
    close(added(made, p), want, where=triangle(7))
    assert (added(made, p)[..., triangle(7)] <= 1e-12).all()
    assert added(made, p).diagonal(dim1=-2, dim2=-1).abs().max() < 1e-12


def test_fox_of_constant_gates_is_alibi():
    slopes = (0.5, 0.125, 2.0, 0.01)
    p, made = with_x(), rw.FoX(4, 5).double()
    made.weight.data.zero_()
    made.bias.data = torch.tensor([-math.log(math.expm1(s)) for s in slopes], dtype=torch.float64)  # σ(b) = e^−β
    alibi = rw.ALiBi(slopes=slopes)
    close(logits(made(p)), logits(alibi(p)))
    close(attend(made, p), attend(alibi, p))
    close(decoded(made, p, 3), attend(alibi, p))


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
def test_the_part_of_the_query_cancels(backend):
    p, made = with_x(), fox()
    u = logsigmoid(torch.einsum("bsx,hx->bhs", p.x, made.weight) + made.bias[:, None]).cumsum(-1)
    weights = (logits(p) - u[:, :, None]).masked_fill(~triangle(7), -torch.inf).softmax(-1)
    close(attend(made, p, backend), weights @ p.v)


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(sizes):
    p = with_x(kv=2)
    for made in (fox(), rw.ALiBi(4), rw.Sequential(rw.RoPE(8), fox()), rw.Sequential(rw.RoPE(8), rw.ALiBi(4))):
        close(decoded(made, p, *sizes), attend(made, p))


def test_rotation_and_bias_add():
    p, made = with_x(), fox()
    both = logits(rw.Sequential(rw.RoPE(8), made)(p))
    close(both, logits(rw.RoPE(8)(p)) + added(made, p))


def test_grouped_heads_equal_repeated_ones():
    p, made = with_x(h=6, kv=2), fox(6)
    close(attend(made, p), attend(made, expanded(p)))
    close(attend(rw.ALiBi(6), p), attend(rw.ALiBi(6), expanded(p)))


def test_long_sequences_forget_exactly():
    n = 3000
    x = random(1, n, 5, seed=1)
    p, made = problem(b=1, h=2, s=n, d=2, x=x), fox(2)
    u = logsigmoid(torch.einsum("bsx,hx->bhs", x, made.weight) + made.bias[:, None]).cumsum(-1)
    low = rw.Attention(p.q.float(), p.k.float(), p.v.float(), x=x.float())
    s = logits(p)[..., -1, :] + u[..., -1:] - u
    want = (s.softmax(-1)[..., None, :] @ p.v)[..., 0, :]
    made.float()
    for backend in ("sdpa", "dense"):
        close(rw.attend(made(low), backend=backend)[:, :, -1], want, 1e-4)


def test_refusals():
    with pytest.raises(rw.Refusal, match="x="):
        fox()(problem())
    with pytest.raises(NotCausal):
        fox()(with_x().replace(causal=False))
    with pytest.raises(rw.ShapeError):
        rw.ALiBi(8)(problem(h=4))


def test_learned_slopes_start_as_published_and_learn():
    q = torch.randn(1, 3, 7, 4, dtype=torch.float64)
    learned, plain = rw.ALiBi(3, learned=True), rw.ALiBi(3)
    out = rw.attend(learned(rw.Attention(q, q, q)))
    torch.testing.assert_close(out, rw.attend(plain(rw.Attention(q, q, q))), rtol=0, atol=1e-7)
    out.square().sum().backward()
    assert learned.log_slope.grad.abs().min() > 0
    with pytest.raises(rw.ConfigError, match="give num_heads"):
        rw.ALiBi(learned=True)
