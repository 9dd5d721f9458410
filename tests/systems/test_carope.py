"""CARoPE (arXiv 2507.23083)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, expanded, golden, logits, problem, random
from torch.nn.functional import softplus

import ropewalk as rw
from ropewalk.core.errors import NeedsColumn, NeedsHiddenStates, NotCausal

CASES = golden("013")
WIDTH = 5


def carope(d=8, heads=4, std=0.7, seed=50, **options):
    """CARoPE in float64 with weights that matter; std=0 leaves the published start."""
    made = rw.CARoPE(WIDTH, heads, d, std=0.0, **options).double()
    made.weight.data = std * random(*made.weight.shape, seed=seed)
    return made


def with_x(**options):
    p = problem(**options)
    return p.replace(x=random(p.q.shape[0], p.q.shape[2], WIDTH, seed=41))


def phases(made, x, d=8, first=0):
    """Σ_{t≤m} f_h(x_t)^i, by the formula, (B, H, S, d/2)."""
    bias = 0.0 if made.bias is None else made.bias
    f = (1 / (softplus(x @ made.weight.T + bias) + 1)).transpose(1, 2)
    return torch.stack([(f**i).cumsum(2) for i in range(first, first + d // 2)], -1)


def constant(f, d=8, heads=4, **options):
    """CARoPE in which every token of every head chooses f."""
    made = carope(d, heads, std=0.0, **options)
    made.bias.data.fill_(math.log(math.expm1(1 / f - 1)))
    return made


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    heads, d = case.params["heads"], case.params["head_dim"]
    pairing = "half" if case.notes.startswith("half") else "interleaved"
    made = rw.CARoPE(case.params["d_model"], heads, d, pairing=pairing).double()
    made.weight.data, made.bias.data = case.inputs["W"].T.contiguous(), case.inputs["b"].clone()
    q, k = case.inputs["q"], case.inputs["k"]
    p = rw.Attention(q, k, k, x=case.inputs["x"])
    close(made.log_frequency(p.located()).exp().transpose(1, 2), case.outputs["f"], DOUBLE)
    seen, state = made.observe(p.located())
    close(seen.kf["sums"], case.outputs["phase"], DOUBLE)
    close(state, case.outputs["phase"][:, :, -1], DOUBLE)
    after = made(p)
    close(after.q, case.outputs["q_rot"], DOUBLE)
    close(after.k, case.outputs["k_rot"], DOUBLE)
    close(logits(after), case.outputs["scores_scaled"], DOUBLE)


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("first", [0, 1])
def test_logits_turn_by_what_lies_between(pairing, first):
    p, made = with_x(), carope(pairing=pairing, start_exponent=first)
    phase = phases(made, p.x, first=first)
    gap = phase[:, :, None, :] - phase[:, :, :, None]  # of key minus of query
    if pairing == "half":
        (a, b), (c, e) = p.q.chunk(2, -1), p.k.chunk(2, -1)
    else:
        (a, b), (c, e) = (p.q[..., 0::2], p.q[..., 1::2]), (p.k[..., 0::2], p.k[..., 1::2])
    a, b, c, e = a[:, :, :, None], b[:, :, :, None], c[:, :, None], e[:, :, None]
    want = ((a * c + b * e) * gap.cos() + (b * c - a * e) * gap.sin()).sum(-1) * 8**-0.5
    close(logits(made(p)), want)


@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_constant_frequency_is_rope(base):
    p = with_x()
    for made in (constant(base**-0.25), carope(std=0.0, base=base)):  # the start is that constant, in float32
        close(logits(made(p)), logits(rw.RoPE(8, base, "half")(p)), 1e-6)
    differ(logits(carope()(p)), logits(rw.RoPE(8, base, "half")(p)))


def test_the_start():
    made = rw.CARoPE(WIDTH, 3, 64)
    assert made.weight.shape == (3, WIDTH)
    assert 0 < made.weight.std() < 3e-3
    close(made.bias, torch.full((3,), -0.927), 1e-3)
    bare = carope(std=0.0, bias=False)
    assert bare.bias is None
    p = with_x().located()
    close(bare.log_frequency(p).exp(), torch.full((2, 4, 7), 1 / (1 + math.log(2)), dtype=torch.float64))


def test_phases_rise_and_the_first_pair_counts():
    p = with_x(s=20)
    for scale in (1.0, 100.0, -100.0):
        made = carope(std=scale)
        sums = made.observe(p.located())[0].kf["sums"]
        f = made.log_frequency(p.located()).exp()
        assert (f > 0).all()
        assert (f <= 1).all()
        assert (sums.diff(dim=2) >= 0).all()
        close(sums[..., 0], torch.arange(1.0, 21).double().expand(2, 4, 20))
        close(sums, phases(made, p.x))
    assert (carope().log_frequency(p.located()) < 0).all()


def test_slow_pairs_of_high_exponents_stand_still():
    p, made = with_x(d=64), constant(0.5, d=64)
    sums = made.observe(p.located())[0].kf["sums"]
    assert sums[..., -1].max() < 1e-7
    assert sums[..., 1].min() >= 0.5


# ---- what depends on what --------------------------------------------------------------------------------------------


def test_a_prefix_shifts_all_later_phases_alike():
    p, made = with_x(s=9), carope()
    late = rw.Attention(p.q[:, :, 4:], p.k[:, :, 4:], p.v[:, :, 4:], x=p.x[:, 4:])
    close(logits(made(p))[..., 4:, 4:], logits(made(late)))
    sums = [made.observe(t.located())[0].kf["sums"] for t in (p, late)]
    differ(sums[0][:, :, 4:], sums[1], 0.1)


def test_a_token_changes_phases_from_itself_on():
    p, made = with_x(), carope()
    changed = p.x.clone()
    changed[:, 3] += 1.0
    a, b = (made.observe(p.replace(x=x).located())[0].kf["sums"] for x in (p.x, changed))
    close(a[:, :, :3], b[:, :, :3])
    assert ((a - b).abs()[:, :, 3:, 1:] > 1e-6).all()


def test_gradients_reach_weights_and_x():
    p, made = with_x(), carope()
    x = p.x.clone().requires_grad_()
    attend(made, p.replace(x=x)).square().sum().backward()
    for grad in (made.weight.grad, made.bias.grad, x.grad[:, :-1]):
        assert grad.isfinite().all()
        assert (grad != 0).any()


def test_norms_stay():
    p = with_x()
    after = carope()(p)
    close(after.q.norm(dim=-1), p.q.norm(dim=-1))
    close(after.k.norm(dim=-1), p.k.norm(dim=-1))


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(sizes):
    p, made = with_x(kv=2), carope(num_kv_heads=2)
    close(decoded(made, p, *sizes), attend(made, p))


@pytest.mark.parametrize("kv", [4, 2])
def test_some_queries_against_all_keys(kv):
    p, made = with_x(kv=kv), carope(num_kv_heads=kv)
    index = torch.tensor([1, 4, 6])
    where = rw.Positions.arange(7).take_queries(index)
    part = rw.Attention(p.q[:, :, index], p.k, p.v, where, x=p.x[:, index], x_kv=p.x)
    close(attend(made, part), attend(made, p)[:, :, index])


def test_encoded_keys_carry_no_phases():
    assert not carope()(with_x()).kf


def test_grouped_heads_share_phases():
    p, made = with_x(h=6, kv=2), carope(num_kv_heads=2)
    wide = carope(heads=6)
    wide.weight.data = made.weight.data.repeat_interleave(3, 0)
    close(attend(made, p), attend(wide, expanded(p)))


def test_padding_adds_nothing():
    valid = torch.tensor([[0, 0, 1, 1, 0, 1, 1]]).bool()
    p, made = with_x(b=1), carope()
    x = p.x.masked_fill(~valid[..., None], math.nan)  # what padding holds is nobody's business
    sums = made.observe(p.replace(x=x, positions=rw.Positions.arange(7, valid=valid)))[0].kf["sums"]
    alone = made.observe(p.replace(x=p.x[:, valid[0]], k=p.k[:, :, valid[0]], q=p.q[:, :, valid[0]]).located())[0]
    close(sums[:, :, valid[0]], alone.kf["sums"])


def test_both_directions():
    p, made = with_x(causal=False), carope()
    close(logits(made(p)), logits(made(p.replace(causal=True))))


def test_long_sequences_keep_their_phase():
    n = 20_000
    made = rw.CARoPE(WIDTH, 1, 4, std=0.5)
    x = random(1, n, WIDTH, seed=3)
    q = torch.zeros(1, 1, n, 4)
    sums = made.observe(rw.Attention(q, q, q, x=x.float()).located())[0].kf["sums"]
    assert sums.dtype == torch.float64
    close(sums[..., -1, 0], torch.tensor([[float(n)]], dtype=torch.float64), 1e-15)


# ---- embeddings as the source ------------------------------------------------------------------------------------------


def test_source_embedding_reads_a_column():
    p, made = with_x(), carope(source="embedding")
    hidden = carope()
    where = rw.Positions(torch.arange(7)[None], columns={"embedding": p.x})
    want = attend(hidden, p)
    close(attend(made, p.replace(x=None, positions=where)), want)
    layers = [made.layer(i) for i in range(2)]
    assert layers[0] is layers[1] is made  # the same angles in all layers
    assert carope().layer(0) is not carope().layer(0)
    cache, outs = rw.KVCache(made), []
    for i in range(7):
        now = where.slice(i, i + 1)
        part = rw.Attention(p.q[:, :, i : i + 1], p.k[:, :, i : i + 1], p.v[:, :, i : i + 1], now)
        outs.append(rw.attend(cache.extend(part)))
    close(torch.cat(outs, 2), want)
    with pytest.raises(NeedsColumn, match="embedding"):
        made(p)
    with pytest.raises(rw.ShapeError, match="width"):
        made(p.replace(positions=rw.Positions(torch.arange(7)[None], columns={"embedding": p.x[..., :3]})))


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at", [[0, 1, 2, 3, 4, 5, 7], [0, 1, 2, 3, 3, 4, 5], [6, 5, 4, 3, 2, 1, 0], [0, 0.5, 1, 1.5, 2, 2.5, 3]]
)
def test_positions_that_are_not_consecutive_are_an_error(at):
    with pytest.raises(rw.PositionError, match="consecutive"):
        carope()(with_x().replace(positions=rw.Positions(torch.tensor(at))))
    with pytest.raises(rw.PositionError, match="consecutive"):
        rw.Sequential(rw.Scale(2.0), carope())(with_x())


def test_documents_and_any_start_are_fine():
    p, made = with_x(b=1), carope()
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    packed = attend(made, p.replace(positions=rw.Positions.arange(7, document_ids=ids)))
    second = rw.Attention(p.q[:, :, 3:], p.k[:, :, 3:], p.v[:, :, 3:], x=p.x[:, 3:])
    close(packed[:, :, 3:], attend(made, second))
    close(attend(made, p.replace(positions=rw.Positions.arange(7, offset=90))), attend(made, p))


def test_refusals():
    with pytest.raises(NeedsHiddenStates, match="x="):
        carope()(problem())
    with pytest.raises(NeedsHiddenStates, match="x_kv"):
        p = with_x()
        carope()(rw.Attention(p.q[:, :, -2:], p.k, p.v, x=p.x[:, -2:]))
    with pytest.raises(NotCausal, match="order="):
        p = with_x()
        carope()(rw.Attention(p.q[:, :, -2:], p.k, p.v, x=p.x[:, -2:], x_kv=p.x, causal=False))
    with pytest.raises(rw.ShapeError, match="hidden_size"):
        carope()(with_x().replace(x=random(2, 7, 4)))
    with pytest.raises(rw.ShapeError, match="head_dim"):
        carope(d=4)(with_x())
    with pytest.raises(rw.ShapeError, match="key heads"):
        carope(heads=2)(with_x())
    for bad in (
        {"base": 1.0},
        {"base": -3},
        {"source": "x"},
        {"start_exponent": 2},
        {"pairing": "thirds"},
        {"num_kv_heads": 0},
    ):
        with pytest.raises(rw.ConfigError):
            rw.CARoPE(WIDTH, 4, 8, **bad)
    with pytest.raises(rw.ConfigError, match="num_kv_heads"):
        rw.CARoPE(WIDTH)
    with pytest.raises(rw.ConfigError, match="even"):
        rw.CARoPE(WIDTH, 4, 7)
