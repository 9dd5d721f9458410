"""Multiplicative GRAPE (arXiv 2512.07805), KV-shift, and the spectra of factors."""

from __future__ import annotations

import math

import pytest
import torch
from reference import (
    DOUBLE,
    SINGLE,
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
)

import ropewalk as rw
from ropewalk.analysis import factors
from ropewalk.core.errors import CannotEdit, NeedsHiddenStates
from ropewalk.rotary.grape import quarter_turn, rank2_rotate, sine_quotients, skew_planes

CASES = golden("085")
WIDTH = 5
AT = torch.tensor([0.0, 1.0, 2.5, 7.0, -3.0, 40.0, 41.0], dtype=torch.float64)


def with_x(**options):
    p = problem(**options)
    return p.replace(x=random(p.q.shape[0], p.q.shape[2], WIDTH, seed=41))


def moved_off(made, by=0.4, seed=70):
    """The encoding in float64, away from its start."""
    made = made.double()
    for i, parameter in enumerate(made.parameters()):
        parameter.data = parameter.data + by * random(*parameter.shape, seed=seed + i)
    return made


def generator(a, b):
    return a[..., :, None] * b[..., None, :] - b[..., :, None] * a[..., None, :]


def by_generator(p, generators, at=None):
    """(1/√d) qᵀ exp((j − i) L) k with a generator a query head, by matrix exponentials."""
    at = torch.arange(p.q.shape[2], dtype=torch.float64) if at is None else at
    gap = (at[None, :] - at[:, None])[None, :, :, None, None]
    turns = torch.linalg.matrix_exp(gap * generators[:, None, None])  # (H, Q, K, d, d)
    k = p.k.repeat_interleave(p.num_heads // p.num_kv_heads, 1)
    return torch.einsum("bhid,hijde,bhje->bhij", p.q, turns, k) * p.q.shape[-1] ** -0.5


# ---- golden values ---------------------------------------------------------------------------------------------------


def test_golden_nonctx():
    case = CASES["grape_m_nonctx"]
    d, c = case.params["head_dim"], case.params["log_freq_scale"]
    made = rw.GRAPEMultiplicative(d, log_freq_scale=c, base=case.params["base"]).double()
    made.log_freq.data = case.inputs["log_freq"]
    close(made.frequencies().expand(2, -1), case.outputs["freq"], SINGLE)
    q, k = heads_first(case.inputs["q"]), heads_first(case.inputs["k"])
    # The released code turns by the negative angle: as if at the negative position.
    got = made.rotate(q, k, -torch.arange(6))
    for turned, name in zip(got, ("q_rot", "k_rot"), strict=True):
        close(turned, heads_first(case.outputs[name]), SINGLE)
    # Checkpoints of it want the channels of each pair swapped, in q and k.
    close(swapped_logits(made, q, k), logits_of(case), SINGLE)


def swapped_logits(made, q, k, x=None):
    after = made(rw.Attention(q.roll(4, -1), k.roll(4, -1), k, x=x))
    return after.q @ after.k.mT


def logits_of(case):
    return heads_first(case.outputs["q_rot"]) @ heads_first(case.outputs["k_rot"]).mT


def test_golden_ctx():
    case = CASES["grape_m_ctx"]
    logit = case.inputs["omega_logits"]
    made = rw.GRAPEContextual(case.params["head_dim"], 1, base=case.params["base"]).double()
    made.weight.data.fill_(1.0)
    made.bias.data.zero_()
    q, k = heads_first(case.inputs["q"]), heads_first(case.inputs["k"])
    seen, state = made.observe(rw.Attention(q, k, k, x=logit).located())
    close(seen.kf["sums"][:, 0], case.outputs["phi"], SINGLE)
    close(state, case.outputs["phi"][:, None, -1] + (logit[:, None, -1] / 16).sigmoid(), SINGLE)
    # The released code turns by the negative angle, so (a, b) and (a, −b) change places.
    flip = torch.tensor([1.0] * 4 + [-1.0] * 4, dtype=torch.float64)
    mirrored = made(rw.Attention(q * flip, k * flip, k, x=logit))
    for turned, name in ((mirrored.q, "q_rot"), (mirrored.k, "k_rot")):
        close(turned * flip, heads_first(case.outputs[name]), SINGLE)
    close(swapped_logits(made, q, k, logit), logits_of(case), SINGLE)


def test_golden_rank2():
    case = CASES["grape_m_rank2"]
    a, b, x, at = (case.inputs[n] if n in case.inputs else case.params[n] for n in ("a", "b", "x", "positions"))
    at = torch.as_tensor(at, dtype=torch.float64)
    place = case.params["omega"] * at
    close(rank2_rotate(x.expand(5, 6), place, a, b), case.outputs["y"], DOUBLE)
    close(
        (a.square().sum() * b.square().sum() - (a @ b).square()).sqrt(),
        torch.tensor(case.outputs["s"]).double(),
        DOUBLE,
    )
    made = rw.GRAPERank2(6, 1, freq=case.params["omega"]).double()
    made.a.data, made.b.data = a[None], b[None]
    made.freq.data.fill_(case.params["omega"])
    many = x.expand(1, 1, 5, 6)
    q, k = made.rotate(many, many, at)
    close(q[0, 0], case.outputs["y"], DOUBLE)
    close(k[0, 0], case.outputs["y"], DOUBLE)


# ---- one plane: rank 2 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("angle", [1.0, 1e-3, 1e-7, 0.0])
def test_closed_form_is_the_matrix_exponential(size, angle):
    a, c, x = random(6, seed=1) * size, random(6, seed=2), random(6, seed=3)
    b = a * 0.7 + angle * c  # parallel for angle 0
    for t in (-3.0, 0.0, 0.01, 1.0, 2.5):
        want = torch.linalg.matrix_exp(t * generator(a, b)) @ x
        close(rank2_rotate(x, torch.tensor(t, dtype=torch.float64), a, b), want, 1e-10)


def test_parallel_vectors_turn_nothing_and_learn():
    a = random(6, seed=1).requires_grad_()
    b = (2 * a.detach()).requires_grad_()
    x, t = random(6, seed=3), torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    y = rank2_rotate(x, t, a, b)
    close(y, x, 1e-11)
    y.square().sum().backward()
    y = rank2_rotate(x, t, a, b)
    grads = torch.autograd.grad((y * random(6, seed=4)).sum(), (a, b, t))
    assert all(g.isfinite().all() for g in grads)
    assert grads[1].abs().max() > 0
    zero = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(rank2_rotate(x, t, zero, b).sum(), zero)
    assert g.isfinite().all()


def test_quotients_meet_at_the_threshold():
    z2 = torch.tensor([0.0, 1e-12, 9.999999e-7, 1.000001e-6, 0.25, 40.0], dtype=torch.float64, requires_grad=True)
    first, second = sine_quotients(z2)
    z = z2.detach().sqrt()
    close(first[2:], torch.sin(z[2:]) / z[2:])
    close(second[2:], 2 * (z[2:] / 2).sin().square() / z2.detach()[2:])
    assert first[0] == 1
    assert second[0] == 0.5
    (g,) = torch.autograd.grad(first.sum() + second.sum(), z2)
    close(g[:4], torch.full((4,), -1 / 6 - 1 / 24, dtype=torch.float64), 1e-6)
    inner = torch.tensor([0.25, 4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sine_quotients, (inner,))


def test_it_is_a_group():
    a, b, x = random(6, seed=1), random(6, seed=2), random(6, seed=3)

    def turn(x, t):
        return rank2_rotate(x, torch.tensor(t, dtype=torch.float64), a, b)

    close(turn(turn(x, 1.5), -4.0), turn(x, -2.5))
    close(turn(x, 2.0).norm(), x.norm())
    eye = torch.eye(6, dtype=torch.float64)
    close(turn(eye, -2.0), turn(eye, 2.0).mT)  # rows are images: G(−n) = G(n)ᵀ


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv", [4, 2])
def test_rank2_logits(tied, kv):
    p = problem(kv=kv, d=6, positions=rw.Positions(AT))
    made = moved_off(rw.GRAPERank2(6, num_kv_heads=kv, freq=0.4, tied=tied))
    a, b = made.planes()
    each = (made.freq[:, None, None] * generator(a, b)).repeat_interleave(4 // kv, 0)
    close(logits(made(p)), by_generator(p, each, AT), 1e-10)
    if tied:
        close(b, quarter_turn(a))
        assert (a * b).sum(-1).abs().max() < 1e-12
        s = (a.square().sum(-1) * b.square().sum(-1) - (a * b).sum(-1).square()).sqrt()
        close(s, a.square().sum(-1))


def test_the_start_of_rank2():
    made = rw.GRAPERank2(6, 3, freq=0.3)
    assert (made.a.norm(dim=-1) == 1).all()
    assert (made.b.norm(dim=-1) == 1).all()
    assert ((made.a * made.b).sum(-1) == 0).all()
    p = problem(h=3, d=6)
    close(
        logits(made.double()(p)),
        logits(rw.Partial(rw.RoPE(2), 2)(p.replace(positions=rw.Positions(-0.3 * torch.arange(7))))),
        1e-6,
    )


def test_rank2_on_two_axes():
    p = problem(s=6, d=6, positions=rw.grid_positions(2, 3), causal=False)
    made = rw.GRAPERank2(6, 4, freq=0.5, axes=2).double()
    axial = rw.Partial(rw.AxialRoPE(4), 4)  # disjoint planes: axial RoPE, of one frequency and the other sign
    close(logits(made(p)), logits(axial(p.replace(positions=rw.Positions(-0.5 * p.positions.query.position)))), 1e-12)
    moved_off(made)
    a, b = made.planes()
    each = made.freq[..., None, None] * generator(a, b)  # (axes, H, d, d)
    at = p.positions.query.position[0].double()
    turns = [torch.linalg.matrix_exp(at[:, axis, None, None] * each[axis][:, None]) for axis in (0, 1)]
    want = torch.einsum("hsde,hsef,bhsf->bhsd", *turns, p.q)
    close(made(p).q, want, 1e-11)
    cache = rw.KVCache(made)
    cache.extend(p.replace(causal=True))
    with pytest.raises(CannotEdit):
        cache.edit([0, 1], rw.Positions(torch.zeros(1, 2, 2)))


# ---- many planes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("basis", ["none", "exp", "cayley", "householder", "qr"])
def test_it_starts_as_rope(basis, pairing):
    p = problem(positions=rw.Positions(AT))
    want = logits(rw.RoPE(8, 500.0, pairing)(p))
    for c in (1.0, 16.0):
        made = rw.GRAPEMultiplicative(8, basis=basis, base=500.0, log_freq_scale=c, pairing=pairing).double()
        close(logits(made(p)), want, 3e-6)  # log frequencies are float32 numbers
    differ(logits(moved_off(made, 0.4 * c)(p)), want)


@pytest.mark.parametrize("options", [
    {}, {"heads_share": False}, {"basis": "exp"}, {"basis": "cayley", "heads_share": False}, {"basis": "householder", "rank": 4},
    {"basis": "qr", "rank": 6, "heads_share": False}, {"basis": "exp", "basis_heads_share": False}, {"rank": 4},
])  # fmt: skip
@pytest.mark.parametrize("kv", [4, 2])
def test_logits_are_those_of_one_generator(options, kv):
    p = problem(kv=kv, d=8, positions=rw.Positions(AT))
    made = moved_off(
        rw.GRAPEMultiplicative(8, num_kv_heads=kv, pairing="interleaved", base=20.0, log_freq_scale=2.0, **options)
    )
    frame = made.frame(torch.float64)
    frame = torch.eye(8, made.rank, dtype=torch.float64)[None] if frame is None else frame
    close(frame.mT @ frame, torch.eye(made.rank, dtype=torch.float64).expand(len(frame), -1, -1))
    turns = torch.zeros(len(made.log_freq) if made.log_freq.ndim == 2 else 1, made.rank, made.rank, dtype=torch.float64)
    for j in range(made.rank // 2):
        w = made.frequencies()[..., j]
        turns[:, 2 * j + 1, 2 * j], turns[:, 2 * j, 2 * j + 1] = w, -w
    each = (frame @ turns @ frame.mT).expand(kv, 8, 8).repeat_interleave(4 // kv, 0)
    close(logits(made(p)), by_generator(p, each, AT), 1e-9)
    for side, was in ((made(p).q, p.q), (made(p).k, p.k)):
        close(side.norm(dim=-1), was.norm(dim=-1))
    far = p.replace(positions=rw.Positions(AT + 1000))
    close(logits(made(far)), logits(made(p)), 1e-9)


def test_axes_start_as_axial_rope():
    p = problem(s=6, positions=rw.grid_positions(2, 3), causal=False)
    made = rw.GRAPEMultiplicative(8, axes=2, pairing="interleaved").double()
    close(logits(made(p)), logits(rw.AxialRoPE(8)(p)), 1e-6)
    with pytest.raises(rw.PositionError, match="2"):
        made(problem())


@pytest.mark.parametrize("heads", [None, 4])
def test_a_mixture_of_planes_that_overlap(heads):
    lead = () if heads is None else (heads,)
    a, b, w = random(3, *lead, 8, seed=1), random(3, *lead, 8, seed=2), random(3, *lead, 1, 1, seed=3)
    whole = (w * generator(a, b)).sum(0)
    one, other = generator(a[0], b[0]), generator(a[1], b[1])
    differ(one @ other, other @ one)  # they do not commute
    made = rw.GRAPEMultiplicative.from_generator(whole)
    assert made.rank == 6
    assert made.raw.dtype == torch.float64
    p = problem(positions=rw.Positions(AT))
    close(logits(made(p)), by_generator(p, whole.expand(4, 8, 8), AT), 1e-10)
    assert set(dict(made.named_parameters())) == {"raw", "log_freq"}


def test_planes_of_a_skew_matrix():
    raw = random(2, 6, 6)
    whole = raw - raw.mT
    frame, frequency = skew_planes(whole)
    close(frame.mT @ frame, torch.eye(6, dtype=torch.float64).expand(2, 6, 6))
    assert (frequency.diff(dim=-1) <= 0).all()
    blocks = torch.stack(
        [torch.block_diag(*[torch.tensor([[0.0, -w], [w, 0.0]], dtype=torch.float64) for w in f]) for f in frequency]
    )
    close(frame @ blocks @ frame.mT, whole)
    close(torch.linalg.eigvals(whole).imag.sort(-1).values[:, 3:], frequency.flip(-1))
    for bad in (raw, torch.zeros(1, 4, 4), raw[0], random(2, 4, 5), whole * math.nan):
        with pytest.raises(rw.ShapeError):
            skew_planes(bad)
    several = torch.stack([whole[0], generator(raw[0, 0], raw[0, 1])])
    with pytest.raises(rw.ShapeError, match=r"\[3, 1\]"):
        skew_planes(several)


@pytest.mark.parametrize("basis", ["none", "exp", "cayley", "householder", "qr"])
def test_everything_learns_from_the_start(basis):
    p, made = problem(), rw.GRAPEMultiplicative(8, 4, basis=basis, rank=6, heads_share=False).double()
    attend(made, p).square().sum().backward()
    assert made.log_freq.grad.abs().min() > 0
    if made.raw is not None:
        assert (made.raw.grad.abs().amax((1, 2)) > 0).all()


def test_the_scale_of_log_frequencies_slows_learning():
    p, gradients = problem(), []
    for c in (1.0, 16.0):
        made = rw.GRAPEMultiplicative(8, log_freq_scale=c).double()
        attend(made, p).square().sum().backward()
        gradients.append(made.log_freq.grad)
    close(gradients[0], gradients[1] * 16, 1e-5)


# ---- contextual ----------------------------------------------------------------------------------------------------------


def contextual(d=8, by=3.0, **options):
    return moved_off(rw.GRAPEContextual(d, WIDTH, **options), by)


def test_contextual_gates_at_the_start():
    p, made = with_x(), rw.GRAPEContextual(8, WIDTH).double()
    close(made.bias, torch.tensor([-6.907]), 1e-4)
    close(made.steps(p.located()), torch.full((2, 1, 7, 1), 0.3937, dtype=torch.float64), 1e-4)
    gate = made.bias.item() / 16
    slow = rw.Positions(torch.arange(7) / (1 + math.exp(-gate)))
    close(logits(made(p)), logits(rw.RoPE(8, pairing="half")(p.replace(positions=slow))), 1e-6)
    differ(logits(contextual()(p)), logits(made(p)))


def test_open_gates_are_rope():
    p, made = with_x(), rw.GRAPEContextual(8, WIDTH).double()
    made.bias.data.fill_(16 * 60.0)
    close(logits(made(p)), logits(rw.RoPE(8, pairing="half")(p)), 1e-6)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("kv", [4, 2])
def test_contextual_logits(per_head, kv):
    p, made = with_x(kv=kv), contextual(num_kv_heads=kv, per_head=per_head)
    gate = ((p.x @ made.weight.T + made.bias) / 16).sigmoid().transpose(1, 2)  # (B, G, S)
    phi = gate.cumsum(-1) - gate
    for b in range(2):
        for h in range(4):
            at = rw.Positions(phi[b, h * kv // 4 if per_head else 0])
            one = rw.Attention(
                *(t[b : b + 1, n : n + 1] for t, n in ((p.q, h), (p.k, h * kv // 4), (p.v, h * kv // 4)))
            )
            freq = tuple(made.log_freq.exp().tolist())
            rope = rw.RoPE(8, pairing="half", spectrum=rw.Spectrum(freq))
            close(logits(made(p))[b : b + 1, h : h + 1], logits(rope(one.replace(positions=at))), 1e-11)


def test_a_token_speeds_up_what_comes_after_it():
    p, made = with_x(), contextual()
    changed = p.x.clone()
    changed[:, 3] += 1.0
    a, b = (made.observe(p.replace(x=x).located())[0].kf["sums"] for x in (p.x, changed))
    close(a[:, :, :4], b[:, :, :4])  # the sum at a token is of those before it
    assert ((a - b).abs()[:, :, 4:] > 1e-6).all()


# ---- KV-shift -----------------------------------------------------------------------------------------------------------


def shift(kv=4, seed=80):
    made = rw.KVShift(WIDTH, num_kv_heads=kv).double()
    made.of_k.data, made.of_v.data = random(kv, WIDTH, seed=seed), random(kv, WIDTH, seed=seed + 1)
    return made


def test_kv_shift_mixes_with_the_token_before():
    p, made = with_x(kv=2), shift(2)
    after = made(p)
    for got, own, weight in ((after.k, p.k, made.of_k), (after.v, p.v, made.of_v)):
        alpha = (p.x @ weight.T).sigmoid().transpose(1, 2)[..., None]
        prior = torch.cat([torch.zeros_like(own[:, :, :1]), own[:, :, :-1]], 2)
        close(got, alpha * prior + (1 - alpha) * own)
    assert after.q is p.q


def test_kv_shift_comes_first_wherever_it_stands():
    p, made = with_x(), shift()
    rope, gate = rw.RoPE(8), rw.GRAPEAdditive(4, 8).double()
    shifted = made(p)
    want = attend(rope, rw.Attention(p.q, shifted.k, shifted.v))
    close(attend(rw.Sequential(made, rope), p), want)
    close(attend(rw.Sequential(rope, made), p), want)
    close(attend(rw.Sequential(made, gate), p), attend(gate, rw.Attention(p.q, shifted.k, shifted.v)))
    part = rw.Partial(made, 4)(p)
    close(part.k, torch.cat([shifted.k[..., :4], p.k[..., 4:]], -1))
    close(part.v, shifted.v)


def test_kv_shift_starts_anew_in_documents_and_skips_padding():
    p, made = with_x(b=1), shift()
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    packed = made(p.replace(positions=rw.Positions.arange(7, document_ids=ids)))
    alone = made(rw.Attention(p.q[:, :, 3:], p.k[:, :, 3:], p.v[:, :, 3:], x=p.x[:, 3:]))
    close(packed.k[:, :, 3:], alone.k)
    valid = torch.tensor([[0, 1, 1, 0, 0, 1, 1]]).bool()
    index = valid[0].nonzero()[:, 0]
    padded = made(p.replace(positions=rw.Positions.arange(7, valid=valid)))
    real = made(rw.Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index], x=p.x[:, index]))
    close(padded.k[:, :, index], real.k)
    close(padded.v[:, :, index], real.v)


# ---- decoding, grouped heads, bad input ---------------------------------------------------------------------------------


MAKERS = [
    lambda: moved_off(rw.GRAPERank2(8, num_kv_heads=2)),
    lambda: moved_off(rw.GRAPEMultiplicative(8)),
    lambda: moved_off(rw.GRAPEMultiplicative(8, num_kv_heads=2, basis="exp", heads_share=False)),
    lambda: moved_off(rw.GRAPEMultiplicative(8, basis="qr", rank=4)),
    lambda: contextual(),
    lambda: contextual(num_kv_heads=2, per_head=True),
    lambda: shift(2),
    lambda: rw.Sequential(shift(2), contextual(), rw.ALiBi(4)),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("sizes", [(), (2, 3)])
def test_decoding_is_the_full_pass(make, sizes):
    p, made = with_x(kv=2), make()
    close(decoded(made, p, *sizes), attend(made, p))


def test_grouped_heads():
    p, made = with_x(h=6, kv=2), contextual(num_kv_heads=2, per_head=True)
    wide = contextual(num_kv_heads=6, per_head=True)
    wide.weight.data, wide.bias.data = made.weight.data.repeat_interleave(3, 0), made.bias.data.repeat_interleave(3, 0)
    wide.log_freq.data = made.log_freq.data
    close(attend(made, p), attend(wide, expanded(p)))


def test_learned_planes_of_cached_keys_move_with_their_own_head():
    p, made = problem(kv=2), moved_off(rw.GRAPERank2(8, num_kv_heads=2))
    cache = rw.KVCache(made)
    cache.extend(p.replace(positions=rw.Positions.arange(7)))
    cache.edit([0, 3, 4, 5, 6], torch.tensor([0, 1, 2, 3, 4]))
    index = torch.tensor([0, 3, 4, 5, 6])
    close(cache[0].stored[0].k, made(rw.Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index])).k, 1e-11)


def test_bad_input():
    for bad in (
        {"rank": 3}, {"rank": 10}, {"rank": 0}, {"basis": "lu"}, {"log_freq_scale": 0.0}, {"base": -1.0}, {"axes": 3},
        {"heads_share": False}, {"basis": "exp", "basis_heads_share": False}, {"pairing": "thirds"},
    ):  # fmt: skip
        with pytest.raises(rw.ConfigError):
            rw.GRAPEMultiplicative(8, **bad)
    with pytest.raises(rw.ConfigError, match="even"):
        rw.GRAPEMultiplicative(7)
    for bad in ({"num_heads": None}, {"head_dim": 1}, {"head_dim": 7, "tied": True}, {"axes": 5}):
        with pytest.raises(rw.ConfigError):
            rw.GRAPERank2(**{"head_dim": 8, "num_heads": 2, **bad})
    with pytest.raises(rw.ConfigError, match="num_kv_heads"):
        rw.GRAPEContextual(8, WIDTH, per_head=True)
    with pytest.raises(rw.ConfigError, match="num_kv_heads"):
        rw.KVShift(WIDTH)
    for made in (rw.GRAPEMultiplicative(4), rw.GRAPERank2(4, 4), rw.GRAPEContextual(4, WIDTH)):
        with pytest.raises(rw.ShapeError, match="head_dim 4"):
            made(with_x())
    for made in (rw.GRAPEContextual(8, WIDTH), rw.KVShift(WIDTH, 4)):
        with pytest.raises(NeedsHiddenStates, match="x="):
            made(problem())
        with pytest.raises(rw.ShapeError, match="hidden_size"):
            made(with_x().replace(x=random(2, 7, 4)))


# ---- spectra ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [0.0, 1e-3, -0.7, 5.0, -300.0])
def test_singular_values_of_additive_factors(s):
    found = factors.factor_spectrum(factors.additive_factor(4, s))
    larger, smaller = factors.additive_singular_values(s)
    close(found.singular_values, torch.cat([larger[None], torch.ones(4, dtype=torch.float64), smaller[None]]), 1e-10)
    close(found.eigenvalues.abs(), torch.ones(6, dtype=torch.float64), 1e-6)
    close(found.singular_values.prod(), torch.ones((), dtype=torch.float64), 1e-10)
    close(
        smaller.square(), torch.as_tensor(1 + s * s / 2 - abs(s) * math.sqrt(1 + s * s / 4), dtype=torch.float64), 1e-5
    )


def test_the_lift_adds_the_bias():
    q, k = random(4), random(4, seed=1)
    lifted_q, lifted_k = (
        torch.cat([t, torch.tensor(e, dtype=torch.float64)]) for t, e in ((q, [1.0, 0.0]), (k, [0.0, 1.0]))
    )
    close(lifted_q @ factors.additive_factor(4, -0.8).T @ lifted_k, q @ k - 0.8)


def test_rotations_keep_lengths_and_paths_shrink():
    a, b = random(5), random(5, seed=1)
    found = factors.factor_spectrum(factors.rotation_factor(generator(a, b), 0.3))
    close(found.singular_values, torch.ones(5, dtype=torch.float64))
    s = (a.square().sum() * b.square().sum() - (a @ b).square()).sqrt() * 0.3
    angles = found.eigenvalues.angle().abs().sort().values
    close(
        angles[-2:],
        torch.remainder(s, 2 * math.pi).expand(2).minimum(2 * math.pi - torch.remainder(s, 2 * math.pi)),
        1e-9,
    )
    w = torch.nn.functional.normalize(random(3, 5), dim=-1)
    for beta in (0.0, 0.4, 1.0, 2.0):
        path = factors.factor_spectrum(factors.path_factor(w, beta))
        want = torch.tensor([*[1.0] * 4, abs(1 - beta)], dtype=torch.float64).sort(descending=True).values
        close(path.singular_values, want.expand(3, 5), 1e-9)
    assert (path.contraction > 0.999).all()
    with pytest.raises(rw.ShapeError):
        factors.factor_spectrum(random(3, 4))
    with pytest.raises(rw.ConfigError):
        factors.factor_spectrum(torch.full((2, 2), math.nan))
