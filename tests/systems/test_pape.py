"""PaPE and PaPE-RI (arXiv 2602.01418)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import FULL, added, attend, close, decoded, differ, expanded, golden, logits, problem, random
from torch.nn.functional import softplus

import ropewalk as rw
from ropewalk.core.errors import NeedsHiddenStates

CASES = golden("053")
HIDDEN = 5
BOTH = pytest.mark.parametrize("cls", [rw.PaPE, rw.PaPERI])
AXES = pytest.mark.parametrize("axes", [None, 1, 2, 3])


def pape(cls=rw.PaPE, heads=4, axes=2, seed=60, **options):
    """One in float64 with every number random."""
    if cls is rw.PaPE:
        options.setdefault("num_parabolas", 3)
    e = cls(HIDDEN, heads, axes=axes, **options).double()
    for n, t in enumerate((*e.parameters(), *e.buffers())):
        t.data = 0.5 * random(*t.shape, seed=seed + n)
    return e


def pictured(axes=2, s=7, at=None, **options):
    """A problem whose tokens have x and coordinates."""
    options.setdefault("causal", False)
    if at is None:
        at = 3 * random(1, s, axes or 1, seed=70)
        at = at[..., 0] if axes is None else at
    x = random(2, s, HIDDEN, seed=71)
    return problem(s=s, x=x, positions=rw.Positions(at), **options)


def coordinates(p):
    at = p.positions.query.position.double()
    return at[..., None] if at.ndim == 2 else at


def direct(e, p):
    """The bias by the formula with M parabolas (or the distance), before the scale, (B, H, Q, K)."""
    at, group = coordinates(p), e.num_heads // e.num_kv_heads
    if isinstance(e, rw.PaPERI):
        a = softplus(torch.einsum("bsx,hx->bhs", p.x, e.w_a))
        sigma = e.sigma.repeat_interleave(group)[:, None, None]
        square = (at[:, :, None] - at[:, None]).square().sum(-1)[:, None]
        return -a[..., None] * sigma**2 * square
    m = e.num_parabolas
    raw = torch.einsum("bsx,rx->bsr", p.x, e.w_ab)
    a, b = (t.unflatten(-1, (e.num_heads, m)).transpose(1, 2)[:, :, :, None] for t in raw.chunk(2, -1))
    z = torch.einsum("bsn,hmn->bhsm", at, e.w_p.unflatten(0, (e.num_kv_heads, m))).repeat_interleave(group, 1)
    gap = z[:, :, :, None] - z[:, :, None]
    return (-softplus(a) * gap**2 + b * gap).sum(-1)


# ---- golden values ---------------------------------------------------------------------------------------------------


def published(name):
    case = CASES[name]
    sizes = (case.params["hidden"], case.params["heads"])
    if name == "pape-ri-2d":
        e = rw.PaPERI(*sizes).double()
        e.w_a.data, e.sigma.data = case.inputs["W_a"], case.inputs["position_scales"]
    else:
        e = rw.PaPE(*sizes, num_parabolas=case.params["parabolas"]).double()
        e.w_p.data, e.w_ab.data = case.inputs["W_position"], case.inputs["W_ab"]
    inputs = [case.inputs[n] for n in ("hidden_state", "q", "k", "positions")]
    return case, e, inputs


@pytest.mark.parametrize("name", list(CASES))
def test_golden_channels(name):
    case, e, inputs = published(name)
    q, k = e.encode_qk(*inputs, form="published")
    close(q, case.outputs["query_aug"], FULL)
    close(k, case.outputs["key_aug"], FULL)
    close(q @ k.transpose(-1, -2), case.outputs["scores_unscaled"], FULL)


@pytest.mark.parametrize("name", list(CASES))
def test_golden_bias_and_scores(name):
    case, e, (x, q, k, at) = published(name)
    p = rw.Attention(q, k, k, rw.Positions(at), causal=False, x=x, scale=1.0)
    close(added(e, p), case.outputs["pape_bias"], FULL)
    close(logits(e(p)), case.outputs["scores_unscaled"], FULL)
    q, k = e.encode_qk(x, q, k, at)
    close(q @ k.transpose(-1, -2), case.outputs["scores_unscaled"], FULL)


# ---- forms -----------------------------------------------------------------------------------------------------------


@BOTH
@AXES
@pytest.mark.parametrize("kv", [4, 2])
def test_all_forms_are_the_formula(cls, axes, kv):
    e, p = pape(cls, axes=axes, num_kv_heads=kv), pictured(axes, kv=kv)
    want, d = direct(e, p), 8
    close(added(e, p), want * d**-0.5)
    plain = p.q @ p.k.repeat_interleave(4 // kv, 1).transpose(-1, -2)
    n = axes or 1
    compact = n + 2 if cls is rw.PaPERI else 1 + n + n * (n + 1) // 2
    widths = {"published": 2 * n + 1 if cls is rw.PaPERI else 3 * 3 + 2, "compact": compact}
    for form, width in widths.items():
        for origin in (None, torch.full((n,), 1.5, dtype=torch.float64)):
            q, k = e.encode_qk(p.x, p.q, p.k, p.positions, form=form, origin=origin)
            assert q.shape == (2, 4, 7, -(-(d + width) // 8) * 8)
            assert k.shape == (2, kv, 7, q.shape[-1])
            assert not q[..., d + width :].any()
            assert not k[..., d + width :].any()
            close(q @ k.repeat_interleave(4 // kv, 1).transpose(-1, -2) - plain, want, 1e-11)
            # the scale is that of the original width
            close(attend(rw.NoPE(), rw.Attention(q, k, p.v, causal=False, scale=d**-0.5)), attend(e, p), 1e-11)


@BOTH
@pytest.mark.parametrize("s", [7, 30])
def test_fused_attention(cls, s):
    e, p = pape(cls), pictured(s=s)
    close(attend(e, p, "sdpa"), attend(e, p), 1e-11)
    differ(attend(e, p), attend(rw.NoPE(), p))


@BOTH
def test_the_scale_is_that_of_the_original_width(cls):
    e, p = pape(cls), pictured()
    close(logits(e(p.replace(scale=0.3))), 0.3 * (logits(p.replace(scale=1.0)) + direct(e, p)))
    assert e(p).logit_scale == 8**-0.5


@BOTH
def test_half_precision_far_from_the_origin(cls):
    """Squares of coordinates around 500 have lost everything in bfloat16; differences have not."""
    e = pape(cls)
    p = pictured(s=25, at=rw.grid_positions(5, 5, start=500).query.position)
    low = rw.Attention(*(t.bfloat16() for t in (p.q, p.k, p.v)), p.positions, causal=False, x=p.x.bfloat16())
    exact = rw.Attention(*(t.double() for t in (low.q, low.k, low.v)), p.positions, causal=False, x=low.x.double())
    for backend in ("sdpa", "dense"):
        close(attend(e, low, backend), attend(e, exact), 2e-2)


# ---- properties ------------------------------------------------------------------------------------------------------


@BOTH
@AXES
def test_moving_the_picture_changes_nothing(cls, axes):
    e, p = pape(cls, axes=axes), pictured(axes)
    by = torch.tensor([31.0, -7.5, 100.25], dtype=torch.float64)[: axes or 1]
    at = p.positions.query.position
    there = p.replace(positions=rw.Positions(at + (by[0] if axes is None else by)))
    close(logits(e(there)), logits(e(p)), 1e-10)


def turned(p, matrix):
    return p.replace(positions=rw.Positions(p.positions.query.position @ matrix))


@pytest.mark.parametrize("axes", [2, 3])
def test_turning_and_mirroring(axes):
    p = pictured(axes)
    orthogonal = torch.linalg.qr(random(axes, axes, seed=80)).Q
    mirror = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)[:axes])
    swap = torch.eye(axes, dtype=torch.float64).flip(0)
    round_, free = pape(rw.PaPERI, axes=axes), pape(rw.PaPE, axes=axes)
    for matrix in (orthogonal, mirror, swap):
        close(logits(round_(turned(p, matrix))), logits(round_(p)), 1e-10)
        differ(logits(free(turned(p, matrix))), logits(free(p)))


@BOTH
def test_without_slopes_it_falls_along_every_ray(cls):
    e = pape(cls)
    if cls is rw.PaPE:
        e.w_ab.data[e.w_ab.shape[0] // 2 :] = 0.0
    for angle in (0.0, 0.7, 2.0, 4.0):
        ray = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
        at = torch.arange(7.0, dtype=torch.float64)[:, None] * ray
        bias = added(e, pictured(at=at[None]))
        assert bool((bias <= 1e-12).all())
        assert bool((bias[:, :, 0].diff(dim=-1) <= 1e-12).all())


@BOTH
def test_nothing_is_added_on_the_diagonal(cls):
    bias = added(pape(cls), pictured())
    assert bias.diagonal(dim1=-2, dim2=-1).abs().max() < 1e-12
    assert bias.abs().max() > 0.1


def test_a_parabola_peaks_at_half_the_slope_over_the_curvature():
    e = pape(heads=1, axes=1, num_parabolas=1)
    at = torch.linspace(-30, 30, 6001, dtype=torch.float64)[:, None]
    x = random(1, 1, HIDDEN, seed=71)
    q, k = random(1, 1, 1, 8), torch.zeros(1, 1, 6001, 8, dtype=torch.float64)
    where = rw.Positions(q=torch.zeros(1, 1, 1), k=at[None])
    p = rw.Attention(q, k, k, where, causal=False, x=x, scale=1.0)
    bias = logits(e(p))[0, 0, 0]
    a, b = softplus(x[0, 0] @ e.w_ab[0]), x[0, 0] @ e.w_ab[1]
    close(bias.max(), b**2 / (4 * a), 1e-4)
    z = -e.w_p[0, 0] * at[bias.argmax(), 0]  # z_i − z_j
    close(z, b / (2 * a), 2e-2)
    assert abs(z) > 0.05


@BOTH
def test_no_directions_is_plain_attention(cls):
    e, p = pape(cls), pictured()
    (e.sigma if cls is rw.PaPERI else e.w_p).data.zero_()
    close(attend(e, p), attend(rw.NoPE(), p), 0.0)


def test_gradients_and_what_is_never_trained():
    p = pictured()
    for e in (pape(), pape(rw.PaPERI)):
        attend(e, p).square().sum().backward()
        for parameter in e.parameters():
            assert bool((parameter.grad != 0).all())
    assert not e.sigma.requires_grad
    assert set(e.state_dict()) == {"sigma", "w_a"}


def test_initial_numbers():
    torch.manual_seed(0)
    e, r = rw.PaPE(64, 12), rw.PaPERI(64, 4000, axes=3)
    assert e.w_p.shape == (600, 2)
    assert e.w_ab.shape == (1200, 64)
    for t, bound in ((e.w_p, 2**-0.5), (e.w_ab, 1 / 8), (r.w_a, 1 / 8), (r.sigma, 3**-0.5)):
        assert 0.95 * bound < t.max() < bound
        assert -bound < t.min() < -0.95 * bound
    kept = r.to(torch.bfloat16)
    assert kept.sigma.dtype == torch.float32


# ---- decoding --------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(cls, sizes):
    x = random(2, 7, HIDDEN, seed=71)
    p, e = problem(kv=2, x=x), pape(cls, axes=None, num_kv_heads=2)
    close(decoded(e, p, *sizes), attend(e, p))
    both = rw.Sequential(rw.RoPE(8), e)
    close(decoded(both, p, *sizes), attend(both, p))


@BOTH
def test_channels_of_a_key_depend_on_the_key_alone(cls):
    e, p = pape(cls), pictured()
    for form in ("published", "compact"):
        whole = e.encode_qk(p.x, p.q, p.k, p.positions, form=form)
        for got, want in zip(
            e.encode_qk(p.x[:, 4:5], p.q[:, :, 4:5], p.k[:, :, 4:5], p.positions.slice(4, 5), form=form),
            whole,
            strict=True,
        ):
            close(got, want[:, :, 4:5])


def test_grouped_heads_share_directions():
    e, p = pape(num_kv_heads=2), pictured(kv=2)
    wide = pape()
    wide.w_ab.data = e.w_ab.data
    wide.w_p.data = e.w_p.data.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    wide_p = expanded(p).replace(causal=False)
    close(attend(e, p), attend(wide, wide_p))


def test_cached_keys_move():
    e, p = pape(), pictured(causal=True)
    cache = rw.KVCache(e)
    cache.extend(p)
    there = 2 * random(1, 3, 2, seed=90)
    cache.edit([0, 2, 5], rw.Positions(there))
    new = pictured(s=1, at=torch.tensor([[[1.0, -2.0]]]), causal=True, seed=33)
    got = attend(rw.NoPE(), cache.extend(new))
    kept = torch.tensor([0, 2, 5])
    at = torch.cat([there, torch.tensor([[[1.0, -2.0]]], dtype=torch.float64)], 1)
    q, k, v = (torch.cat([a[:, :, kept], b], 2) for a, b in ((p.q, new.q), (p.k, new.k), (p.v, new.v)))
    whole = rw.Attention(q, k, v, rw.Positions(at), x=torch.cat([p.x[:, kept], new.x], 1))
    close(got, attend(e, whole)[:, :, -1:])


# ---- grids -----------------------------------------------------------------------------------------------------------


def test_grid_positions():
    at = rw.grid_positions(2, 3, start=1, num_prefix=1).query.position
    assert at.tolist() == [[[0, 0], [1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]]
    unit = rw.grid_positions(2, 4, start=1, num_prefix=1, normalise=True).query.position
    assert unit.dtype == torch.float64
    assert unit[0, 0].tolist() == [0, 0]
    assert unit[0, -1].tolist() == [1, 1]
    assert rw.grid_positions(2, 2, 2).query.position.shape == (1, 8, 3)
    assert rw.grid_positions(1, 1, normalise=True).query.position.tolist() == [[[0.0, 0.0]]]
    for sizes, options in (((), {}), ((0, 3), {}), ((2, 2), {"num_prefix": -1})):
        with pytest.raises(rw.ConfigError):
            rw.grid_positions(*sizes, **options)


@BOTH
def test_bad_input(cls):
    with pytest.raises(NeedsHiddenStates):
        pape(cls)(pictured().replace(x=None))
    with pytest.raises(rw.PositionError, match=r"\(batch, seq, 2\)"):
        pape(cls)(pictured(3))
    with pytest.raises(rw.ShapeError, match="hidden_size 5"):
        pape(cls)(pictured().replace(x=random(2, 7, 6)))
    with pytest.raises(rw.ShapeError, match="num_heads=4"):
        pape(cls, heads=3)(pictured())
    with pytest.raises(rw.ShapeError, match="num_kv_heads=2"):
        pape(cls)(pictured(kv=2))
    with pytest.raises(rw.ConfigError, match="multiple"):
        cls(HIDDEN, 4, num_kv_heads=3)
    with pytest.raises(rw.ConfigError, match="axes"):
        cls(HIDDEN, 4, axes=0)
    p = pictured()
    with pytest.raises(rw.ConfigError, match="form"):
        pape(cls).encode_qk(p.x, p.q, p.k, p.positions, form="fast")
