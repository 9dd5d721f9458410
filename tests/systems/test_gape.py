"""GAPE (arXiv 2605.10414)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, added, attend, close, decoded, differ, golden, logits, problem, random, triangle

import ropewalk as rw
from ropewalk.bias.gape import attention_entropy
from ropewalk.core.errors import CannotCache, CannotEdit, NotCausal

CASES = golden("010")
NAMES = ("w_l", "b_l", "w_g", "b_g", "gamma")


def gape(heads=4, d=8, t=5.0, kv=None, seed=50, **options):
    """GAPE in float64 with every parameter random."""
    e = rw.GAPE(d, heads, t, num_kv_heads=kv, **options).double()
    for n, parameter in enumerate(e.parameters()):
        parameter.data = 0.7 * random(*parameter.shape, seed=seed + n)
    return e


def published(case):
    heads, d = case.inputs["w_l"].shape
    e = rw.GAPE(d, heads, case.params["T"]).double()
    for name in NAMES:
        getattr(e, name).data = case.inputs[name]
    return e, rw.Attention(*(case.inputs[n] for n in "qkv"))


def gates_of(value, heads=4, d=8, t=5.0, amplitude=1.0, g=1.0, **options):
    """GAPE whose landmark gates are all ``value`` and whose query gates are all ``g``."""
    e = rw.GAPE(d, heads, t, **options).double()
    e.w_l.data.zero_(), e.w_g.data.zero_()
    e.b_l.data.fill_(math.inf if value == 1 else -math.inf if value == 0 else math.log(value / (1 - value)))
    e.b_g.data.fill_(math.log(math.expm1(g)))
    e.gamma.data.fill_(math.log(math.expm1(amplitude)))
    return e


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    e, p = published(case)
    close(e.landmark_gate(p.k), case.outputs["landmark_gate"], DOUBLE)
    close(e.query_gate(p.q), case.outputs["query_gate"], DOUBLE)
    close(e.amplitude(), case.outputs["head_amplitude"], DOUBLE)
    close(e.bias(p.q, p.k, form="raw"), case.outputs["mask"], DOUBLE)
    whole = rw.Sequential(rw.RoPE(base=case.params["rope_base"]), e)
    n = p.q.shape[2]
    weights = logits(whole(p)).masked_fill(~triangle(n), -torch.inf).softmax(-1)
    close(weights, case.outputs["attn"], DOUBLE)
    for backend in ("dense", "sdpa"):
        close(attend(whole, p, backend), case.outputs["out"], DOUBLE)
    close(decoded(whole, p, 2), case.outputs["out"], DOUBLE)


# ---- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1000])
@pytest.mark.parametrize("kv", [4, 2])
def test_raw_centred_and_augmented_are_one(start, kv):
    p, e = problem(kv=kv, s=20), gape(kv=kv)
    where = rw.Positions(torch.arange(20) + start)
    want = attend(e, p.replace(positions=where))
    for form in ("raw", "centred"):
        bias = e.bias(p.q, p.k, where, form=form)
        s = (logits(p) + bias).masked_fill(~triangle(20), -torch.inf)
        close(s.softmax(-1) @ p.v.repeat_interleave(4 // kv, 1), want, 1e-10)
    for origin in (0.0, start + 9.5):
        q, k = e.augment(p.q, p.k, where, origin=origin)
        assert q.shape[-1] == k.shape[-1] == 10
        close(attend(rw.NoPE(), rw.Attention(q, k, p.v, scale=8**-0.5)), want, 1e-10)
    close(attend(e, p.replace(positions=where), "sdpa"), want, 1e-10)
    close(added(e, p.replace(positions=where)), e.bias(p.q, p.k, where), 1e-10)


def test_augmented_beside_a_rotation():
    p, e = problem(), gape()
    q, k = e.augment(p.q, p.k, turned=rw.RoPE(8).rotate(p.q, p.k))
    want = attend(rw.Sequential(rw.RoPE(8), e), p)
    close(attend(rw.NoPE(), rw.Attention(q, k, p.v, scale=8**-0.5)), want, 1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_score_mod(bidirectional):
    p, e = problem(kv=2, s=20), gape(kv=2, bidirectional=bidirectional)
    at = 3 * torch.arange(20) + torch.tensor([[0], [10**6]])
    b, h, i, j = (torch.arange(n) for n in (2, 4, 20, 20))
    index = (b[:, None, None, None], h[:, None, None], i[:, None], j)
    got = e.score_mod(p.q, p.k, at)(logits(p), *index)
    close(got - logits(p), e.bias(p.q, p.k, at), 1e-6)  # kernels of FlexAttention read float32
    common = e.score_mod(p.q, p.k)(0.0, *index)
    close(common, e.bias(p.q, p.k), 1e-6)


def test_the_raw_form_is_the_papers_formula():
    p, e = problem(), gape()
    l = torch.sigmoid(torch.einsum("hd,bhkd->bhk", e.w_l, p.k) + e.b_l[:, None])[:, :, None]
    g = torch.nn.functional.softplus(torch.einsum("hd,bhqd->bhq", e.w_g, p.q) + e.b_g[:, None])[..., None]
    amplitude = torch.nn.functional.softplus(e.gamma)[:, None, None]
    j = torch.arange(7.0, dtype=torch.float64)
    want = amplitude * g * (j * (1 - l) + j[:, None] * l) / 5.0
    close(e.bias(p.q, p.k, form="raw"), want)


@pytest.mark.parametrize("where", [rw.NoPE(), rw.RoPE(8), rw.Partial(rw.RoPE(4), 4)])
@pytest.mark.parametrize("gates", ["raw", "rotated"])
def test_on_top_of_others(where, gates):
    p, e = problem(), gape(gates=gates)
    q, k = where.rotate(p.q, p.k)
    read = (p.q, p.k) if gates == "raw" else (q, k)
    both = rw.Sequential(where, e)
    close(logits(both(p)), logits(where(p)) + e.bias(*read))
    close(decoded(both, p, 3), attend(both, p))


# ---- properties ------------------------------------------------------------------------------------------------------


def test_no_amplitude_is_the_base_encoding():
    p, e = problem(), rw.GAPE(8, 4, 5.0, gamma_zero=True).double()
    close(attend(rw.Sequential(rw.RoPE(8), e), p), attend(rw.RoPE(8), p), 0.0)
    attend(e, p).square().sum().backward()
    assert bool((e.gamma.grad != 0).all())
    e.gamma.data.fill_(-0.3)
    assert bool((added(e, p)[..., triangle(7)] >= 0).all())  # of either sign


def test_landmarks_alone_change_nothing():
    p = problem()
    protected = rw.Sequential(rw.RoPE(8), gates_of(1))
    close(attend(protected, p), attend(rw.RoPE(8), p))


def test_without_landmarks_it_is_alibi():
    p, e = problem(), gates_of(0, amplitude=2.0, g=0.3)
    alibi = rw.ALiBi(slopes=[2.0 * 0.3 / 5.0] * 4)
    close(attend(e, p), attend(alibi, p))
    close(added(e, p), added(alibi, p))


def one_landmark(g, n=40, protected=3, t=5.0):
    """Weights of the last query over keys of equal content, one of them a landmark; w_l reads the first channel."""
    e = gates_of(0, heads=1, d=2, t=t, g=g)
    e.w_l.data[:, 0], e.b_l.data[:] = 2e3, -1e3
    q, k = torch.zeros(1, 1, n, 2, dtype=torch.float64), torch.zeros(1, 1, n, 2, dtype=torch.float64)
    k[:, :, protected, 0] = 1.0
    s = logits(e(rw.Attention(q, k, k)))
    return s.masked_fill(~triangle(n), -torch.inf).softmax(-1)[0, 0, -1]


def test_a_landmark_keeps_its_weight_at_any_distance():
    for protected in (3, 20, 38):
        weights = one_landmark(0.7, protected=protected)
        close(weights[protected], weights[-1])  # as the query's own key
        r = 39 - protected
        other = torch.tensor(math.exp(-0.7 * (r - 1) / 5.0), dtype=torch.float64)
        close(weights[protected + 1] / weights[protected], other)


def test_entropy_falls_as_the_query_gate_grows():
    gates = (0.01, 0.1, 0.5, 2.0, 10.0)
    entropy = torch.stack([attention_entropy(one_landmark(g)) for g in gates])
    assert bool((entropy.diff() < 0).all())
    close(attention_entropy(torch.full((3, 8), 1 / 8)), torch.full((3,), math.log(8), dtype=torch.float64))
    assert attention_entropy(torch.zeros(4)) == 0.0


def masses(g, gates, n=60, t=5.0, c=1.0):
    """(last query) weights and landmark gates for content logits in [−c, c]."""
    content = c * torch.sin(17.0 * torch.arange(n, dtype=torch.float64))
    distance = torch.arange(n - 1, -1, -1, dtype=torch.float64)
    return (content - g / t * distance * (1 - gates)).softmax(-1), distance


def test_bound_on_the_mass_of_unprotected_keys():
    n, t, c, bar = 60, 5.0, 1.0, 0.6
    e, d = gates_of(0, heads=1, d=2, t=t), 2
    gates = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # Content logits and gates as wanted: the first channel carries the content, the second the gate.
    k = torch.stack([c * torch.sin(17.0 * torch.arange(n, dtype=torch.float64)), gates.logit()], -1)[None, None]
    q = torch.zeros_like(k)
    q[..., 0] = d**0.5
    e.w_l.data[:, 1], e.b_l.data[:] = 1.0, 0.0
    for g in (0.1, 1.0, 4.0):
        e.b_g.data.fill_(math.log(math.expm1(g)))
        weights = logits(e(rw.Attention(q, k, k)))[0, 0, -1].softmax(-1)
        want, distance = masses(g, gates)
        close(weights, want)
        for r in (2, 10, 30):
            mass = weights[(distance > r) & (gates <= bar)].sum()
            assert mass <= n * math.exp(2 * c) * math.exp(-g / t * r * (1 - bar))
            assert mass > 0


def test_mass_falls_with_the_query_gate():
    hard = (torch.arange(60) % 7 == 0).double()
    soft = torch.rand(60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for gates in (hard, soft):
        runs = [masses(g, gates) for g in (0.1, 0.5, 1.0, 3.0, 9.0)]
        for level in (2.0, 10.0, 30.0):
            # for graded gates the mass of the upper level sets of (i − j)(1 − l); for 0 and 1 those are the unprotected far keys
            mass = torch.stack([w[d * (1 - gates) > level].sum() for w, d in runs])
            assert bool((mass.diff() < 0).all())


def test_only_distances_count():
    p, e = problem(), gape()
    there = p.replace(positions=rw.Positions(torch.arange(7) + 10**6))
    for backend in ("dense", "sdpa"):
        close(attend(e, there, backend), attend(e, p), 1e-10)
    close(added(e, p).diagonal(dim1=-2, dim2=-1), torch.zeros(1, 1, 1, dtype=torch.float64).expand(2, 4, 7))


def test_gradients_reach_all_parameters():
    e = rw.GAPE(8, 4, 5.0)
    attend(e.double(), problem()).square().sum().backward()
    for name in NAMES:
        assert bool((getattr(e, name).grad != 0).any()), name


def test_it_starts_near_the_base_encoding():
    e = rw.GAPE(8, 4, 2048)
    close(e.amplitude(), torch.full((4,), math.log1p(math.exp(-4.0))), 1e-6)
    x = torch.randn(1, 4, 3, 8)
    close(e.query_gate(x), torch.ones(1, 4, 3), 1e-6)
    close(e.landmark_gate(x), torch.full((1, 4, 3), 0.5), 1e-6)
    close(e.effective_context(x), torch.full((1, 4, 3), 2048 / math.log1p(math.exp(-4.0))), 1e-6)


def test_both_directions():
    p, e = problem(causal=False), gape(bidirectional=True)
    l = e.landmark_gate(p.k)[:, :, None]
    t = torch.arange(7.0, dtype=torch.float64)
    slope = (e.amplitude()[:, None] * e.query_gate(p.q) / 5.0)[..., None]
    close(added(e, p), -slope * (t[:, None] - t).abs() * (1 - l))
    close(e.bias(p.q, p.k), added(e, p))
    close(attend(e, p, "sdpa"), attend(e, p))
    with pytest.raises(NotCausal, match="raw form"):
        e.bias(p.q, p.k, form="raw")
    with pytest.raises(NotCausal, match="sum of products"):
        e.augment(p.q, p.k)
    causal = problem()
    close(attend(e, causal), attend(gape(), causal))


def test_current_length():
    p, e = problem(), gape(t="current")
    close(attend(e, p), attend(gape(t=7), p))
    with pytest.raises(CannotCache, match="number of keys"):
        rw.KVCache(e)
    with pytest.raises(rw.ConfigError, match="length"):
        e.effective_context(p.q)


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(sizes):
    p, e = problem(kv=2), gape(kv=2)
    close(decoded(e, p, *sizes), attend(e, p))
    differ(attend(e, p), attend(rw.NoPE(), p))


def test_rotated_gates_cannot_be_moved():
    p, e = problem(), rw.Sequential(rw.RoPE(8), gape(gates="rotated"))
    cache = rw.KVCache(e)
    cache.extend(p)
    with pytest.raises(CannotEdit):
        cache.edit([0, 1, 5], torch.arange(3))


def test_bad_input():
    for bad in (0, -3, float("nan"), float("inf"), True, "now"):
        with pytest.raises(rw.ConfigError, match="context_length"):
            rw.GAPE(8, 4, bad)
    p = problem()
    with pytest.raises(rw.ConfigError, match="form"):
        gape().bias(p.q, p.k, form="row")
    with pytest.raises(rw.ConfigError, match="gates"):
        rw.GAPE(8, 4, 5, gates="turned")
    with pytest.raises(NotCausal, match="bidirectional=True"):
        gape()(problem(causal=False))
    with pytest.raises(rw.ShapeError, match="head_dim 8"):
        gape()(problem(d=6))
    with pytest.raises(rw.ShapeError, match="key heads"):
        gape(kv=2)(problem())
    with pytest.raises(rw.ShapeError, match="heads"):
        gape(kv=2).landmark_gate(problem().k)
    with pytest.raises(rw.PositionError):
        gape()(problem(positions=rw.Positions(torch.zeros(1, 7, 2))))
