"""RoPE (arXiv 2104.09864)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.rotary.linear_attention import linear_rope

CASES = golden("066")
PAIRING = {"interleaved": "interleaved", "half_split": "half"}


def turned(x, positions, base=10_000.0, pairing="interleaved"):
    """Turn (B, H, S, d) by complex numbers: nothing of the library."""
    d = x.shape[-1]
    w = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    phase = torch.polar(torch.ones((), dtype=torch.float64), positions.double()[..., None] * w)
    if phase.ndim == 3:
        phase = phase[:, None]
    if pairing == "interleaved":
        return torch.view_as_real(torch.complex(x[..., 0::2], x[..., 1::2]) * phase).flatten(-2)
    z = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * phase
    return torch.cat([z.real, z.imag], -1)


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("rope_")])
def test_golden_rotation(name):
    case = CASES[name]
    rope = rw.RoPE(case.params["head_dim"], case.params["base"], PAIRING[case.params["layout"]])
    positions = case.inputs["position_ids"]
    q, k = rope.rotate(case.inputs["q"], case.inputs["k"], positions)
    close(q, case.outputs["q_rot"], DOUBLE)
    close(k, case.outputs["k_rot"], DOUBLE)
    p = rw.Attention(case.inputs["q"], case.inputs["k"], case.inputs["k"], rw.Positions(positions))
    close(logits(rope(p)), case.outputs["logits"], DOUBLE)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("rope_")])
def test_golden_rotation_by_plain_functions(name):
    case = CASES[name]
    frequencies = rw.functional.inverse_frequencies(case.params["head_dim"], case.params["base"])
    cos, sin = rw.functional.rotary_tables(case.inputs["position_ids"], inv_freq=frequencies, dtype=torch.float64)
    for name in "qk":
        got = rw.functional.apply_rotary(case.inputs[name], cos, sin, PAIRING[case.params["layout"]])
        close(got, case.outputs[f"{name}_rot"], DOUBLE)


def test_golden_linear_attention():
    case = CASES["linear_attention_causal"]
    p = rw.Attention(*(case.inputs[n] for n in "qkv"))
    encoding = linear_rope(case.params["head_dim"], case.params["base"], PAIRING[case.params["layout"]])
    for backend in ("linear", "dense"):
        close(attend(encoding, p, backend), case.outputs["out"], DOUBLE)


def partial_sums(rope, distance):
    """(2/d) Σ_j |S_j|,  S_j = Σ_{i<j} exp(i m ω_i)."""
    w = rope.inv_freq
    angle = distance.double()[:, None] * w
    return torch.complex(angle.cos(), angle.sin()).cumsum(-1).abs().sum(-1) / len(w)


def test_golden_decay():
    case = CASES["decay_bound_d128"]
    rope = rw.RoPE(case.params["head_dim"], case.params["base"])
    got = partial_sums(rope, case.inputs["distances"])
    close(got, case.outputs["mean_abs_partial_sum"], DOUBLE)
    assert (got[1:] < got[:-1]).all()  # falls on a coarse grid


def test_decay_bounds_the_logit():
    d = 16
    rope, p = rw.RoPE(d), problem(b=1, h=1, s=60, d=d, scale=1.0)
    q, k = p.q[:, :, :1].expand(1, 1, 60, d), p.k[:, :, :1].expand(1, 1, 60, d)
    got = logits(rope(rw.Attention(q, k, k, scale=1.0)))[0, 0, :, 0]
    h = torch.complex(q[0, 0, 0, 0::2], q[0, 0, 0, 1::2]) * torch.complex(k[0, 0, 0, 0::2], -k[0, 0, 0, 1::2])
    step = torch.cat([h, h.new_zeros(1)]).diff().abs().max()
    bound = step * partial_sums(rope, torch.arange(60)) * d / 2
    assert (got.abs() <= bound + 1e-12).all()


# ---- group properties ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_is_multiplication_by_complex_numbers(pairing):
    p, at = problem(kv=2, d=10), random(2, 7, seed=9) * 50
    q, k = rw.RoPE(10, 500.0, pairing).rotate(p.q, p.k, at)
    close(q, turned(p.q, at, 500.0, pairing))
    close(k, turned(p.k, at, 500.0, pairing))


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_logits_depend_on_differences(pairing):
    p, rope = problem(), rw.RoPE(8, pairing=pairing)
    at = torch.tensor([0, 3, 3, 11, 5, 40, 2])
    want = logits(rope(p.replace(positions=rw.Positions(at))))
    for shift in (1, -7, 1000):
        close(logits(rope(p.replace(positions=rw.Positions(at + shift)))), want, 1e-12)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_rotations_form_a_group(pairing):
    p, rope = problem(), rw.RoPE(8, pairing=pairing)
    m, n = torch.arange(7) * 3, torch.tensor([5, 0, -2, 9, 100, 1, 4])

    def turn(x, at):
        return rope.rotate(x, x, at)[0]

    close(turn(turn(p.q, m), n), turn(p.q, m + n), 1e-13)
    assert torch.equal(turn(p.q, torch.zeros(7, dtype=torch.long)), p.q)  # R_0 = I
    close(turn(turn(p.q, m), -m), p.q, 1e-13)
    close((turn(p.q, m) * p.k).sum(-1), (p.q * turn(p.k, -m)).sum(-1), 1e-13)  # R_-m is the transpose of R_m
    close(turn(p.q, m).norm(dim=-1), p.q.norm(dim=-1), 1e-14)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_gradient_is_turned_back(pairing):
    p, rope = problem(), rw.RoPE(8, pairing=pairing)
    at, g = torch.arange(7) * 11, random(2, 4, 7, 8, seed=5)
    q = p.q.clone().requires_grad_()
    (rope.rotate(q, p.k, at)[0] * g).sum().backward()
    close(q.grad, rope.rotate(g, g, -at)[0], 1e-13)


def test_whole_width_partial_is_rope():
    p = problem()
    for ours, whole in zip(rw.Partial(rw.RoPE(8), 8).rotate(p.q, p.k), rw.RoPE(8).rotate(p.q, p.k), strict=True):
        assert torch.equal(ours, whole)


@pytest.mark.parametrize("width", [3, 7])
def test_odd_widths_are_refused(width):
    with pytest.raises(rw.ConfigError, match="even"):
        rw.RoPE(width)


# ---- pairings --------------------------------------------------------------------------------------------------------


def test_pairings_differ_by_a_permutation_of_channels():
    p = problem()
    order = torch.cat(
        [torch.arange(0, 8, 2), torch.arange(1, 8, 2)]
    )  # half[i] = inter[2i], half[i + d/2] = inter[2i + 1]
    permuted = rw.Attention(p.q[..., order], p.k[..., order], p.v)
    q, k = rw.RoPE(8).rotate(p.q, p.k)
    q_half, k_half = rw.RoPE(8, pairing="half").rotate(permuted.q, permuted.k)
    close(q_half, q[..., order], 1e-15)
    close(k_half, k[..., order], 1e-15)
    close(logits(rw.RoPE(8, pairing="half")(permuted)), logits(rw.RoPE(8)(p)), 1e-14)
    differ(attend(rw.RoPE(8, pairing="half"), p), attend(rw.RoPE(8), p))


def test_converted_weights_give_the_same_attention():
    x, heads, d = random(2, 7, 12), 4, 8
    w_q, w_k, w_v = (random(heads * d, 12, seed=s) for s in (1, 2, 3))

    def run(w_q, w_k, pairing):
        q, k, v = ((x @ w.T).unflatten(-1, (heads, d)).transpose(1, 2) for w in (w_q, w_k, w_v))
        return attend(rw.RoPE(d, pairing=pairing), rw.Attention(q, k, v))

    converted = [rw.convert_pairing(w, heads, "interleaved", "half") for w in (w_q, w_k)]
    close(run(*converted, "half"), run(w_q, w_k, "interleaved"), 1e-13)
    back = rw.convert_pairing(converted[0], heads, "half", "interleaved")
    assert torch.equal(back, w_q)


# ---- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at",
    [
        torch.tensor([4, 4, 4, 0, 0, 9, 9]),
        torch.tensor([6, 5, 4, 3, 2, 1, 0]),
        torch.tensor([0.0, 0.5, 0.25, 7.75, -3.5, 100.125, 1.0], dtype=torch.float64),
        torch.stack([torch.arange(7), torch.arange(7) * 2 + 1]),
    ],
    ids=["repeated", "reversed", "real", "batched"],
)
def test_positions_as_given(at):
    p = problem()
    q, k = rw.RoPE(8).rotate(p.q, p.k, at)
    close(q, turned(p.q, at))
    close(k, turned(p.k, at))


def test_precision_far_out():
    near, far = torch.arange(7), torch.arange(7) + 10_000_000
    p = problem(d=64)
    rope = rw.RoPE(64)
    close(
        logits(rope(p.replace(positions=rw.Positions(far)))),
        logits(rope(p.replace(positions=rw.Positions(near)))),
        1e-8,
    )
    single = rope.rotate(p.q.float(), p.k.float(), far)
    assert single[0].dtype == torch.float32
    for got, want in zip(single, rope.rotate(p.q, p.k, far), strict=True):
        close(got, want, 5e-7)
    low = rope.to(torch.bfloat16).rotate(p.q.bfloat16(), p.k.bfloat16(), far)
    for got, want in zip(low, rw.RoPE(64).rotate(p.q.bfloat16().double(), p.k.bfloat16().double(), far), strict=True):
        close(got, want, 2**-8)


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_frequencies_survive_casts(cast):
    rope = rw.RoPE(64).to(cast).double()
    close(rope.inv_freq, torch.tensor([10_000.0 ** (-2 * i / 64) for i in range(32)], dtype=torch.float64), 1e-15)
    assert rw.RoPE(64).to(cast).state_dict() == {}


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_decoding_is_the_full_pass(pairing):
    p, rope = problem(kv=2, s=9), rw.RoPE(8, pairing=pairing)
    close(decoded(rope, p, 4, 2), attend(rope, p))
    close(decoded(rope, p), attend(rope, p))


def test_explicit_positions_in_a_cache():
    p, rope = problem(s=6), rw.RoPE(8)
    at = torch.tensor([3, 1, 4, 1, 5, 9])
    cache, outputs = rw.KVCache(rope), []
    for i in range(6):
        step = rw.Attention(*(t[:, :, i : i + 1] for t in (p.q, p.k, p.v)), rw.Positions(at[i : i + 1]))
        outputs.append(rw.attend(cache.extend(step), backend="dense"))
    close(torch.cat(outputs, 2), attend(rope, p.replace(positions=rw.Positions(at))))


# ---- linear attention ------------------------------------------------------------------------------------------------


def linear_loop(p, turn):
    def positive(x):
        return torch.where(x > 0, x + 1, x.exp())

    q, k = positive(p.q), positive(p.k)
    at = torch.arange(q.shape[2])
    top = (turn(q, at) @ turn(k, at).transpose(-1, -2)).tril() @ p.v
    return top / (q @ k.transpose(-1, -2)).tril().sum(-1, keepdim=True)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_linear_attention_against_the_parallel_form(pairing):
    p = problem(s=11, dv=3)
    want = linear_loop(p, lambda x, at: turned(x, at, pairing=pairing))
    encoding = linear_rope(8, pairing=pairing)
    close(attend(encoding, p, "linear"), want)
    close(attend(encoding, p, "dense"), want)
    close(decoded(encoding, p, 4), want)


def test_linear_attention_recurrence_over_chunks():
    p = problem(b=1, h=2, s=300, d=4, dv=3)
    close(attend(linear_rope(4), p, "linear"), linear_loop(p, turned), 1e-9)


def test_linear_attention_without_turns_is_ordinary():
    p = problem(dv=5)
    still = rw.RoPE(8, spectrum=rw.Spectrum((0.0,) * 4))
    want = linear_loop(p, lambda x, at: x)
    close(attend(rw.Sequential(rw.LinearAttention(), still), p), want)
    close(attend(rw.LinearAttention(), p), want)
    differ(attend(linear_rope(8), p), want)


def test_linear_attention_both_ways():
    p = problem(causal=False)
    q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (p.q, p.k))
    at = torch.arange(7)
    want = turned(q, at) @ turned(k, at).transpose(-1, -2) @ p.v / (q @ k.transpose(-1, -2)).sum(-1, keepdim=True)
    close(attend(linear_rope(8), p, "linear"), want)


def test_periods_of_the_sheet():
    w = rw.RoPE(64).inv_freq
    assert w[0] == 1.0
    assert (2 * math.pi / w[-1]).item() == pytest.approx(2 * math.pi * 10_000.0 ** (62 / 64), rel=1e-12)


def test_tables_of_many_positions():
    """They are added up from fewer sines; a subclass with angles of its own keeps those."""

    class Bent(rw.RoPE):
        def angles(self, position):
            return super().angles(position.sqrt())

    tokens = rw.Positions.arange(8192, offset=10**6).query
    for encoding in (rw.RoPE(64), rw.RoPE(64, pairing="half"), Bent(64)):
        angles = encoding.angles(tokens.coordinates())[:, None]
        for made, exact in zip(encoding.tables(tokens, (), torch.float32), (angles.cos(), angles.sin()), strict=True):
            assert made.shape == (1, 1, 8192, 32) and (made.double() - exact).abs().max() < 1e-7
        for made, exact in zip(encoding.tables(tokens, (), torch.float64), (angles.cos(), angles.sin()), strict=True):
            assert torch.equal(made, exact)
