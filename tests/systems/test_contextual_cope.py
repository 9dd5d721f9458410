"""Contextual position encoding, CoPE (arXiv 2405.18719)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, added, attend, close, decoded, expanded, golden, logits, problem, random, triangle

import ropewalk as rw
from ropewalk.bias.contextual_cope import contextual_positions
from ropewalk.core.errors import NotCausal

CASES = golden("063")


def cope(d=8, npos_max=5, seed=20, **options):
    made = rw.ContextualCoPE(d, npos_max, **options).double()
    made.weight.data = random(*made.weight.shape, seed=seed)
    return made


def loop(p, table, gates=None, q=None, k=None):
    """Positions, bias and output by loops over pairs, for gate logits of any kind; ``q``, ``k``: where logits come from."""
    b, h, n, d = p.q.shape
    group = h // p.num_kv_heads
    q, k = p.q if q is None else q, p.k if k is None else k
    keys, values = k.repeat_interleave(group, 1), p.v.repeat_interleave(group, 1)
    s = q @ keys.transpose(-1, -2) * (d**-0.5 if p.scale is None else p.scale)
    gates = s if gates is None else gates
    table = table.expand(h, *table.shape[-2:])
    last = table.shape[1] - 1
    place, bias = torch.zeros(b, h, n, n, dtype=torch.float64), torch.zeros(b, h, n, n, dtype=torch.float64)
    out = torch.zeros(b, h, n, p.v.shape[-1], dtype=torch.float64)
    for x in range(b):
        for y in range(h):
            for i in range(n):
                for j in range(i + 1):
                    count = min(sum(1 / (1 + math.exp(-gates[x, y, i, t].item())) for t in range(j, i + 1)), last)
                    below, above = math.floor(count), math.ceil(count)
                    w = count - below
                    z = table[y] @ p.q[x, y, i]
                    place[x, y, i, j] = count
                    bias[x, y, i, j] = (1 - w) * z[below] + w * z[above]
                a = (s[x, y, i, : i + 1] + bias[x, y, i, : i + 1]).softmax(-1)
                out[x, y, i] = a @ values[x, y, : i + 1]
    return place, bias, out


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    p = rw.Attention(*(case.inputs[n] for n in "qkv"))
    n, d = p.q.shape[2:]
    made = rw.ContextualCoPE(d, case.params["npos_max"]).double()
    made.weight.data = case.inputs["pos_emb"]
    seen = triangle(n)
    place = contextual_positions(logits(p), seen, case.params["npos_max"])
    close(place, case.outputs["positions_lower_tri"], DOUBLE, where=seen)
    close(added(made, p), case.outputs["bias_lower_tri"], DOUBLE, where=seen)
    out, weights = rw.attend(made(p), return_weights=True)
    close(weights, case.outputs["attn"], DOUBLE, where=seen)
    close(out, case.outputs["out"], DOUBLE)


# ---- against loops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("npos_max", [3, 20])
@pytest.mark.parametrize("kv", [4, 2, 1])
def test_gates_of_keys(kv, npos_max):
    p, made = problem(kv=kv, s=6, dv=5), cope(npos_max=npos_max)
    place, bias, out = loop(p, made.weight)
    close(contextual_positions(logits(p), triangle(6), npos_max), place, where=triangle(6))
    close(added(made, p), bias, where=triangle(6))
    close(attend(made, p), out)


@pytest.mark.parametrize("kv", [4, 2])
def test_gates_of_values(kv):
    p, made = problem(kv=kv, s=6), cope(gate="values")
    values = p.v.repeat_interleave(4 // kv, 1)
    gates = p.q @ values.transpose(-1, -2) * 8**-0.5
    close(attend(made, p), loop(p, made.weight, gates)[2])
    with pytest.raises(rw.ShapeError, match="values"):
        attend(made, problem(dv=5))


@pytest.mark.parametrize("kv", [4, 2])
def test_gates_of_separate_keys(kv):
    x = random(2, 6, 10, seed=11)
    p, made = problem(kv=kv, s=6, x=x), cope(gate="sep_keys", num_heads=4, hidden_size=10)
    keys = torch.stack([x @ w.T for w in made.gate_weight], 1)  # (B, H, S, d)
    gates = p.q @ keys.transpose(-1, -2) * 8**-0.5
    close(attend(made, p), loop(p, made.weight, gates)[2])
    close(decoded(made, p, 2), attend(made, p))
    with pytest.raises(rw.Refusal, match="x="):
        attend(made, problem())


def test_tables_of_their_own():
    p, made = problem(kv=2, s=6), cope(heads_share=False, num_heads=4)
    assert made.weight.shape == (4, 5, 8)
    close(attend(made, p), loop(p, made.weight)[2])


@pytest.mark.parametrize("order", ["rope first", "cope first"])
def test_beside_rope_the_gates_are_turned_and_the_table_is_not(order):
    p, made = problem(kv=2, s=6), cope()
    parts = (rw.RoPE(8), made) if order == "rope first" else (made, rw.RoPE(8))
    q, k = rw.RoPE(8).rotate(p.q, p.k)
    close(attend(rw.Sequential(*parts), p), loop(p, made.weight, q=q, k=k)[2])
    close(decoded(rw.Sequential(*parts), p, 3), loop(p, made.weight, q=q, k=k)[2])


# ---- properties ------------------------------------------------------------------------------------------------------


def test_starts_as_nope():
    p, made = problem(kv=2), rw.ContextualCoPE(8).double()
    assert torch.equal(attend(made, p), attend(rw.NoPE(), p))
    attend(made, p).square().sum().backward()
    assert made.weight.grad.abs().max() > 0  # and learns from there
    assert made.npos_max == 64


def test_open_gates_count_tokens():
    p, npos_max = problem(s=9), 4
    q = torch.zeros_like(p.q)
    q[..., 0], p.k[..., 0] = 40.0, 40.0
    q[..., 1:] = p.q[..., 1:]
    p = rw.Attention(q, p.k, p.v)
    made = cope(npos_max=npos_max)
    i = torch.arange(9)
    index = (i[:, None] - i + 1).clamp(0, npos_max - 1)
    z = q @ made.weight.T
    want = z.gather(-1, index.expand(2, 4, 9, 9))
    close(added(made, p), want, 1e-10, where=triangle(9))
    place = contextual_positions(logits(p), triangle(9), 100)
    assert torch.equal(place[..., triangle(9)], (i[:, None] - i + 1)[triangle(9)].double().expand(2, 4, -1))


def test_positions_are_sums_of_gates():
    p, npos_max = problem(s=9), 4
    s, seen = logits(p), triangle(9)
    place = contextual_positions(s, seen, npos_max)
    i = torch.arange(9)
    most = (i[:, None] - i + 1).clamp(max=npos_max - 1).double()
    assert (place[..., seen] >= 0).all()
    assert (place <= most.clamp(min=0) + 1e-12)[..., seen].all()
    fall = place[..., :-1] - place[..., 1:]
    below = seen[:, :-1] & seen[:, 1:]
    assert (fall[..., below] >= -1e-12).all()
    free = below & (place[..., :-1] < npos_max - 1)
    close(fall, s.sigmoid()[..., :-1], where=free)
    assert free.any()
    assert not free[..., below].all()
    close(place.diagonal(dim1=-2, dim2=-1), s.sigmoid().diagonal(dim1=-2, dim2=-1))


def test_one_embedding_changes_nothing():
    p, made = problem(), cope(npos_max=1)
    close(added(made, p), (p.q @ made.weight.T).expand(2, 4, 7, 7), where=triangle(7))
    close(attend(made, p), attend(rw.NoPE(), p))


def test_bias_is_linear_in_the_table():
    p = problem()
    a, b, both = cope(seed=1), cope(seed=2), cope()
    both.weight.data = 2 * a.weight.data - 3 * b.weight.data
    seen = triangle(7)
    close(added(both, p), 2 * added(a, p) - 3 * added(b, p), where=seen)


def test_later_tokens_change_nothing():
    p, made = problem(), cope()
    other = rw.Attention(*(torch.cat([t[:, :, :4], t[:, :, 4:] + 1], 2) for t in (p.q, p.k, p.v)))
    close(attend(made, other)[:, :, :4], attend(made, p)[:, :, :4], 1e-14)
    with pytest.raises(NotCausal):
        attend(made, p.replace(causal=False))


def test_gradients_are_right():
    p, made = problem(b=1, h=2, s=4, d=3, seed=3), cope(3, npos_max=3)
    place = contextual_positions(logits(p), triangle(4), 3)[..., triangle(4)]
    off = (place - place.round()).abs()
    assert off[place < 2].min() > 1e-3  # away from whole numbers, where w has a kink
    inputs = [t.clone().requires_grad_() for t in (p.q, p.k, p.v, made.weight.detach())]

    def run(q, k, v, weight):
        after = torch.func.functional_call(made, {"weight": weight}, (rw.Attention(q, k, v),))
        return rw.attend(after, backend="dense")

    assert torch.autograd.gradcheck(run, inputs)


def test_whole_positions_pass_no_gradient_to_gates():
    s = torch.full((1, 1, 3, 3), 60.0, dtype=torch.float64, requires_grad=True)
    place = contextual_positions(s, triangle(3), 9)
    assert torch.equal(place[0, 0, 2].detach(), torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    clamped = contextual_positions(
        torch.zeros(1, 1, 3, 9, dtype=torch.float64, requires_grad=True), torch.ones(3, 9, dtype=torch.bool), 2
    )
    assert clamped.max() == 1


# ---- masks, heads and caches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
@pytest.mark.parametrize("gate", ["keys", "values"])
def test_decoding_is_the_full_pass(gate, sizes):
    p, made = problem(kv=2), cope(gate=gate)
    close(decoded(made, p, *sizes), attend(made, p))


def test_left_padding_counts_nothing():
    p, made = problem(s=7), cope()
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1, :3] = False
    got = attend(made, p.replace(positions=rw.Positions.arange(7, valid=valid)))
    alone = rw.Attention(*(t[1:, :, 3:] for t in (p.q, p.k, p.v)))
    close(got[1:, :, 3:], attend(made, alone))
    close(got[:1], attend(made, rw.Attention(*(t[:1] for t in (p.q, p.k, p.v)))))


def test_other_documents_count_nothing():
    p, made = problem(b=1, s=7), cope()
    packed = p.replace(positions=rw.Positions.arange(7, document_ids=torch.tensor([0, 0, 0, 1, 1, 1, 1])))
    alone = rw.Attention(*(t[:, :, 3:] for t in (p.q, p.k, p.v)))
    close(attend(made, packed)[:, :, 3:], attend(made, alone))


def test_position_ids_play_no_part():
    p, made = problem(), cope()
    other = p.replace(positions=rw.Positions(torch.tensor([9, 1, 5, 5, 0, 100, 2])))
    assert torch.equal(attend(made, other), attend(made, p))


@pytest.mark.parametrize("gate", ["keys", "values"])
def test_grouped_heads_equal_repeated_ones(gate):
    p, made = problem(h=6, kv=2), cope(gate=gate)
    close(attend(made, p), attend(made, expanded(p)))


def test_counts_are_summed_in_full_precision():
    q = torch.zeros(1, 1, 1, 4, dtype=torch.bfloat16)
    q[..., 0], weight = 1.0, torch.zeros(5000, 4)
    weight[:, 0] = torch.arange(5000.0)
    made = rw.ContextualCoPE(4, 5000)
    made.weight.data = weight
    k = torch.zeros(1, 1, 2000, 4, dtype=torch.bfloat16)
    k[..., 0] = -6.0  # logits of −3: gates of 0.0474
    got = added(made, rw.Attention(q, k, k))[0, 0, 0, 0].item()
    assert got == pytest.approx(2000 * torch.tensor(-3.0).sigmoid().item(), rel=1e-4)
