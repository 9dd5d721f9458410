"""HoPE, the hyperbolic one (arXiv 2509.05218)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, expanded, golden, logits, problem, random, triangle

import ropewalk as rw
from ropewalk.analysis.distance import distance_curve
from ropewalk.coordinates.segments import segment_positions
from ropewalk.core.errors import CannotCompose, NotCausal
from ropewalk.embedding.bipe import BiPE
from ropewalk.rotary import hope_hyperbolic
from ropewalk.rotary.hope_hyperbolic import HyperbolicRoPE

CASES = golden("012")
AT = torch.tensor([0, 3, 4, 10, 11, 40, 52])
RAPIDITY, DAMPING = (0.3, 0.1, 0.05, 0.01), 0.4


def hope(**options):
    return HyperbolicRoPE(8, RAPIDITY, DAMPING, **options)


def placed(p, at=AT):
    return p.replace(positions=rw.Positions(at))


def by_boosts(p, m, n, rapidity, damping):
    """The published form, interleaved: cosh and sinh of the distance (with its sign), damped; one number a pair."""
    r = (m.double()[:, None] - n.double()[None, :])[..., None]
    rapidity = torch.tensor(rapidity, dtype=torch.float64)
    k = p.k.repeat_interleave(p.num_heads // p.num_kv_heads, 1)
    (q1, q2), (k1, k2) = ((x[..., None, 0::2], x[..., None, 1::2]) for x in (p.q, k))
    k1, k2 = k1.transpose(2, 3), k2.transpose(2, 3)
    same, crossed = q1 * k1 + q2 * k2, q1 * k2 + q2 * k1
    return ((-damping * r).exp() * (same * (r * rapidity).cosh() + crossed * (r * rapidity).sinh())).sum(-1)


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    q, k = case.inputs["q"], case.inputs["k"]
    made = HyperbolicRoPE(q.shape[-1], case.params["theta"], case.params["theta_prime"])
    q_out, k_out = made.transform_separable(q, k)
    close(q_out, case.outputs["q_transformed"], DOUBLE)
    close(k_out, case.outputs["k_transformed"], DOUBLE)
    seen = triangle(q.shape[2])
    close(made.scores(q, k), case.outputs["raw_scores_causal"], DOUBLE, where=seen)
    _, weights = rw.attend(made(rw.Attention(q, k, k)), "dense", return_weights=True)
    close(weights, case.outputs["attn_causal"], DOUBLE)
    close(torch.tensor(q.shape[-1] ** -0.5), torch.tensor(case.params["scale"]), 1e-7)


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [4, 2])
def test_light_cone_is_the_published_form(kv):
    p = placed(problem(kv=kv))
    want = by_boosts(p, AT, AT, RAPIDITY, DAMPING)
    close(logits(hope()(p)), want * 8**-0.5, where=triangle(7))
    close(logits(hope()(placed(p, AT + 977))), want * 8**-0.5, where=triangle(7))
    diagonal = torch.eye(7, dtype=torch.bool)
    close(want, p.q @ p.k.repeat_interleave(4 // kv, 1).transpose(-1, -2), where=diagonal)


def test_pairings_differ_by_a_permutation_of_channels():
    p, order = placed(problem()), torch.cat([torch.arange(0, 8, 2), torch.arange(1, 8, 2)])
    halves = p.replace(q=p.q[..., order], k=p.k[..., order])
    close(logits(hope(pairing="half")(halves)), logits(hope()(p)))


def test_separable_form():
    p, at = problem(), torch.tensor([0, 1, 2, 2, 4, 7, 9])
    q, k = hope().transform_separable(p.q, p.k, at)
    close(q @ k.transpose(-1, -2), hope().scores(p.q, p.k, at), where=triangle(7))
    for x, sign, out in ((p.q, 1, q), (p.k, -1, k)):  # boosts keep x1² − x2²
        damped = (-sign * at.double() * DAMPING).exp()[:, None]
        form, want = ((y[..., 0::2].square() - y[..., 1::2].square()) for y in (out / damped, x))
        close(form, want)
    assert q.norm(dim=-1).max() <= p.q.norm(dim=-1).max()
    grouped = problem(kv=2)
    learned = HyperbolicRoPE(8, damping_heads=2)
    learned.rho.data = torch.tensor([0.3, -1.0])
    q, k = learned.transform_separable(grouped.q, grouped.k)
    close(
        q @ k.repeat_interleave(2, 1).transpose(-1, -2), learned.scores(grouped.q, grouped.k), 1e-7, where=triangle(7)
    )


def test_boosts_are_a_group():
    made = HyperbolicRoPE(8, RAPIDITY, DAMPING)
    x = problem().q

    def boost(x, by):  # by the damped transform of a query, undamped
        at = torch.full((7,), float(by), dtype=torch.float64)
        return made.transform_separable(x, x, at)[0] * math.exp(by * DAMPING)

    close(boost(boost(x, 2), 5), boost(x, 7))
    close(boost(boost(x, 3), -3), x)
    columns = torch.eye(8, dtype=torch.float64)[None, None]
    matrix = made.transform_separable(columns, columns, torch.full((8,), 4.0, dtype=torch.float64))[0][0, 0]
    for i in range(4):  # the determinant of a boost is 1
        block = matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] * math.exp(4 * DAMPING)
        close(torch.det(block), torch.ones(()))


def test_keys_that_would_overflow_are_refused():
    x = torch.zeros(1, 1, 2, 8)
    for dtype, last in ((torch.float32, 100), (torch.bfloat16, 100), (torch.float16, 12), (torch.float64, 900)):
        far, near = torch.tensor([0, 2 * last]), torch.tensor([0, last])
        hope().transform_separable(x.to(dtype), x.to(dtype), near)
        with pytest.raises(rw.PositionError, match="range"):
            hope().transform_separable(x.to(dtype), x.to(dtype), far)


# ---- decay -----------------------------------------------------------------------------------------------------------


def distances(made, q, k, reach=60):
    """The score of one query and keys of one content at distances 0 ... reach."""
    at = rw.Positions(q=[reach], k=reach - torch.arange(reach + 1))
    k = k[:, :, None].expand(-1, -1, reach + 1, -1)
    return logits(made(rw.Attention(q[:, :, None], k, k, at, scale=1.0)))[:, :, 0]


def test_equal_content_fades_monotonically():
    q, k = random(3, 2, 8), random(3, 2, 8, seed=1)
    same = distances(hope(), q, q)
    assert (same.diff() < 0).all()
    assert (same > 0).all()
    assert same[..., -1].max() < 0.01 * same[..., 0].min()
    got = distances(hope(), q, k)
    r = torch.arange(61, dtype=torch.float64)
    slowest = (-r * (DAMPING - max(RAPIDITY))).exp()
    u, w = ((x[..., 0::2] + s * x[..., 1::2]) * math.sqrt(0.5) for x in (q,) for s in (1, -1))
    ku, kw = ((x[..., 0::2] + s * x[..., 1::2]) * math.sqrt(0.5) for x in (k,) for s in (1, -1))
    bound = (u * ku).abs().sum(-1, keepdim=True) + (w * kw).abs().sum(-1, keepdim=True)
    assert (got.abs() <= bound * slowest + 1e-12).all()


def test_every_light_cone_channel_keeps_its_sign():
    made, r = hope(), torch.arange(61, dtype=torch.float64)
    for channel in range(8):
        x = torch.zeros(1, 1, 8, dtype=torch.float64)
        pair, sign = channel // 2, 1 if channel % 2 == 0 else -1
        x[..., 2 * pair], x[..., 2 * pair + 1] = math.sqrt(0.5), sign * math.sqrt(0.5)
        close(distances(made, x, x)[0, 0], (-r * (DAMPING - sign * RAPIDITY[pair])).exp())
        close(distances(made, x, -x)[0, 0], -(-r * (DAMPING - sign * RAPIDITY[pair])).exp())


def test_without_rapidities_it_is_exponential_decay():
    p = placed(problem())
    got = logits(HyperbolicRoPE(8, [0.0] * 4, 0.3)(p))
    r = (AT[:, None] - AT[None, :]).double()
    close(got, p.q @ p.k.transpose(-1, -2) * (-0.3 * r).exp() * 8**-0.5, where=triangle(7))


def test_rotation_is_the_imaginary_case():
    p = placed(problem(kv=2))
    for pairing in ("interleaved", "half"):
        made = HyperbolicRoPE(8, rapidity_scale=1.0, kind="rope", pairing=pairing)
        rope = rw.RoPE(8, pairing=pairing)
        assert torch.equal(attend(made, p), attend(rope, p))
        for a, b in zip(made.transform_separable(p.q, p.k, AT), rope.rotate(p.q, p.k, AT), strict=True):
            close(a, b, 1e-15)
        free = p.replace(causal=False)
        close(attend(made, free), attend(rope, free), 1e-15)
    close(decoded(made, problem(), 3), attend(made, problem()))
    cache, fresh, keep = rw.KVCache(made), rw.KVCache(made), torch.tensor([0, 2, 5])
    cache.extend(problem())
    cache.edit(keep, torch.arange(3))
    q = problem()
    fresh.extend(rw.Attention(*(t[:, :, keep] for t in (q.q, q.k, q.v))))
    close(cache[0].stored[0].k, fresh[0].stored[0].k)


# ---- both directions -------------------------------------------------------------------------------------------------


def test_both_ways_fade_with_the_distance():
    p = placed(problem(causal=False))
    got = logits(hope(bidirectional=True)(p))
    close(got, by_boosts(p, AT, AT, RAPIDITY, DAMPING) * 8**-0.5, where=triangle(7))
    mirrored = placed(rw.Attention(p.q.flip(2), p.k.flip(2), p.v, causal=False), (52 - AT).flip(0))
    close(logits(hope(bidirectional=True)(mirrored)).flip(2, 3), got)
    with pytest.raises(NotCausal, match="bidirectional"):
        hope()(p)


def test_ids_that_run_backwards_fade_too():
    p = placed(problem(), AT.flip(0))
    got = attend(hope(), p)
    assert got.isfinite().all()
    close(logits(hope()(p)), logits(hope(bidirectional=True)(p)))


# ---- blocks ----------------------------------------------------------------------------------------------------------


def layouts(n):
    i = torch.arange(n)
    yield "counted", i[None], i[None]
    yield "rows apart", torch.stack([i, i + 5]), torch.stack([i, i + 5])
    yield "packed", i[None] % 37, i[None] % 37
    yield "far apart", i[None] * 4099, i[None] * 4099
    yield "backwards", i.flip(0)[None], i.flip(0)[None]
    yield "queries later", i[None] + 2 * n, i[None]
    yield "queries first", i[None], i[None] + 100
    yield (
        "real",
        torch.linspace(0, 9, n, dtype=torch.float64)[None],
        torch.linspace(0, 70, n, dtype=torch.float64)[None],
    )


@pytest.mark.parametrize("damping", [0.31, 0.4, 3.0])
def test_blocks_are_the_definition(damping):
    n = 150  # three blocks, the last not full
    q, k = (random(2, 2, n, 8, seed=s) for s in (0, 1))
    rates = HyperbolicRoPE(8, RAPIDITY, damping).rates()[None, :, None]
    for name, at_q, at_k in layouts(n):
        m, x = (t.double()[:, None, :, None] for t in (at_q, at_k))
        want = hope_hyperbolic._at_once(q, k, m, x, rates)
        close(hope_hyperbolic._in_blocks(q, k, m, x, rates), want, 1e-13)
        single = hope_hyperbolic._in_blocks(q.float(), k.float(), m, x, rates.float())
        error = (single - want).abs().max()
        assert error <= 1e-6 * want.abs().max() + 1e-36, name  # what float32 cannot hold is 0


def test_blocks_have_the_gradients_of_the_definition():
    n = 140
    rates = HyperbolicRoPE(8, RAPIDITY, DAMPING).rates()[None, :, None].float().requires_grad_()
    q, k = (random(2, 2, n, 8, seed=s).float().requires_grad_() for s in (0, 1))
    m = torch.arange(n, dtype=torch.float64)[None, None, :, None]
    weight = random(2, 2, n, n, seed=3).float()
    grads = []
    for way in (hope_hyperbolic._in_blocks, hope_hyperbolic._at_once):
        grads.append(torch.autograd.grad((way(q, k, m, m, rates) * weight).sum(), (q, k, rates)))
    for a, b in zip(*grads, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sequences_stay_finite(dtype):
    q, k, v = (random(1, 1, 4096, 8, seed=s).to(dtype) for s in range(3))
    made = HyperbolicRoPE(8)
    out = made.attend(q, k, v)
    assert out.isfinite().all()
    few = torch.tensor([0, 70, 4095])
    want = attend(made, rw.Attention(q.double(), k.double(), v.double()).select_queries(few))
    close(out[:, :, few], want, 1e-5 if dtype == torch.float32 else 2e-2)


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (4, 2), (70, 3)])
def test_decoding_is_the_full_pass(sizes):
    p, made = problem(kv=2, s=80 if sum(sizes) > 9 else 9), HyperbolicRoPE(8, damping_heads=2)
    close(decoded(made, p, *sizes), attend(made, p))


def test_rescaled_keys_decode_the_same():
    n, made = 1000, HyperbolicRoPE(8)
    q, k = (random(1, 1, n, 8, seed=s).float() for s in (0, 1))
    rates = made.rates().float()
    cone_q, cone_k = made._light_cone(q)[0, 0], made._light_cone(k)[0, 0]
    kept, rows = torch.zeros(n, 8), []
    for t in range(n):
        kept *= (-rates).exp()
        kept[t] = cone_k[t]
        rows.append(kept @ cone_q[t])
    close(made.scores(q, k)[0, 0], torch.stack(rows), 1e-4, where=triangle(n))


def test_keys_are_kept_unboosted():
    p, cache = problem(kv=2), rw.KVCache(hope())
    cache.extend(p)
    close(cache[0].stored[0].k.norm(dim=-1), p.k.norm(dim=-1))
    cache.edit(torch.tensor([0, 3]), torch.tensor([4, 6]))  # nothing to move: distances are read when needed
    one = rw.Attention(p.q[:, :, :1], p.k[:, :, :1], p.v[:, :, :1])
    got = rw.attend(cache.extend(one), backend="dense")
    keys = torch.tensor([0, 3, 0])
    whole = rw.Attention(p.q[:, :, :1], p.k[:, :, keys], p.v[:, :, keys], rw.Positions(q=[7], k=[4, 6, 7]))
    close(got, attend(hope(), whole))


# ---- rates -----------------------------------------------------------------------------------------------------------


def test_default_rates():
    made = HyperbolicRoPE(64)
    close(made.rapidity(), 0.1 * rw.RoPE(64).inv_freq, 1e-15)
    assert made.damping().item() == pytest.approx(0.1 * (1 + math.log(2)) + 1e-4)
    assert made.damping().item() == pytest.approx(0.1694, abs=5e-5)
    assert sum(t.numel() for t in made.parameters()) == 1
    assert (made.rates() > 0).all()
    assert made.rates().min().item() == pytest.approx(made.damping().item() - 0.1)


def test_the_damping_stays_above_every_rapidity():
    made = HyperbolicRoPE(8, learn_rapidity=True, damping_heads=2)
    with torch.no_grad():
        made.rho.copy_(torch.tensor([-50.0, 30.0]))
        made.log_rapidity.copy_(torch.tensor([0.0, 1.0, -3.0, 2.0]))
    assert (made.rates() > 0).all()
    assert made.rates().shape == (2, 8)


def test_each_key_head_may_fade_at_its_own_rate():
    p, made = placed(problem(kv=2)), HyperbolicRoPE(8, RAPIDITY, damping_heads=2)
    made.rho.data = torch.tensor([-1.0, 2.0])
    got = logits(made(p))
    for head, damping in enumerate(made.damping().tolist()):
        part = rw.Attention(
            p.q[:, 2 * head : 2 * head + 2], p.k[:, head : head + 1], p.v[:, head : head + 1], p.positions
        )
        close(got[:, 2 * head : 2 * head + 2], logits(HyperbolicRoPE(8, RAPIDITY, damping)(part)))
    wide = HyperbolicRoPE(8, RAPIDITY, damping_heads=4)
    wide.rho.data = made.rho.data.repeat_interleave(2)
    close(attend(made, p), attend(wide, placed(expanded(p))))
    with pytest.raises(rw.ShapeError, match="key heads"):
        wide(p)


def test_rates_learn():
    p, made = problem(), HyperbolicRoPE(8, learn_rapidity=True)
    attend(made, p).square().sum().backward()
    assert made.rho.grad.abs() > 0
    assert (made.log_rapidity.grad.abs() > 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"head_dim": 7},
        {"rapidity": [0.1, 0.1]},
        {"rapidity": [0.1, 0.1, 0.1, -0.1]},
        {"rapidity": [0.1, 0.1, 0.1, float("nan")]},
        {"rapidity": RAPIDITY, "damping": 0.3},
        {"rapidity": RAPIDITY, "damping": 0.0},
        {"rapidity": RAPIDITY, "damping": float("nan")},
        {"rapidity": [0.0] * 4},
        {"rapidity_scale": -1.0},
        {"rapidity": RAPIDITY, "damping": 0.4, "learn_rapidity": True},
        {"rapidity": RAPIDITY, "damping": 0.4, "damping_heads": 2},
        {"rapidity": [0.1, 0.1, 0.1, 0.0], "learn_rapidity": True},
        {"kind": "rotation"},
        {"kind": "rope", "damping": 0.4},
        {"kind": "rope", "bidirectional": True},
        {"pairing": "halves"},
        {"damping_heads": 0},
    ],
)
def test_what_cannot_be_is_refused(options):
    with pytest.raises(rw.ConfigError):
        HyperbolicRoPE(**{"head_dim": 8, **options})


def test_what_it_cannot_follow_is_refused():
    with pytest.raises(CannotCompose):
        rw.Sequential(rw.STRINGShifted(8, 3, 1), hope())(problem())
    with pytest.raises(rw.ShapeError, match="8"):
        hope()(problem(d=6))


# ---- as it is used ---------------------------------------------------------------------------------------------------


def test_between_segments():
    full_stop, newline = 1, 2
    ids = torch.tensor([[5, 6, 1, 7, 8, 9, 2, 3, 1, 4]])
    positions, _ = segment_positions(ids, {full_stop, newline})
    segments = positions.key.position[0, :, 0]
    assert segments.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 3]
    both, p = BiPE(hope(), 12), problem(s=10, b=1)
    assert attend(both, p.replace(positions=positions)).shape == p.v.shape
    close(attend(both, p.replace(positions=positions)), attend(hope(), placed(p, segments)))
    x = random(1, 10, 12)
    differ(both.embed(x, positions), x, 1e-4)


def test_far_logits_fade_where_rope_turns_and_alibi_falls():
    far, gaussian = torch.arange(61), random(200, 1, 8, seed=4)
    fixed = torch.ones(1, 1, 8, dtype=torch.float64)
    for content in (fixed, gaussian):
        curves = {e: distance_curve(e, far, content, content) for e in (hope(), rw.RoPE(8), rw.ALiBi(1))}
        hyperbolic, rope, alibi = (c.logit[0] for c in curves.values())
        assert (hyperbolic.diff() < 0).all()
        assert (rope.diff() > 0).any()
        close(alibi.diff(), torch.full((60,), -(2.0**-8), dtype=torch.float64), 1e-10)
        close(hyperbolic[:1], content.square().sum(-1).mean().reshape(1) * 8**-0.5)
        assert 0 < hyperbolic[-1] < 0.02  # to logit 0, not to weight 0
        assert curves[next(iter(curves))].weight[0, -1] > 1e-3
    with pytest.raises(CannotCompose):
        distance_curve(rw.PerHead([rw.RoPE(8), rw.RoPE(8)]), far, random(1, 2, 8), random(1, 2, 8))
    with pytest.raises(rw.ShapeError):
        distance_curve(rw.RoPE(8), far, random(1, 2, 8), random(2, 8))


def test_distance_curves_are_logits_and_weights():
    q, k = random(3, 4, 8), random(3, 2, 8, seed=1)
    far = torch.tensor([0, 1, 4, 30])
    got = distance_curve(rw.Sequential(rw.RoPE(8), rw.ALiBi(4)), far, q, k)
    rows = []
    for draw in range(3):
        keys = k[draw, None, :, None].expand(1, 2, 4, 8)
        p = rw.Attention(q[draw, None, :, None], keys, keys, rw.Positions(q=[30], k=30 - far), causal=False)
        rows.append(logits(rw.Sequential(rw.RoPE(8), rw.ALiBi(4))(p))[0, :, 0])
    close(got.logit, torch.stack(rows).mean(0))
    close(got.weight, torch.stack(rows).softmax(-1).mean(0))
