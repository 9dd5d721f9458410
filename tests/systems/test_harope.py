"""HARoPE (arXiv 2510.10489)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, expanded, golden, logits, problem, random

import ropewalk as rw

CASES = golden("030")
GRID = rw.grid_positions(2, 4)
FORMS = ("svd", "orthogonal", "diagonal", "qr", "free")
MODES = ("dual", "shared")


def wave(step, offset, *shape):
    """sin(step n + offset) over the flat index."""
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (step * n + offset).sin().reshape(shape)


def harope(d=8, heads=4, by=0.3, seed=60, **options):
    """HARoPE in float64, away from its start unless ``by`` is 0."""
    made = rw.HARoPE(d, heads, **options).double()
    for i, parameter in enumerate(made.parameters()):
        parameter.data = parameter.data + by * random(*parameter.shape, seed=seed + i)
    return made


def on_grid(**options):
    return problem(s=8, positions=GRID, causal=False, **options)


def by_formula(p, of_q, of_k, rotary):
    """Logits of (R M q)·(R N k), with matrices of each query head (H, d, d)."""
    group = p.num_heads // p.num_kv_heads
    q = torch.einsum("hij,bhsj->bhsi", of_q, p.q)
    k = torch.einsum("hij,bhsj->bhsi", of_k, p.k.repeat_interleave(group, 1))
    q, k = rotary.rotate(q, k, p.positions)
    return q @ k.transpose(-1, -2) * p.q.shape[-1] ** -0.5


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    h, d, amp = case.params["num_heads"], case.params["head_dim"], case.params["amp"]
    rows, columns = case.params["grid"]
    n, base = rows * columns, case.params["theta"]
    made = rw.HARoPE(d, h, base=base, widths=case.params["axes_dim"]).double()
    if amp:
        made.raw_u.data, made.raw_v.data = amp * wave(0.37, 0.1, h, d, d), amp * wave(0.53, 0.7, h, d, d)
    made.raw_s.data = math.log(math.e - 1) + amp * wave(0.9, 0.3, h, d)
    q, k, v = wave(0.1, 0, 1, h, n, d), wave(0.07, 0.5, 1, h, n, d), wave(0.05, 1, 1, h, n, d)
    p = rw.Attention(q, k, v, rw.grid_positions(rows, columns), causal=False)
    m, inverse = made.matrices(torch.float64)
    close(m, case.outputs["M"], DOUBLE)
    close(inverse, case.outputs["M_inv"], DOUBLE)
    after = made(p)
    close(after.q, case.outputs["q_rot"], DOUBLE)
    close(after.k, case.outputs["k_rot"], DOUBLE)
    close(logits(after), case.outputs["logits"], DOUBLE)
    close(attend(made, p), case.outputs["attn_out"], DOUBLE)
    close(logits(made.rope(p)), case.outputs["logits_plain_rope"], DOUBLE)
    made.mode = "shared"
    close(logits(made(p)), case.outputs["logits_same_A_on_q_and_k"], DOUBLE)


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_matrices(form):
    m, inverse = harope(form=form).matrices(torch.float64)
    close(m @ inverse, torch.eye(8, dtype=torch.float64).expand(4, 8, 8), 1e-12)
    differ(m, torch.eye(8, dtype=torch.float64), 0.1)
    differ(m[0], m[1], 0.1)
    singular = torch.linalg.svdvals(m)
    if form == "orthogonal":
        close(m @ m.mT, torch.eye(8, dtype=torch.float64).expand(4, 8, 8))
        close(torch.linalg.det(m), torch.ones(4, dtype=torch.float64))
    elif form == "diagonal":
        close(m, m.diagonal(dim1=-2, dim2=-1).diag_embed())
    if form != "free":
        assert (torch.linalg.det(m) > 0).all()
        assert (singular > 0).all()


def test_the_parts_of_the_svd():
    made = harope()
    u, v = (torch.linalg.matrix_exp((a - a.mT) / 2) for a in (made.raw_u, made.raw_v))
    for orthogonal in (u, v):
        close(orthogonal.mT @ orthogonal, torch.eye(8, dtype=torch.float64).expand(4, 8, 8))
    s = torch.nn.functional.softplus(made.raw_s) + 1e-6
    close(made.matrices(torch.float64)[0], u @ s.diag_embed() @ v.mT)
    low = harope()
    low.raw_s.data.fill_(-50.0)  # softplus and 1e-6 keep singular values from zero and from changing sign
    close(torch.linalg.svdvals(low.matrices(torch.float64)[0]), torch.full((4, 8), 1e-6, dtype=torch.float64))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kv", [4, 2])
def test_logits(form, mode, kv):
    p, made = on_grid(kv=kv), harope(form=form, mode=mode, num_kv_heads=kv)
    m, inverse = made.matrices(torch.float64)
    of_q = m.repeat_interleave(4 // kv, 0)
    of_k = of_q if mode == "shared" else inverse.mT.repeat_interleave(4 // kv, 0)
    close(logits(made(p)), by_formula(p, of_q, of_k, rw.AxialRoPE(8)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS)
def test_it_starts_as_axial_rope(form, mode):
    p = on_grid()
    close(logits(harope(by=0.0, form=form, mode=mode)(p)), logits(rw.AxialRoPE(8)(p)), 1e-6 if mode == "dual" else 4e-6)
    differ(logits(harope(form=form, mode=mode)(p)), logits(rw.AxialRoPE(8)(p)))


@pytest.mark.parametrize("mode", MODES)
def test_logits_are_translation_invariant(mode):
    p, made = on_grid(), harope(mode=mode)
    moved = rw.Positions(GRID.query.position + torch.tensor([5, -3]))
    close(logits(made(p.replace(positions=moved))), logits(made(p)), 1e-11)
    turned = rw.Positions(GRID.query.position.flip(-1))
    differ(logits(made(p.replace(positions=turned))), logits(made(p)))


def test_equal_coordinates_leave_the_content_alone():
    here = rw.Positions(torch.full((1, 8, 2), 3))
    p = on_grid().replace(positions=here)
    close(logits(harope()(p)), logits(p), 1e-11)
    differ(logits(harope(mode="shared")(p)), logits(p))


def test_orthogonal_matrices():
    p = on_grid()
    dual, shared = harope(form="orthogonal"), harope(form="orthogonal", mode="shared")
    close(logits(dual(p)), logits(shared(p)))
    for side, was in ((shared(p).q, p.q), (shared(p).k, p.k)):
        close(side.norm(dim=-1), was.norm(dim=-1))


@pytest.mark.parametrize("mode", MODES)
def test_special_matrices(mode):
    p = on_grid()
    made = harope(by=0.0, form="free", mode=mode)
    plane = torch.linalg.matrix_exp(
        torch.block_diag(*[torch.tensor([[0.0, -a], [a, 0.0]]) for a in (0.3, 1.0, -2.0, 0.7)])
    )
    made.matrix.data = plane.double().expand(4, 8, 8)
    close(logits(made(p)), logits(rw.AxialRoPE(8)(p)), 1e-6)  # what turns inside planes commutes with RoPE
    order = torch.tensor([4, 5, 2, 3, 0, 1, 6, 7])  # swaps the first planes of the two axes
    made.matrix.data = torch.eye(8, dtype=torch.float64)[order].expand(4, 8, 8)
    swapped = rw.Attention(p.q[..., order], p.k[..., order], p.v, p.positions, causal=False)
    close(logits(made(p)), logits(rw.AxialRoPE(8)(swapped)))
    differ(logits(made(p)), logits(rw.AxialRoPE(8)(p)))


def test_heads_may_share():
    p, made = on_grid(), rw.HARoPE(8, heads_share=True).double()
    made.raw_u.data, made.raw_s.data = random(1, 8, 8), random(1, 8, seed=1)
    wide = harope(by=0.0)
    wide.raw_u.data, wide.raw_s.data = made.raw_u.data.repeat(4, 1, 1), made.raw_s.data.repeat(4, 1)
    close(logits(made(p)), logits(wide(p)))


def test_gradients_flow_from_the_start():
    p = on_grid()
    for mode in MODES:
        made = harope(by=0.0, mode=mode)
        attend(made, p).square().sum().backward()
        for name, parameter in made.named_parameters():
            assert (parameter.grad.abs().amax(-1) > 0).all(), (mode, name)
    made = harope()
    here = p.replace(positions=rw.Positions(torch.zeros(1, 8, 2)))
    attend(made, here).square().sum().backward()
    assert (
        max(t.grad.abs().max() for t in made.parameters()) < 1e-12
    )  # relative offsets are all that the matrices serve


# ---- axes ------------------------------------------------------------------------------------------------------------


def test_one_two_and_three_axes():
    flat = problem(d=12)
    made = harope(d=12, axes=None)
    m, inverse = made.matrices(torch.float64)
    close(logits(made(flat)), by_formula(flat, m, inverse.mT, rw.RoPE(12)))
    video = problem(d=12, s=12, positions=rw.grid_positions(2, 3, 2), causal=False)
    for widths in (None, (2, 6, 4)):
        made = harope(d=12, axes=3, widths=widths)
        m, inverse = made.matrices(torch.float64)
        close(logits(made(video)), by_formula(video, m, inverse.mT, rw.AxialRoPE(12, 3, widths=widths)))


def test_an_axis_may_turn_nothing():
    torch.manual_seed(0)
    position = torch.randint(0, 9, (1, 6, 3))
    q = torch.randn(1, 2, 6, 16)
    got, _ = rw.AxialRoPE(16, 3, widths=(0, 8, 8)).rotate(q, q, rw.Positions(position))
    wanted, _ = rw.AxialRoPE(16, 2).rotate(q, q, rw.Positions(position[..., 1:]))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_axial_rope_turns_planes_of_one_axis(pairing):
    p = problem(d=10, s=6, positions=rw.grid_positions(2, 3), causal=False)
    got, _ = rw.AxialRoPE(10, widths=(4, 6), base=100.0, pairing=pairing).rotate(p.q, p.k, p.positions)
    freq = [1.0, 100**-0.5, 1.0, 100 ** (-1 / 3), 100 ** (-2 / 3)]
    for pair, w in enumerate(freq):
        angle = p.positions.query.position[0, :, 0 if pair < 2 else 1].double() * w
        a, b = (2 * pair, 2 * pair + 1) if pairing == "interleaved" else (pair, pair + 5)
        close(got[..., a], p.q[..., a] * angle.cos() - p.q[..., b] * angle.sin())
        close(got[..., b], p.q[..., a] * angle.sin() + p.q[..., b] * angle.cos())


# ---- use -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [False, True])
def test_folded_projections_give_the_same_logits(mode, share):
    heads, kv, d, hidden = 6, 2, 8, 5
    made = harope(num_kv_heads=kv, heads=heads, mode=mode, heads_share=share)
    x = random(2, 8, hidden)
    w_q, w_k, b_q, b_k = (random(*s, seed=i) for i, s in enumerate([(48, hidden), (16, hidden), (48,), (16,)]))

    def split(w, b):
        return (x @ w.T + b).unflatten(-1, (-1, d)).transpose(1, 2)

    def run(encoding, q, k):
        return logits(encoding(rw.Attention(q, k, k, GRID, causal=False)))

    f_q, f_k = made.fold(w_q, w_k)
    g_q, g_k = made.fold(b_q, b_k)
    want = run(made, split(w_q, b_q), split(w_k, b_k))
    close(run(made.rope, split(f_q, g_q), split(f_k, g_k)), want)
    assert not f_q.requires_grad
    low = [t.bfloat16() for t in (w_q, w_k)]
    assert [t.dtype for t in made.fold(*low)] == [torch.bfloat16] * 2


def test_grouped_heads_share_matrices():
    p, made = on_grid(h=6, kv=2), harope(num_kv_heads=2)
    wide = harope(heads=6)
    for to, of in zip(wide.parameters(), made.parameters(), strict=True):
        to.data = of.data.repeat_interleave(3, 0)
    close(attend(made, p), attend(wide, expanded(p)))


@pytest.mark.parametrize("sizes", [(), (3, 2)])
def test_decoding_is_the_full_pass(sizes):
    p, made = problem(kv=2), harope(num_kv_heads=2, axes=None)
    close(decoded(made, p, *sizes), attend(made, p))


def test_layers_share_one_table():
    p, made = on_grid(), harope()
    for i in range(3):
        made.layer(i)(p)
    assert sum(key[0] == "rotary" for key in p.positions.query._memo if isinstance(key, tuple)) == 1


def test_cached_keys_move():
    p, made = problem(kv=2), harope(num_kv_heads=2, axes=None)
    cache = rw.KVCache(made)
    cache.extend(p.replace(positions=rw.Positions.arange(7)))
    cache.edit([0, 3, 4, 5, 6], torch.tensor([0, 1, 2, 3, 4]))
    q, k = p.q[:, :, -1:], p.k[:, :, -1:]
    got = rw.attend(cache.extend(rw.Attention(q, k, k)))
    index = torch.tensor([0, 3, 4, 5, 6, 6])
    fresh = rw.Attention(
        torch.cat([p.q[:, :, index[:-1]], q], 2), p.k[:, :, index], torch.cat([p.v[:, :, index[:-1]], k], 2)
    )
    close(got, attend(made, fresh)[:, :, -1:])


def test_bad_input():
    for bad in (
        {"mode": "both"}, {"form": "lu"}, {"axes": 0}, {"axes": 3}, {"widths": (3, 5)}, {"widths": (4, 2)}, {"widths": (8,)},
        {"axes": None, "widths": (8,)}, {"base": 0.0}, {"num_kv_heads": 0},
    ):  # fmt: skip
        with pytest.raises(rw.ConfigError):
            rw.HARoPE(8, 2, **bad)
    with pytest.raises(rw.ConfigError, match="num_kv_heads"):
        rw.HARoPE(8)
    with pytest.raises(rw.ShapeError, match="head_dim 4"):
        rw.HARoPE(4, 4)(on_grid())
    with pytest.raises(rw.ShapeError, match="key heads"):
        rw.HARoPE(8, 2)(on_grid())
    with pytest.raises(rw.PositionError, match="2"):
        rw.HARoPE(8, 4)(problem())
    made = rw.HARoPE(8, num_kv_heads=2)
    for q, k in (
        (torch.zeros(9, 3), torch.zeros(16, 3)),
        (torch.zeros(32, 3), torch.zeros(24, 3)),
        (torch.zeros(1, 32, 3),) * 2,
    ):
        with pytest.raises(rw.ShapeError):
            made.fold(q, k)
    singular = rw.HARoPE(8, 4, form="free")
    singular.matrix.data[2, 3] = 0.0
    with pytest.raises(rw.ConfigError, match="singular"):
        singular(on_grid())
    singular.mode = "shared"
    assert attend(singular, on_grid()).isfinite().all()
