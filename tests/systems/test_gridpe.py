"""GridPE: plane waves along the vertices of a simplex (arXiv 2406.07049)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from reference import FULL, attend, close, differ, expanded, golden, logits, problem, random

import ropewalk as rw
from ropewalk.analysis.distance import mean_attention_distance
from ropewalk.analysis.rate_map import gridness, rate_map
from ropewalk.coordinates.grid import reduced_grid_positions
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.rotary.gridpe import economy_ratio, gridpe_frequencies, gridpe_scales, ladder_cost, simplex_vectors

CASES = golden("034")
DIMS = (1, 2, 3, 4)


def gauge(omegas):
    """The orthogonal matrices that turn the simplex into these vectors, (heads, n, d) → (heads, d, d)."""
    w = simplex_vectors(omegas.shape[-1])
    n, d = w.shape
    return torch.einsum("hja,jb->hab", omegas, w) * (d / n)


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p, x = case.params, case.inputs
    rotation = "none" if p["dim"] == 1 else gauge(x["omegas"])
    made = rw.GridPE(p["head_dim"], p["num_heads"], axes=p["dim"], base=p["base"], rotation=rotation)
    where = rw.Positions(x["positions"])
    close(gridpe_scales(p["dim"], p["num_scales"], p["base"]), case.outputs["scales"], FULL)
    theta = made.angles(where.key.coordinates())
    theta = theta if theta.ndim == 4 else theta[:, None].expand(-1, p["num_heads"], -1, -1)
    close(theta.unflatten(-1, (p["n_vectors"], p["num_scales"])), case.outputs["theta"], 1e-9)
    q, k = made.rotate(x["q"], x["k"], where)
    close(q, case.outputs["q_rot"], 1e-9)
    close(k, case.outputs["k_rot"], 1e-9)
    close(logits(made(rw.Attention(x["q"], x["k"], x["k"], where))), case.outputs["logits"], 1e-9)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", DIMS[1:])
def test_the_simplex(d):
    w = simplex_vectors(d)
    eye, ones = torch.eye(d + 1, dtype=torch.float64), torch.ones(d + 1, d + 1, dtype=torch.float64)
    close(w @ w.T, (1 + 1 / d) * eye - ones / d)
    assert w.sum(0).abs().max() < 1e-14
    close(w.T @ w, (d + 1) / d * torch.eye(d, dtype=torch.float64))
    assert w[0].tolist() == [1.0] + [0.0] * (d - 1)
    turned = gridpe_frequencies(d, 2 * (d + 1), num_heads=3)
    close(turned @ turned.mT, ((1 + 1 / d) * eye - ones / d).expand(3, -1, -1))


def test_angles_in_the_plane():
    w = simplex_vectors(2)
    assert [round(math.degrees(math.atan2(*v[[1, 0]].tolist()))) % 360 for v in w] == [0, 120, 240]


def test_one_axis_is_rope():
    made, plain = rw.GridPE(8, axes=1, base=500.0), rw.RoPE(8, 500.0, "interleaved")
    p = problem()
    at = torch.arange(7)[None]
    close(
        logits(made(p.replace(positions=rw.Positions(at[..., None])))),
        logits(plain(p.replace(positions=rw.Positions(at)))),
    )


@pytest.mark.parametrize("d", DIMS[1:])
def test_only_differences_count_and_norms_stay(d):
    made = rw.GridPE(4 * (d + 1), 4, axes=d)
    x = 5 * random(2, 7, d)
    p = problem(d=4 * (d + 1), positions=rw.Positions(x))
    far = p.replace(positions=rw.Positions(x + 13.7))
    close(logits(made(far)), logits(made(p)), 1e-10)
    close(made(p).q.norm(dim=-1), p.q.norm(dim=-1))
    differ(logits(made(p)), logits(p))


def test_turning_the_world_turns_the_vectors():
    a = 0.7
    turn = torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=torch.float64)
    x = random(2, 7, 2)
    p = problem(d=12)
    one = rw.GridPE(12, rotation="none")(p.replace(positions=rw.Positions(x @ turn.T)))
    other = rw.GridPE(12, rotation=turn.T)(p.replace(positions=rw.Positions(x)))
    close(logits(one), logits(other))


def kernel(w, delta):
    """Mean over planes of the cosine of their angle."""
    return (delta @ w.T).cos().mean(-1)


def test_the_kernel_has_the_symmetry_of_hexagons():
    w = simplex_vectors(2)
    x = 2 * random(50, 2)
    a = math.radians(120)
    turn = torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=torch.float64)
    close(kernel(w, x @ turn.T), kernel(w, x))
    close(kernel(w, -x), kernel(w, x))


def test_small_steps_look_alike_in_all_directions():
    """To the fourth order in the plane; axial waves only to the second."""
    angle = torch.linspace(0, math.pi, 25, dtype=torch.float64)
    ring = torch.stack([angle.cos(), angle.sin()], -1)
    axial = torch.eye(2, dtype=torch.float64)
    spread = {}
    for name, w in (("simplex", simplex_vectors(2)), ("axial", axial)):
        for r in (0.1, 0.2):
            k = kernel(w, r * ring)
            close(k, torch.full_like(k, 1 - r**2 / 4), 1e-4)
            spread[name, r] = (k.max() - k.min()).item()
    assert 12 < spread["axial", 0.2] / spread["axial", 0.1] < 20  # r⁴
    assert 50 < spread["simplex", 0.2] / spread["simplex", 0.1] < 80  # r⁶


@pytest.mark.parametrize("d", DIMS)
def test_the_ratio_that_costs_least(d):
    best = economy_ratio(d)
    assert best == pytest.approx({1: math.e, 2: 1.6487, 3: 1.3956, 4: 1.2840}[d], abs=1e-4)
    assert all(ladder_cost(best, d) < ladder_cost(best * by, d) for by in (0.95, 1.05))
    close(gridpe_scales(d, 5, best**5), gridpe_scales(d, 5, ratio="economy"))
    close(gridpe_scales(d, 3, ratio=2.0), torch.tensor([1.0, 0.5, 0.25]))


# ---- what must work --------------------------------------------------------------------------------------------------


def test_class_tokens_do_not_turn():
    made = rw.GridPE(12, 4)
    p = problem(s=7, d=12, positions=rw.grid_positions(2, 3, start=1, num_prefix=1))
    assert torch.equal(made(p).q[:, :, 0], p.q[:, :, 0])
    differ(made(p).q[:, :, 1:], p.q[:, :, 1:])


def test_vectors_are_of_layer_head_and_seed():
    first = rw.GridPE(12, 4)
    assert first.frequencies.shape == (4, 6, 2)
    for other in (first.layer(1), rw.GridPE(12, 4, seed=1)):
        differ(other.frequencies, first.frequencies)
    assert torch.equal(first.layer(0).frequencies, first.frequencies)
    for a, b in itertools.pairwise(first.frequencies):
        differ(a, b)
    assert not first.state_dict()
    kept = first.frequencies.clone()
    assert torch.equal(first.to(torch.bfloat16).frequencies, kept)  # rounding would let no two layers agree on a shift
    plain = rw.GridPE(12, rotation="none")
    assert plain.layer(3) is plain


def test_heads_that_share_keys_share_vectors():
    made = rw.GridPE(6, 4, num_kv_heads=2)
    p = problem(kv=2, d=6, s=6, positions=rw.grid_positions(2, 3))
    wide = rw.GridPE(6, 4, rotation=gauge(made.frequencies).repeat_interleave(2, 0))
    close(logits(made(p)), logits(wide(expanded(p))), 1e-10)


def test_channels_left_over_do_not_turn():
    made = rw.GridPE(16, 4, pass_rest=True)
    p = problem(d=16, s=6, positions=rw.grid_positions(2, 3))
    assert torch.equal(made(p).q[..., 12:], p.q[..., 12:])
    close(made(p).q[..., :12], rw.GridPE(12, 4).rotate(p.q[..., :12], p.k[..., :12], p.positions)[0])


def test_decoding_is_the_full_pass():
    made = rw.GridPE(12, 4)
    x = 3 * random(1, 7, 2)
    p = problem(d=12, positions=rw.Positions(x, next=torch.zeros(1)))
    cache = rw.KVCache(made)
    out = [
        rw.attend(
            cache[0].extend(
                rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], cache.step(p.positions.slice(a, b)))
            )
        )
        for a, b in ((0, 3), (3, 4), (4, 7))
    ]
    close(torch.cat(out, 2), attend(made, p), 1e-10)


def test_keys_of_reduced_patches():
    where = reduced_grid_positions(4, 6, 2)
    assert where.key.position[0].tolist() == [[r, c] for r in (1, 3) for c in (1, 3, 5)]
    assert where.query.position.shape == (1, 24, 2)
    made = rw.GridPE(12, 4)
    q, k = random(1, 4, 24, 12), random(1, 4, 6, 12, seed=1)
    p = made(rw.Attention(q, k, k, where, causal=False))
    at = where.query.position[0].tolist().index([1, 3])  # a query where a key is: both are turned alike
    close((p.q[:, :, at] * p.k[:, :, 1]).sum(-1), (q[:, :, at] * k[:, :, 1]).sum(-1))
    with pytest.raises(ConfigError, match="not reduced 4 x 4"):
        reduced_grid_positions(4, 6, 4)


def test_how_far_heads_look():
    where = rw.grid_positions(3, 4)
    even = torch.full((1, 2, 12, 12), 1 / 12, dtype=torch.float64)
    x = where.key.position[0].double()
    want = (x[:, None] - x).norm(dim=-1).mean()
    close(mean_attention_distance(even, where), want.expand(1, 2))
    assert mean_attention_distance(torch.eye(12).expand(1, 1, 12, 12), where).item() == 0
    plain = rw.Positions.arange(3, valid=torch.tensor([[True, True, False]]))
    assert mean_attention_distance(torch.full((1, 1, 3, 3), 0.5) * plain.key.column("valid"), plain).item() == 0.5
    with pytest.raises(ShapeError, match="12 queries and 12 keys"):
        mean_attention_distance(even[..., :5], where)


def test_three_waves_are_a_grid_cell():
    hexagons = rate_map(simplex_vectors(2), 48, 20.0)
    middle = rate_map(simplex_vectors(2), 49, 20.0)[24, 24]
    assert middle == pytest.approx(1.0)
    moved = rate_map(simplex_vectors(2), 48, 20.0, torch.tensor([0.3, 1.0, -0.5]))
    squares = rate_map(torch.eye(2), 48, 20.0)
    assert gridness(hexagons) > 0.8
    assert gridness(moved) > 0.8  # where it fires does not matter
    assert gridness(squares) < 0
    turned = gridpe_frequencies(2, 6, num_heads=2)
    assert gridness(rate_map(turned[1], 48, 20.0)) > 0.8


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"head_dim": 64}, "multiple of 6, such as 60, 66"),
        ({"head_dim": 4}, "multiple of 6, such as 6"),
        ({"head_dim": 12, "axes": 3}, "multiple of 8"),
        ({"num_heads": None}, "give num_heads"),
        ({"base": 100.0, "ratio": 2.0}, "two ladders"),
        ({"ratio": 1.0}, "above 1"),
        ({"ratio": "cheap"}, "'economy'"),
        ({"base": -1.0}, "base"),
        ({"rotation": "free"}, "rotation is"),
        ({"rotation": [[1.0, 0.0], [1.0, 1.0]]}, "orthogonal"),
        ({"rotation": [[1.0]]}, r"give one \(2, 2\) matrix"),
        ({"layer_index": -1}, "layer_index"),
    ],
)
def test_bad_input(more, match):
    with pytest.raises(ConfigError, match=match):
        rw.GridPE(**{"head_dim": 12, "num_heads": 4, **more})


def test_maps_that_cannot_be():
    with pytest.raises(ShapeError, match=r"takes \(n, 2\)"):
        rate_map(simplex_vectors(3))
    with pytest.raises(ConfigError, match="extent"):
        rate_map(simplex_vectors(2), extent=0.0)
    with pytest.raises(ShapeError, match="square"):
        gridness(torch.zeros(8, 9))
    with pytest.raises(ShapeError, match="made for head_dim 12"):
        rw.GridPE(12, 4).rotate(random(1, 4, 3, 6), random(1, 4, 3, 6), rw.grid_positions(1, 3))
