"""Additive and path-integral GRAPE (arXiv 2512.07805)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import (
    SINGLE,
    added,
    attend,
    close,
    decoded,
    differ,
    expanded,
    golden,
    heads_first,
    logits,
    problem,
    random,
    triangle,
)
from torch.nn.functional import logsigmoid, softplus

import ropewalk as rw
from ropewalk.analysis.factors import additive_factor
from ropewalk.bias.grape_path import path_sums
from ropewalk.bias.slopes import alibi_slopes
from ropewalk.core.errors import NeedsHiddenStates, NotCausal

CASES = golden("085")
GATES = ("q", "k", "qk")
WIDTH = 5
AT = torch.tensor([0.0, 1.0, 2.5, 7.0, 30.0, 40.0, 41.0], dtype=torch.float64)


def additive(gates="qk", heads=4, d=8, seed=90, **options):
    made = rw.GRAPEAdditive(heads, d, gates, **options).double()
    for i, parameter in enumerate(made.parameters()):
        parameter.data = random(*parameter.shape, seed=seed + i)
    return made


def rates(made, p):
    """(λ_q (B, H, Q, 1), λ_k (B, H, 1, K)), by the formula; zeros for a gate that is not there."""
    d, k = p.q.shape[-1], p.k.repeat_interleave(p.num_heads // p.num_kv_heads, 1)
    out = []
    for x, direction in ((p.q, made.v), (k, made.u)):
        if direction is None:
            out.append(torch.zeros(*x.shape[:3], dtype=torch.float64))
            continue
        size = direction.norm(dim=-1, keepdim=True).clamp(min=1e-6) if made.normalise else 1.0
        out.append(softplus(torch.einsum("bhsd,hd->bhs", x, direction / size) / math.sqrt(d)))
    return out[0][..., None], out[1][:, :, None]


def by_formula(made, p, distance):
    omega = (softplus(made.raw) * alibi_slopes(p.num_heads))[:, None, None]
    of_q, of_k = rates(made, p)
    return -distance * omega * (of_q + of_k)


def gaps(at=None, n=7):
    at = torch.arange(float(n), dtype=torch.float64) if at is None else at
    return at[:, None] - at


def path(heads=4, seed=95, **options):
    made = rw.GRAPEPath(heads, WIDTH, **options).double()
    for i, parameter in enumerate(made.parameters()):
        parameter.data = 2 * random(*parameter.shape, seed=seed + i)
    return made


def with_x(**options):
    p = problem(**options)
    return p.replace(x=random(p.q.shape[0], p.q.shape[2], WIDTH, seed=41))


def potentials(query, key, slopes, at=None):
    """ψ(t, l) of p as the query has it and p as the key has it, (B, H, S, n) each."""
    n = key.shape[-1]
    at = torch.arange(key.shape[2], dtype=torch.float64) if at is None else at
    key = key * (key.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
    a, b = key.chunk(2, -1)
    cos, sin = at.cos()[:, None], at.sin()[:, None]
    key = torch.cat([a * cos + b * sin, b * cos - a * sin], -1)
    return slopes[:, None, None] * logsigmoid(query @ key.mT / n)


def summed(psi):
    """Σ_{l=j+1..t} ψ(t, l), term by term."""
    out = torch.zeros_like(psi)
    for t in range(psi.shape[-2]):
        for j in range(t):
            out[..., t, j] = psi[..., t, j + 1 : t + 1].sum(-1)
    return out


# ---- golden values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gates", GATES)
def test_golden_additive(gates):
    case = CASES[f"grape_a_{gates}"]
    h, d = case.params["n_head"], case.params["head_dim"]
    made = rw.GRAPEAdditive(h, d, gates).double()
    made.raw.data = case.inputs["omega_raw"]
    for name in ("u", "v"):
        if name in case.inputs:
            getattr(made, name).data = case.inputs[name]
    zero = torch.zeros(1, h, 6, d, dtype=torch.float64)
    q, k = (heads_first(case.inputs[n]) if n in case.inputs else zero for n in ("q", "k"))
    free = rw.Attention(q, k, k, causal=False)
    close(added(made, free), case.outputs["bias"], SINGLE)
    close(added(made, free.replace(causal=True)), case.outputs["bias"], SINGLE, where=triangle(6))


def test_golden_path():
    case = CASES["grape_ap"]
    p = heads_first(case.inputs["p"])
    made = rw.GRAPEPath(case.params["n_head"], tie="v").double()
    q = random(1, 2, 6, case.params["head_dim"])
    got = added(made, rw.Attention(q, q, p))
    want = case.outputs["bias"]
    assert (want[..., ~triangle(6)] == -torch.inf).all()
    close(got, want.masked_fill(~triangle(6), 0.0), SINGLE, where=triangle(6))


# ---- A-Q, A-K, A-QK ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("kv", [4, 2])
def test_additive_formula(gates, normalise, kv):
    made = additive(gates, normalise=normalise)
    p = problem(kv=kv, positions=rw.Positions(AT))
    close(added(made, p), by_formula(made, p, gaps(AT)), where=triangle(7))
    both = p.replace(causal=False)
    close(added(made, both), by_formula(made, both, gaps(AT).clamp(min=0)))


@pytest.mark.parametrize("gates", GATES)
def test_additive_bias_only_falls(gates):
    got = added(additive(gates), problem())
    assert (got[..., triangle(7)] <= 1e-12).all()
    assert got.diagonal(dim1=-2, dim2=-1).abs().max() < 1e-12
    assert got[..., -1, 0].max() < -1e-4


def test_gates_of_zero_are_alibi():
    p, made = problem(), rw.GRAPEAdditive(4, 8, normalise=False).double()
    close(
        made.raw.double(), torch.full((4,), math.log(math.e - 1), dtype=torch.float64), 1e-7
    )  # ω starts at the slopes
    made.u.data.zero_()
    made.v.data.zero_()
    slopes = (2 * math.log(2) * softplus(made.raw) * alibi_slopes(4)).tolist()
    close(logits(made(p)), logits(rw.ALiBi(slopes=slopes)(p)))
    close(attend(made, p, "sdpa"), attend(rw.ALiBi(slopes=slopes), p))


@pytest.mark.parametrize("gates", GATES)
def test_the_lift_gives_the_same_logits(gates):
    p, made = problem(b=1, h=2, s=5, d=4), additive(gates, heads=2, d=4)
    bias = by_formula(made, p, gaps(n=5))
    want = logits(made(p))
    for h in range(2):
        for i in range(5):
            for j in range(i + 1):
                q, k = (
                    torch.cat([t[0, h, n] * 4**-0.25, torch.tensor(e, dtype=torch.float64)])
                    for t, n, e in ((p.q, i, [1.0, 0.0]), (p.k, j, [0.0, 1.0]))
                )
                close(q @ additive_factor(4, bias[0, h, i, j].item()).T @ k, want[0, h, i, j])


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("kv", [4, 2])
def test_fused_attention_takes_it_as_extra_channels(gates, kv):
    n = 40
    p, made = problem(s=n, kv=kv, positions=rw.Positions.arange(n, offset=1_000_000)), additive(gates)
    close(attend(made, p, "sdpa"), attend(made, p), 1e-9)
    assert all(term.factors is not None for term in made(p).terms)
    assert all(term.factors is None for term in made(p.replace(causal=False)).terms)
    low = rw.Attention(p.q.float(), p.k.float(), p.v.float(), p.positions)
    close(attend(made, low, "sdpa"), attend(made, p), 1e-5)


def test_gates_read_q_and_k_before_they_are_turned():
    p, made, rope = problem(), additive(), rw.RoPE(8)
    for both in (rw.Sequential(rope, made), rw.Sequential(made, rope)):
        close(logits(both(p)), logits(rope(p)) + added(made, p))


@pytest.mark.parametrize("causal", [True, False])
def test_distances_on_several_axes(causal):
    where = rw.grid_positions(2, 4)
    p = problem(s=8, positions=where, causal=causal)
    at = where.query.position[0].double()
    apart = at[:, None] - at
    norm = additive(axes=2, distance="norm")
    close(added(norm, p), by_formula(norm, p, apart.norm(dim=-1)))
    offset = additive(axes=2, axis_weights=(2.0, 0.5))
    close(added(offset, p), by_formula(offset, p, (apart @ torch.tensor([2.0, 0.5]).double()).clamp(min=0)))
    plain = additive(axes=2)
    close(added(plain, p), by_formula(plain, p, apart.sum(-1).clamp(min=0)))
    close(attend(norm, p, "sdpa"), attend(norm, p))


def test_gradients_at_distance_zero():
    at = torch.zeros(1, 7, 2, dtype=torch.float64, requires_grad=True)
    p = problem(causal=False, positions=rw.Positions(at))
    attend(additive(axes=2, distance="norm"), p).square().sum().backward()
    assert at.grad.isfinite().all()


def test_directions_start_small_and_learn():
    torch.manual_seed(0)
    made = rw.GRAPEAdditive(8, 64)
    for direction in (made.u, made.v):
        assert 0.11 < direction.std() < 0.14
    p = problem(h=8, d=64)
    made = made.double()
    attend(made, p).square().sum().backward()
    assert all((t.grad != 0).any(-1).all() for t in made.parameters())


# ---- AP ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", ["key", "both"])
@pytest.mark.parametrize("tie", ["none", "q", "k", "v"])
@pytest.mark.parametrize("kv", [4, 2])
def test_path_formula(normalise, tie, kv):
    p, made = with_x(kv=kv, positions=rw.Positions(AT)), path(tie=tie, normalise=normalise)
    if tie == "none":
        vectors = torch.einsum("bsx,hnx->bhsn", p.x, made.weight)
        assert vectors.shape[-1] == 8
    else:
        vectors = getattr(p, tie)
        vectors = vectors.repeat_interleave(4 // vectors.shape[1], 1)
    query = vectors
    if normalise == "both":
        query = vectors * (vectors.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
    want = summed(potentials(query, vectors, alibi_slopes(4), AT))
    close(added(made, p), want, where=triangle(7))
    differ(want[0], want[1], 0.01)


@pytest.mark.parametrize("seed", range(3))
def test_path_rows(seed):
    p, made = with_x(s=12, seed=seed), path(seed=seed)
    got = added(made, p)
    assert got.diagonal(dim1=-2, dim2=-1).abs().max() < 1e-12
    steps = got.diff(dim=-1)
    below = triangle(12)[1:, 1:]  # j + 1 ≤ t
    assert (steps[..., 1:, :][..., below] >= -1e-12).all()
    # Row-wise additivity: from j to t is from j to m and from m to t, both as t sees them.
    vectors = torch.einsum("bsx,hnx->bhsn", p.x, made.weight)
    psi = potentials(vectors, vectors, alibi_slopes(4))
    close(got[..., 9, 2] - got[..., 9, 6], psi[..., 9, 3:7].sum(-1))


def test_it_is_not_relative():
    p, made = with_x(), path()
    moved = p.replace(positions=rw.Positions.arange(7, offset=3))
    differ(logits(made(moved)), logits(made(p)))


def test_special_cases_of_the_path():
    p = with_x()
    slopes = torch.tensor([0.5, 0.125, 2.0, 0.01], dtype=torch.float64)
    constant = -slopes[:, None, None].expand(4, 7, 7)
    close(path_sums(constant, triangle(7)), added(rw.ALiBi(slopes=slopes.tolist()), p)[0], where=triangle(7))
    fox = rw.FoX(4, WIDTH).double()
    fox.weight.data, fox.bias.data = random(4, WIDTH), random(4, seed=1)
    log_f = logsigmoid(torch.einsum("bsx,hx->bhs", p.x, fox.weight) + fox.bias[:, None])
    got = path_sums(log_f[:, :, None].expand(2, 4, 7, 7), triangle(7))
    close(got, added(fox, p), where=triangle(7))
    # An encoding whose p is zero pays log σ(0) a step: ALiBi with slopes m ln 2.
    still = path()
    still.weight.data.zero_()
    close(added(still, p), added(rw.ALiBi(slopes=(alibi_slopes(4) * math.log(2)).tolist()), p), where=triangle(7))


def test_what_is_masked_is_still_on_the_path():
    p, made = with_x(), path()
    mask = torch.ones(7, 7, dtype=torch.bool)
    mask[:, 3] = False
    close(added(made, p.replace(mask=mask)), added(made, p), where=triangle(7))
    close(added(made, p.replace(window=2)), added(made, p), where=triangle(7))


def test_padding_is_not_on_the_path():
    p, made = with_x(b=1), path()
    valid = torch.tensor([[0, 1, 1, 0, 0, 1, 1]]).bool()
    index = valid[0].nonzero()[:, 0]
    got = attend(made, p.replace(positions=rw.Positions.arange(7, valid=valid)))[:, :, index]
    close(got, attend(made, rw.Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index], x=p.x[:, index])))


def test_the_path_of_a_decoded_token_after_a_padded_prompt():
    p, made = with_x(b=1), path()
    valid = torch.tensor([[1, 0, 1, 1, 0]]).bool()
    index = [0, 2, 3, 5, 6]
    cache = rw.KVCache(made)
    cache.extend(
        rw.Attention(p.q[:, :, :5], p.k[:, :, :5], p.v[:, :, :5], rw.Positions.arange(5, valid=valid), x=p.x[:, :5])
    )
    got = rw.attend(cache.extend(rw.Attention(p.q[:, :, 5:], p.k[:, :, 5:], p.v[:, :, 5:], x=p.x[:, 5:])))
    alone = rw.Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index], x=p.x[:, index])
    close(got, attend(made, alone)[:, :, -2:])


def test_autocast_leaves_the_path_alone():
    p = with_x()
    low = rw.Attention(p.q.float(), p.k.float(), p.v.float(), x=p.x.float())
    made = path().float()
    with torch.autocast("cpu", torch.bfloat16):
        got = added(made, low)
    close(got, added(made, low), 1e-9, where=triangle(7))


# ---- decoding, grouped heads, bad input -----------------------------------------------------------------------------------

MAKERS = [
    *(lambda g=g: additive(g) for g in GATES),
    *(lambda t=t: path(tie=t) for t in ("none", "q", "k", "v")),
    lambda: rw.Sequential(rw.RoPE(8), additive()),
    lambda: rw.Sequential(rw.GRAPEContextual(8, WIDTH).double(), path()),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("sizes", [(), (2, 3)])
def test_decoding_is_the_full_pass(make, sizes):
    p, made = with_x(kv=2), make()
    close(decoded(made, p, *sizes), attend(made, p))


@pytest.mark.parametrize(
    "make", [lambda h: additive(heads=h), lambda h: path(heads=h), lambda h: path(heads=h, tie="k")]
)
def test_grouped_heads_equal_repeated_ones(make):
    p = with_x(h=6, kv=2)
    made = make(6)
    close(attend(made, p), attend(made, expanded(p)))


@pytest.mark.parametrize("make", [additive, path])
def test_cached_keys_move(make):
    p, made = with_x(kv=2), make()
    keep, at = torch.tensor([0, 3, 4, 6]), torch.tensor([2, 3, 5, 9])
    cache = rw.KVCache(made)
    cache.extend(p.replace(positions=rw.Positions.arange(7)))
    cache.edit(keep, at)
    new = with_x(kv=2, s=1, seed=5)
    got = rw.attend(cache.extend(new.replace(positions=rw.Positions(torch.tensor([11])))))
    whole = [torch.cat([getattr(p, n)[:, :, keep], getattr(new, n)], 2) for n in ("q", "k", "v")]
    x = torch.cat([p.x[:, keep], new.x], 1)
    fresh = rw.Attention(*whole, rw.Positions(torch.tensor([2, 3, 5, 9, 11])), x=x)
    close(got, attend(made, fresh)[:, :, -1:], 1e-11)


def test_bad_input():
    for bad in (
        {"gates": "kq"}, {"distance": "city"}, {"axis_weights": (1.0,)}, {"axes": 2, "axis_weights": (1.0,)}, {"num_heads": 0},
        {"axes": 2, "distance": "norm", "axis_weights": (1.0, 2.0)},
    ):  # fmt: skip
        with pytest.raises(rw.ConfigError):
            rw.GRAPEAdditive(**{"num_heads": 4, "head_dim": 8, **bad})
    for bad in ({"tie": "x"}, {"normalise": "none"}, {"path_dim": 3}, {"path_dim": 0}, {"hidden_size": None}):
        with pytest.raises(rw.ConfigError):
            rw.GRAPEPath(**{"num_heads": 4, "hidden_size": WIDTH, **bad})
    with pytest.raises(rw.ShapeError, match="head_dim 4"):
        rw.GRAPEAdditive(4, 4)(problem())
    for made in (rw.GRAPEAdditive(8, 8), rw.GRAPEPath(8, WIDTH)):
        with pytest.raises(rw.ShapeError):
            made(with_x())
    for made in (rw.GRAPEAdditive(4, 8), rw.GRAPEPath(4, WIDTH)):
        with pytest.raises(rw.PositionError, match="plain positions"):
            made(with_x(positions=rw.Positions(torch.zeros(1, 7, 2))))
    with pytest.raises(rw.PositionError, match="2"):
        rw.GRAPEAdditive(4, 8, axes=2)(problem())
    with pytest.raises(NotCausal):
        path()(with_x(causal=False))
    with pytest.raises(NeedsHiddenStates, match="x="):
        path()(problem())
    with pytest.raises(rw.ShapeError, match="pairs"):
        path(tie="k")(problem(d=5))
    p = with_x()
    last = rw.Attention(p.q[:, :, -2:], p.k, p.v, x=p.x[:, -2:], x_kv=p.x)
    close(attend(path(), last), attend(path(), p)[:, :, -2:])
    with pytest.raises(NeedsHiddenStates, match="query of every key"):
        path(tie="q")(last)
