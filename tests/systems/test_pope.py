"""PoPE (arXiv 2509.10534)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import FULL, attend, close, decoded, expanded, golden, logits, problem
from torch.nn.functional import softplus

import ropewalk as rw

CASES = golden("061")


def pope(d=8, heads=4, delta=True, **options):
    """PoPE in float64, with phases inside their range unless ``delta`` says otherwise."""
    made = rw.PoPE(d, heads, **options).double()
    if delta is True:
        made.delta.data = (
            -2 * math.pi * torch.rand(made.delta.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        )
    elif isinstance(delta, torch.Tensor):
        made.delta.data = delta.double()
    return made


def cosines(p, at_q, at_k, theta, delta):
    """(1/√d) Σ_c μ(q_tc) μ(k_sc) cos((s − t) θ_c + δ_hc), by the formula; δ is (H, d)."""
    gap = (at_k[None, :] - at_q[:, None]).double()
    phase = gap[None, :, :, None] * theta + delta[:, None, None].clamp(-2 * math.pi, 0)
    group = p.num_heads // p.num_kv_heads
    k = softplus(p.k).repeat_interleave(group, 1)
    return torch.einsum("bhtc,bhsc,htsc->bhts", softplus(p.q), k, phase.cos()) * p.q.shape[-1] ** -0.5


def ladder(d, base=10_000.0):
    return torch.tensor([base ** (-c / d) for c in range(d)], dtype=torch.float64)


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    made = pope(case.params["head_dim"], case.params["heads"], case.inputs["delta_raw"], base=case.params["theta"])
    q, k, at = case.inputs["q"], case.inputs["k"], case.inputs["positions"]
    close(made.freqs, case.outputs["inv_freq"], FULL)
    got_q, got_k = made.rotate(q, k, at)
    close(got_q, case.outputs["q_rot"], FULL)
    close(got_k, case.outputs["k_rot"], FULL)
    p = rw.Attention(q, k, k, rw.Positions(at), scale=1.0)
    close(logits(made(p)), case.outputs["scores_unscaled"], FULL)


def test_golden_clamp():
    case = CASES["bias-clamped"]
    assert case.inputs["delta_raw"].max() > 0
    assert case.inputs["delta_raw"].min() < -2 * math.pi
    made = pope(8, 2, case.inputs["delta_raw"])
    made.project_()
    close(made.delta, case.outputs["delta_clamped"], FULL)


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [8, 5, 1])
@pytest.mark.parametrize("kv", [4, 2])
def test_cartesian_form_is_the_cosine_formula(d, kv):
    p, made = problem(kv=kv, d=d), pope(d, 4, num_kv_heads=kv)
    at = torch.tensor([0, 3, 4, 10, 11, 40, 2])
    want = cosines(p, at, at, ladder(d), made.delta.repeat_interleave(4 // kv, 0))
    close(logits(made(p.replace(positions=rw.Positions(at)))), want)
    shifted = p.replace(positions=rw.Positions(at + 977))
    close(logits(made(shifted)), want, 1e-11)


def test_widths_double_and_the_scale_stays():
    p = problem(d=6, dv=3)
    after = pope(6)(p)
    assert after.q.shape[-1] == after.k.shape[-1] == 12
    assert after.v is p.v
    assert after.logit_scale == 6**-0.5
    assert attend(pope(6), p).shape == (2, 4, 7, 3)
    given = problem(d=6, scale=0.7)
    close(logits(pope(6)(given)), logits(pope(6)(p)) * 0.7 * 6**0.5)
    close(attend(pope(6), p, "sdpa"), attend(pope(6), p))


def test_without_phases_the_nearest_key_fits_best():
    p, made = problem(scale=1.0), pope(delta=None)
    assert not made.delta.any()
    for phase in (made, rw.PoPE(8, phase="none")):
        got = logits(phase(p))
        sizes = softplus(p.q) @ softplus(p.k).transpose(-1, -2)
        assert (got <= sizes + 1e-12).all()
        assert (got >= -sizes - 1e-12).all()
        diagonal = torch.eye(7, dtype=torch.bool)
        close(got, sizes, where=diagonal)
        swapped = logits(phase(rw.Attention(p.k, p.q, p.v, scale=1.0)))
        close(swapped, got.transpose(-1, -2))


def test_logits_are_bounded_with_phases():
    p = problem(scale=1.0)
    sizes = softplus(p.q) @ softplus(p.k).transpose(-1, -2)
    assert (logits(pope()(p)).abs() <= sizes + 1e-12).all()


def test_nothing_has_magnitude_log_two():
    zero = torch.zeros(1, 4, 3, 8, dtype=torch.float64)
    q, k = pope().rotate(zero, zero)
    for x in (q, k):
        close(x.unflatten(-1, (8, 2)).norm(dim=-1), torch.full((1, 4, 3, 8), math.log(2), dtype=torch.float64))


def test_keys_keep_the_norm_of_their_magnitudes():
    p = problem()
    q, k = pope().rotate(p.q, p.k)
    close(q.norm(dim=-1), softplus(p.q).norm(dim=-1))
    close(k.norm(dim=-1), softplus(p.k).norm(dim=-1))


def test_a_still_channel_always_adds():
    p, made = problem(scale=1.0, d=1), rw.PoPE(1, phase="none")
    still = p.replace(positions=rw.Positions(torch.zeros(7)))
    assert (logits(made(still)) > 0).all()


def one_channel(encoding, width, content, channels):
    """The logits of one query at 0 with its keys at −30 ... 30, contents in some channels alike for every key."""
    q, k = (
        torch.full((1, 1, 1, width), -60.0, dtype=torch.float64),
        torch.full((1, 1, 61, width), -60.0, dtype=torch.float64),
    )
    if not isinstance(encoding, rw.PoPE):
        q, k = q * 0, k * 0
    for c, (a, b) in zip(channels, content, strict=True):
        q[..., c], k[..., c] = a, b
    positions = rw.Positions(q=torch.zeros(1), k=torch.arange(-30, 31))
    return logits(encoding(rw.Attention(q, k, k, positions, causal=False)))[0, 0, 0]


def test_content_never_moves_the_best_distance():
    contents = [(0.3, 1.2), (-2.0, 0.1), (4.0, -1.0), (-0.5, -0.5)]
    for channel in range(4):
        made = pope(4, 1)
        best = {int(one_channel(made, 4, [c], [channel]).argmax()) for c in contents}
        assert len(best) == 1
    pairs = [((0.3, 1.2), (0.9, -0.4)), ((-2.0, 0.1), (0.5, 1.0)), ((1.0, -1.0), (2.0, 0.3))]
    assert len({int(one_channel(rw.RoPE(4), 4, c, [0, 1]).argmax()) for c in pairs}) > 1  # of RoPE it is false


# ---- the phase -------------------------------------------------------------------------------------------------------


def test_phases_are_clamped():
    p = problem()
    none = logits(pope(delta=None)(p))
    close(logits(pope(delta=torch.full((4, 8), 0.25))(p)), none)
    close(logits(pope(delta=torch.full((4, 8), -10.0))(p)), none)  # −2π is the same angle
    assert (logits(pope(delta=torch.full((4, 8), -1.0))(p)) - none).abs().max() > 0.1


def test_gradient_of_the_phase():
    p = problem()

    def gradient(value):
        made = pope(delta=torch.full((4, 8), value))
        attend(made, p).square().sum().backward()
        return made.delta.grad

    assert (gradient(-1.0).abs() > 0).all()
    assert (gradient(0.0)[:, :6].abs() > 0).all()  # the boundary passes gradients
    assert not gradient(0.25).any()
    assert not gradient(-7.0).any()


def test_gradients_are_right():
    made, p = pope(3, 2), problem(b=1, h=2, s=4, d=3)
    inputs = [t.clone().requires_grad_() for t in (p.q, p.k, made.delta.detach())]

    def run(q, k, delta):
        after = torch.func.functional_call(made, {"delta": delta}, (rw.Attention(q, k, p.v),))
        return rw.attend(after, backend="dense")

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("project", [False, True])
def test_training_moves_phases_below_zero(project):
    torch.manual_seed(0)
    p, made = problem(b=4, h=2, s=9, d=8), rw.PoPE(8, 2)
    target = attend(pope(8, 2), p).detach()
    step = torch.optim.SGD([made.delta], lr=2.0)
    first = None
    for _ in range(60):
        loss = (attend(made, p) - target).square().mean()
        first = loss.item() if first is None else first
        step.zero_grad()
        loss.backward()
        step.step()
        if project:
            made.project_()
    assert loss.item() < first
    assert (made.delta < -1e-3).any()
    if project:
        assert (made.delta <= 0).all()


def test_initial_phases():
    torch.manual_seed(0)
    assert not rw.PoPE(64, 8).delta.any()
    uniform = rw.PoPE(64, 8, phase="uniform").delta
    assert uniform.requires_grad
    assert -2 * math.pi <= uniform.min() < -6
    assert -0.3 < uniform.max() <= 0
    assert rw.PoPE(64, 8, num_kv_heads=2).delta.shape == (2, 64)
    assert rw.PoPE(64, phase="none").delta is None
    with pytest.raises(rw.ConfigError, match="num_kv_heads"):
        rw.PoPE(64)


# ---- forms -----------------------------------------------------------------------------------------------------------


def test_grouped_heads_have_a_phase_a_key_head():
    p, made = problem(h=6, kv=2), pope(8, num_kv_heads=2)
    wide = pope(8, 6, made.delta.detach().repeat_interleave(3, 0))
    close(attend(made, p), attend(wide, expanded(p)))


def test_partial_leaves_the_rest_to_a_dot_product():
    p, part = problem(d=8), pope(3)
    after = rw.Partial(part, 3)(p)
    polar = cosines(
        rw.Attention(p.q[..., :3], p.k[..., :3], p.v), torch.arange(7), torch.arange(7), ladder(3), part.delta
    )
    rest = p.q[..., 3:] @ p.k[..., 3:].transpose(-1, -2)
    close(logits(after), (polar * 3**0.5 + rest) * 8**-0.5)
    close(decoded(rw.Partial(part, 3), p, 2), attend(rw.Partial(part, 3), p))


def test_axial_channels_have_a_ladder_an_axis():
    p, made = problem(d=10, causal=False), pope(10, axes=2)
    at = torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [7, 3]])
    want = 0.0
    for axis, run in enumerate((slice(0, 5), slice(5, 10))):
        half = rw.Attention(p.q[..., run], p.k[..., run], p.v)
        want = want + cosines(half, at[:, axis], at[:, axis], ladder(5), made.delta[:, run]) * 5**0.5
    positions = rw.Positions(at[None])
    close(logits(made(p.replace(positions=positions))), want * 10**-0.5)
    with pytest.raises(rw.PositionError, match="2"):
        made(p)
    with pytest.raises(rw.ConfigError):
        rw.PoPE(9, 4, axes=2)


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(sizes):
    p, made = problem(kv=2), pope(8, num_kv_heads=2)
    close(decoded(made, p, *sizes), attend(made, p))


def test_the_last_query_alone():
    p, made = problem(), pope()
    last = rw.Attention(p.q[:, :, -1:], p.k, p.v)
    close(attend(made, last), attend(made, p)[:, :, -1:])


def test_frequencies_survive_bfloat16():
    p = problem(d=16)
    low = rw.PoPE(16, 4).to(torch.bfloat16)
    close(low.freqs, ladder(16))
    far = torch.arange(7) + 5000
    q, k = p.q.bfloat16(), p.k.bfloat16()
    want = rw.PoPE(16, 4).rotate(q.double(), k.double(), far)
    for got, right in zip(low.rotate(q, k, far), want, strict=True):
        close(got, right, 2**-7)
