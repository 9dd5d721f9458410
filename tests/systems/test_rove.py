"""RoVE (arXiv 2606.11275)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, expanded, golden, problem, random
from torch import nn

import ropewalk as rw
from ropewalk.core.encoding import Encoding, Rotary
from ropewalk.core.errors import NotRotation
from ropewalk.rotary.rove import RotaryValue, RoVE, value_kernel

CASES = golden("073")
AT = torch.tensor([0, 3, 4, 10, 11, 40, 2])


def matrices(offset, d, base=10_000.0, pairing="interleaved", width=None):
    """R_δ as (..., width, width) matrices by definition, identity beyond d channels."""
    width = d if width is None else width
    out = torch.eye(width, dtype=torch.float64).repeat(*offset.shape, 1, 1)
    for m in range(d // 2):
        a, b = (2 * m, 2 * m + 1) if pairing == "interleaved" else (m, m + d // 2)
        angle = offset.double() * base ** (-2 * m / d)
        out[..., a, a], out[..., a, b] = angle.cos(), -angle.sin()
        out[..., b, a], out[..., b, b] = angle.sin(), angle.cos()
    return out


def double_sum(p, weights, d, **options):
    """Σ_j a_ij R_(p_j − p_i) v_j."""
    at = p.located().where.key.position[0]
    turned = matrices(at[None, :] - at[:, None], d, width=p.v.shape[-1], **options)
    v = p.v.repeat_interleave(p.num_heads // p.num_kv_heads, 1)
    return torch.einsum("bhij,ijxy,bhjy->bhix", weights, turned, v)


def placed(p, at=AT):
    return p.replace(positions=rw.Positions(at))


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    pairing, base, d = (case.params[n] for n in ("layout", "base", "head_dim"))
    q, k, v = (case.inputs[n] for n in "qkv")
    p = rw.Attention(q, k, v, rw.Positions(case.inputs["position_ids"]), causal=case.params["causal"])
    out, weights = rw.attend(RoVE(d, base, pairing)(p), "dense", return_weights=True)
    close(weights, case.outputs["attn"], DOUBLE)
    close(out, case.outputs["out"], DOUBLE)
    close(attend(RoVE(d, base, pairing), p, "sdpa"), case.outputs["out"], DOUBLE)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv", [4, 2, 1])
def test_is_the_double_sum(pairing, causal, kv):
    p = placed(problem(kv=kv, causal=causal))
    _, weights = rw.attend(rw.RoPE(8, pairing=pairing)(p), "dense", return_weights=True)
    got = attend(RoVE(8, pairing=pairing), p)
    close(got, double_sum(p, weights, 8, pairing=pairing))
    differ(got, attend(rw.RoPE(8, pairing=pairing), p))


def test_moving_all_positions_changes_nothing():
    p = problem()
    want = attend(RoVE(8), placed(p))
    for shift in (1, -7, 1000):
        close(attend(RoVE(8), placed(p, AT + shift)), want)
    inverse_left_out = rw.RoPE(8)  # values turned and not brought back are absolute
    turned = [rw.Attention(p.q, p.k, inverse_left_out.rotate(p.q, p.v, AT + s)[1]) for s in (0, 7)]
    differ(*(attend(rw.RoPE(8), t) for t in turned))


def test_still_values_are_rope():
    p = placed(problem())
    still = RoVE(8, value_spectrum=rw.Spectrum((0.0,) * 4))
    close(attend(still, p), attend(rw.RoPE(8), p), 1e-15)


def test_a_token_sees_itself_unturned():
    p = problem(s=1)
    close(attend(RoVE(8), p.replace(positions=rw.Positions(torch.tensor([37])))), p.v, 1e-15)
    p = placed(problem(mask=torch.eye(7, dtype=torch.bool)))
    close(attend(RoVE(8), p), p.v, 1e-15)


def test_norms():
    p = placed(problem())
    encoded = RoVE(8)(p)
    close(encoded.v.norm(dim=-1), p.v.norm(dim=-1), 1e-14)
    out, longest = rw.attend(encoded, "dense").norm(dim=-1), p.v.norm(dim=-1).cummax(-1).values
    assert (out <= longest + 1e-12).all()


def test_uniform_attention_is_a_dirichlet_kernel():
    n, d = 50, 8
    zero, one = torch.zeros(1, 1, n, d, dtype=torch.float64), torch.ones(1, 1, n, d, dtype=torch.float64)
    out = attend(RoVE(d), rw.Attention(zero, zero, one, causal=False))
    w = rw.RoPE(d).inv_freq
    gain = ((n * w / 2).sin() / (n * (w / 2).sin())).abs()
    got = out[0, 0].unflatten(-1, (4, 2)).norm(dim=-1) / math.sqrt(2)
    close(got, gain.expand(n, 4))
    assert gain[0] < 0.1 < 0.99 < gain[3]  # fast channels cancel, slow ones pass


def test_linear_in_v_with_right_gradients():
    p = placed(problem(s=5), AT[:5])
    a, b = random(2, 4, 5, 8, seed=5), random(2, 4, 5, 8, seed=6)
    got = attend(RoVE(8), p.replace(v=2 * a - 3 * b))
    close(got, 2 * attend(RoVE(8), p.replace(v=a)) - 3 * attend(RoVE(8), p.replace(v=b)))
    small = [t[:1, :2, :3].clone().requires_grad_() for t in (p.q, p.k, p.v)]
    assert torch.autograd.gradcheck(lambda q, k, v: attend(RoVE(8), rw.Attention(q, k, v)), small)


def test_grouped_heads_are_expanded_ones():
    p = placed(problem(h=6, kv=2))
    close(attend(RoVE(8), p), attend(RoVE(8), placed(expanded(p))))


@pytest.mark.parametrize("sizes", [(), (4, 2)])
def test_decoding_is_the_full_pass(sizes):
    p = problem(kv=2, s=9)
    close(decoded(RoVE(8), p, *sizes), attend(RoVE(8), p))


# ---- options ---------------------------------------------------------------------------------------------------------


def test_values_alone():
    p = placed(problem())
    _, weights = rw.attend(p, "dense", return_weights=True)
    got = attend(RoVE(8, value_only=True), p)
    close(got, double_sum(p, weights, 8))
    close(attend(RotaryValue(rw.RoPE(8)), p), got, 1e-15)


def test_values_of_another_width_have_their_own_ladder():
    p = placed(problem(dv=6))
    _, weights = rw.attend(rw.RoPE(8)(p), "dense", return_weights=True)
    close(attend(RoVE(8, value_dim=6), p), double_sum(p, weights, 6))
    close(attend(RoVE(), p), double_sum(p, weights, 6))
    with pytest.raises(rw.ShapeError, match="6"):
        RoVE(8)(p)


def test_some_channels_of_the_values():
    p = placed(problem())
    _, weights = rw.attend(rw.RoPE(8)(p), "dense", return_weights=True)
    got = attend(RoVE(8, value_channels=4), p)
    close(got, double_sum(p, weights, 4))
    close(got[..., 4:], attend(rw.RoPE(8), p)[..., 4:], 1e-14)


def test_separate_frequencies():
    p = placed(problem())
    _, weights = rw.attend(rw.RoPE(8)(p), "dense", return_weights=True)
    got = attend(RoVE(8, value_spectrum=rw.geometric(8, base=100.0)), p)
    close(got, double_sum(p, weights, 8, base=100.0))


def test_the_attention_factor_is_not_for_values():
    p = placed(problem())
    hot = rw.Spectrum(rw.geometric(8).inv_freq, attention_factor=1.3)
    _, weights = rw.attend(rw.RoPE(spectrum=hot)(p), "dense", return_weights=True)
    want = double_sum(p, weights, 8)
    close(attend(RoVE(spectrum=hot), p), want)
    close(attend(rw.Sequential(rw.RoPE(spectrum=hot), RotaryValue(rw.RoPE(spectrum=hot))), p), want)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoVE(7),
        lambda: RoVE(8, value_channels=3),
        lambda: RoVE(8, value_channels=4, value_spectrum=rw.geometric(8)),
        lambda: RotaryValue(rw.RoPE(8), 0),
        lambda: RotaryValue(nn.Linear(3, 3)),
        lambda: RoVE(8, pairing="halves"),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(rw.ConfigError):
        make()


def test_too_many_channels_are_refused():
    with pytest.raises(rw.ShapeError, match="12"):
        RotaryValue(rw.RoPE(12), 12)(problem())
    with pytest.raises(rw.ShapeError):
        RotaryValue(rw.RoPE(spectrum=rw.geometric(12)))(problem())


# ---- other operators -------------------------------------------------------------------------------------------------


class Axial(Rotary):
    """Two axes, two pairs each."""

    axes = 2

    def angles(self, position):
        return (position[..., None] * torch.tensor([1.0, 0.1], dtype=torch.float64)).flatten(-2)


class Heads(Rotary):
    """A frequency for each of two key heads, learned."""

    def __init__(self):
        super().__init__()
        self.freq = nn.Parameter(torch.tensor([[1.0, 0.3, 0.2, 0.1], [0.5, 0.4, 0.3, 0.2]]))

    def angles(self, position):
        return position[:, None, :, None] * self.freq.double()[:, None]


class Screw(Encoding):
    """k → A^p k: invertible, not orthogonal."""

    generator = 0.02 * random(8, 8, seed=3) + 0.01 * torch.eye(8, dtype=torch.float64)

    def rewrite(self, p):
        def at(tokens):
            return torch.matrix_exp(tokens.coordinates(p.at)[..., None, None] * self.generator)[:, None]

        k = (at(p.where.key) @ p.k[..., None])[..., 0]
        q = (torch.linalg.inv(at(p.where.query)).transpose(-1, -2) @ p.q[..., None])[..., 0]
        return p.replace(q=q, k=k)


def test_two_axes():
    p = problem(causal=False)
    at = torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [7, 3]])
    moved = [rw.Positions((at + torch.tensor(by))[None]) for by in ([0, 0], [5, -3])]
    both = rw.Sequential(Axial(), RotaryValue(Axial()))
    outs = [attend(both, p.replace(positions=w)) for w in moved]
    close(*outs)
    differ(outs[0], attend(Axial(), p.replace(positions=moved[0])))


def test_frequencies_of_each_key_head_that_learn():
    p = placed(problem(kv=2))
    both = rw.Sequential(Heads(), RotaryValue(Heads())).double()
    out = attend(both, p)
    for head in range(2):
        freq = rw.Spectrum(tuple(list(both)[1].operator.freq[head].tolist()))
        part = rw.Attention(
            p.q[:, 2 * head : 2 * head + 2], p.k[:, head : head + 1], p.v[:, head : head + 1], p.positions
        )
        close(out[:, 2 * head : 2 * head + 2], attend(RoVE(spectrum=freq), part))
    close(decoded(both, problem(kv=2), 3), attend(both, problem(kv=2)))
    out.square().sum().backward()
    assert (list(both)[1].operator.freq.grad.abs() > 0).all()


@pytest.mark.parametrize("dims", [None, 8])
def test_operators_that_are_not_orthogonal(dims):
    p = placed(problem(kv=2, dv=8 if dims is None else 11))
    both = rw.Sequential(Screw(), RotaryValue(Screw(), dims))
    _, weights = rw.attend(Screw()(p), "dense", return_weights=True)
    step = torch.matrix_exp(Screw.generator)
    v = p.v.repeat_interleave(2, 1)
    want = torch.zeros(2, 4, 7, p.v.shape[-1], dtype=torch.float64)
    for i in range(7):
        for j in range(7):
            m = torch.eye(p.v.shape[-1], dtype=torch.float64)
            m[:8, :8] = torch.linalg.matrix_power(step, int(AT[j] - AT[i]))
            want[:, :, i] += weights[:, :, i, j, None] * (v[:, :, j] @ m.T)
    close(attend(both, p), want, 1e-9)
    close(attend(both, placed(p, AT + 3)), want, 1e-9)
    close(decoded(both, p.replace(positions=None), 3), attend(both, p.replace(positions=None)), 1e-9)


def test_by_matrices_is_by_tables():
    p = placed(problem(kv=2))

    class Plain(Encoding):  # the same map, hidden from the fast way
        def rewrite(self, p):
            return rw.RoPE(8).rewrite(p)

    rows = rw.Positions(torch.stack([AT, AT + 5]))
    for where in (p.where, rows):
        q = p.replace(positions=where)
        close(attend(RotaryValue(Plain()), q), attend(RotaryValue(rw.RoPE(8)), q), 1e-12)


@pytest.mark.parametrize("operator", [rw.ALiBi(4), rw.FoX(4, 5), rw.PerHead([rw.RoPE(8), rw.RoPE(8)])])
def test_operators_that_are_no_maps_of_keys(operator):
    with pytest.raises(rw.RopewalkError):
        RotaryValue(operator)(problem())
    with pytest.raises(NotRotation):
        RotaryValue(rw.PoPE(8, 4))(problem())


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (rw.HyperbolicRoPE(8), "more than a map"),  # a `Rotary` by its angles, which are no angles of a rotation
        (rw.XPos(8), "depends on the other tokens"),
        (rw.QKNorm(8), "no linear map"),
        (rw.CARoPE(5, 4, 8), "reads more than keys"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_operators_that_are_more_than_they_seem(operator, why):
    with pytest.raises(NotRotation, match=why):
        RotaryValue(operator)(problem())


@pytest.mark.parametrize("kv", [4, 2])
def test_planes_that_are_learned_turn_back_too(kv):
    """GRAPE turns in planes of its own, not in pairs of channels."""
    turned = rw.GRAPEMultiplicative(8, kv, basis="exp", heads_share=False).double()
    with torch.no_grad():
        turned.raw.copy_(random(kv, 8, 8))
    both, p = rw.Sequential(turned, RotaryValue(turned)), problem(kv=kv)
    out = attend(both, p)
    close(out, attend(both, placed(p, torch.arange(7) + 40)), 1e-12)
    _, weights = rw.attend(turned(p), "dense", return_weights=True)
    eye = torch.eye(8, dtype=torch.float64).expand(1, kv, 8, 8)
    want = torch.zeros_like(out)
    for i in range(7):
        for j in range(i + 1):  # what a key at i - j of the query becomes: vector by vector
            step = turned.rotate(eye, eye, torch.full((8,), j - i))[1][0]
            want[:, :, i] += weights[:, :, i, j, None] * torch.einsum(
                "hmc,bhm->bhc", step, p.v[:, :, j]
            ).repeat_interleave(4 // kv, 1)
    close(out, want, 1e-12)


def test_factors_of_a_fixed_centre_are_undone():
    p, operator = problem(), rw.XPos(8, scale_base=16.0, centre=3.0)
    _, weights = rw.attend(p, "dense", return_weights=True)
    pairs = torch.view_as_complex(p.v.unflatten(-1, (4, 2)))
    zeta, omega = (torch.arange(4).double() / 4 + 0.4) / 1.4, rw.RoPE(8).inv_freq
    t = torch.arange(7)[:, None] - torch.arange(7)
    kernel = zeta ** (t[..., None] / 16) * torch.exp(-1j * t[..., None] * omega)
    want = torch.einsum("bhij,ijm,bhjm->bhim", weights.to(kernel.dtype), kernel, pairs)
    close(attend(RotaryValue(operator), p), torch.view_as_real(want).flatten(-2), 1e-12)


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [RoVE(8), rw.Sequential(rw.RoPE(8), RotaryValue(rw.RoPE(8), 8))])
def test_evicted_and_moved_on_is_recomputed(encoding):
    p, keep = problem(s=9), torch.tensor([0, 1, 5, 6, 7])
    cache, fresh = rw.KVCache(encoding), rw.KVCache(encoding)
    first = rw.Attention(*(t[:, :, :8] for t in (p.q, p.k, p.v)))
    cache.extend(first)
    cache.edit(keep, torch.arange(5))
    fresh.extend(rw.Attention(*(t[:, :, keep] for t in (p.q, p.k, p.v))))
    close(cache[0].stored[0].v, fresh[0].stored[0].v)
    last = rw.Attention(*(t[:, :, 8:] for t in (p.q, p.k, p.v)))
    close(rw.attend(cache.extend(last), "dense"), rw.attend(fresh.extend(last), "dense"))


def test_matrices_move_too():
    v, keep = problem(s=8), torch.tensor([0, 2, 5])
    cache, fresh = rw.KVCache(RotaryValue(Screw())), rw.KVCache(RotaryValue(Screw()))
    cache.extend(v)
    cache.edit(keep, torch.tensor([1, 2, 3]))
    part = rw.Attention(*(t[:, :, keep] for t in (v.q, v.k, v.v)), rw.Positions(torch.tensor([1, 2, 3])))
    fresh.extend(part)
    close(cache[0].stored[0].v, fresh[0].stored[0].v, 1e-9)


# ---- the kernel ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_attention_is_a_convolution_with_the_kernel(pairing):
    x, n = random(1, 7, 12), 7
    w_v, w_o = random(8, 12, seed=1), random(5, 8, seed=2)
    q, k = random(1, 1, n, 8, seed=3), random(1, 1, n, 8, seed=4)
    p = rw.Attention(q, k, (x @ w_v.T)[:, None])
    out, weights = rw.attend(RoVE(8, pairing=pairing)(p), "dense", return_weights=True)
    offsets = torch.arange(-6, 7)
    psi = value_kernel(w_v, w_o, offsets, rw.RoPE(8).inv_freq, pairing)
    assert psi.shape == (13, 5, 12)
    i = torch.arange(n)
    by_pair = psi[i[None, :] - i[:, None] + 6]
    close(out[:, 0] @ w_o.T, torch.einsum("ij,ijox,jx->io", weights[0, 0], by_pair, x[0])[None])
    close(psi[6], w_o @ w_v, 1e-14)
    with pytest.raises(rw.ShapeError):
        value_kernel(w_v, w_o.T, offsets, rw.RoPE(8).inv_freq)


def test_low_precision_rounds_twice_only():
    p = placed(problem(), AT * 1000)
    low = rw.Attention(*(t.bfloat16() for t in (p.q, p.k, p.v)), p.positions)
    want = attend(RoVE(8), rw.Attention(*(t.double() for t in (low.q, low.k, low.v)), p.positions))
    close(attend(RoVE(8), low), want, 2**-6)
