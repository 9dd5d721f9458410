"""GTA, geometric transform attention (arXiv 2310.10375)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import SINGLE, attend, close, differ, expanded, golden, problem, random

import ropewalk as rw
from ropewalk.coordinates.views import patch_grid, view_positions
from ropewalk.core.errors import NeedsColumn

CASES = golden("121")
MIXED = {"triv": 3, "se3": 8, "so3": 8, "so2": 8, "t2": 6}
POINTS = {"triv": 2, "se3": 6, "so3": 8, "so2": 4, "t2": 3}


def rotations(*shape, seed=0):
    q, r = torch.linalg.qr(random(*shape, 3, 3, seed=seed))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return q * torch.linalg.det(q)[..., None, None]


def poses(*shape, seed=0, far=1.0):
    made = torch.eye(4, dtype=torch.float64).repeat(*shape, 1, 1)
    made[..., :3, :3] = rotations(*shape, seed=seed)
    made[..., :3, 3] = far * random(*shape, 3, seed=seed + 1)
    return made


def places(b=2, views=3, patches=2, seed=0, **options):
    """Random cameras, tokens in view-major order."""
    coordinates = torch.rand(b, views * patches, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return coordinates, poses(b, views, seed=seed, **options)


def setting(f_dims=MIXED, seed=0, far=1.0, **options):
    """A bidirectional problem of six tokens in three views, its coordinates and cameras."""
    coordinates, extrinsics = places(seed=seed, far=far)
    p = problem(s=6, d=sum(f_dims.values()), causal=False, **options)
    return p.replace(positions=view_positions(coordinates, extrinsics)), coordinates, extrinsics


def gta(f_dims=MIXED, scale=0.7, **options):
    return rw.GTA(f_dims, trans_scale=scale, learn_scale=False, **options)


def at(p, coordinates, extrinsics):
    return p.replace(positions=view_positions(coordinates, extrinsics))


# ---- a slow and independent ρ ----------------------------------------------------------------------------------------


def group_element(made, pose, place, scale):
    """ρ(g) of one token, (C, C): what the output is multiplied by."""
    blocks = []
    for kind, width in made.blocks:
        if kind == "triv":
            block = torch.ones(1, 1, dtype=torch.float64)
        elif kind == "se3":
            block = pose.clone()
            block[:3, 3] *= scale
        elif kind == "so3":
            block = harmonics(pose[:3, :3], made.so3_degree)
        elif kind == "t2":
            block = torch.eye(3, dtype=torch.float64)
            block[2, :2] = -place
        if kind == "so2":
            n = width // 4
            for k in range(1, n + 1):
                for axis in range(2):
                    f = 1.0 if made.shared_freqs else 2.0**k / 2.0**n
                    a = 2 * math.pi * made.max_freq[axis] * place[axis].item() * f
                    turn = [[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]
                    blocks.append(torch.tensor(turn, dtype=torch.float64))
        else:
            blocks += [block] * (width // len(block))
    return torch.block_diag(*blocks)


def harmonics(r, degree):
    order = [1, 2, 0]
    first = r[order][:, order]
    if degree == 1:
        return first
    a, b = math.sqrt(1 / 2), math.sqrt(1 / 6)
    basis = torch.zeros(5, 3, 3, dtype=torch.float64)
    for n, x, y in ((0, 0, 1), (1, 1, 2), (3, 0, 2)):
        basis[n, x, y] = basis[n, y, x] = a
    basis[2] = torch.diag(torch.tensor([-b, -b, 2 * b], dtype=torch.float64))
    basis[4] = torch.diag(torch.tensor([a, -a, 0.0], dtype=torch.float64))
    second = torch.stack([torch.stack([(basis[x] * (r @ basis[y] @ r.T)).sum() for y in range(5)]) for x in range(5)])
    return torch.block_diag(first, second)


def pairwise(made, p, coordinates, extrinsics, scale):
    """o_i = Σ_j softmax_j(scale q_iᵀ ρ(g_i g_j⁻¹) k_j) ρ(g_i g_j⁻¹) v_j, pair by pair."""
    b, h, n, d = p.q.shape
    group = h // p.num_kv_heads
    every = extrinsics.repeat_interleave(n // extrinsics.shape[1], 1)
    out = torch.zeros_like(p.q)
    for x in range(b):
        rho = [group_element(made, every[x, t], coordinates[x, t], scale) for t in range(n)]
        for y in range(h):
            k, v = p.k[x, y // group], p.v[x, y // group]
            for i in range(n):
                relative = [rho[i] @ torch.linalg.inv(rho[j]) for j in range(n)]
                s = torch.stack([p.q[x, y, i] @ relative[j] @ k[j] for j in range(n)]) * d**-0.5
                moved = torch.stack([relative[j] @ v[j] for j in range(n)]) if made.v_transform else v
                out[x, y, i] = s.softmax(-1) @ moved
    return out


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    params, given = case.params, case.inputs
    made = rw.GTA(
        params["f_dims"],
        so2_freqs=params["n_freqs"] or None,
        max_freq=params["max_freq"],
        trans_scale=params["trans_coeff"],
        learn_scale=False,
        euclid=params["euclid"],
        v_transform=params["v_transform"],
    )
    positions = view_positions(given["coord"], given["extrinsics_world_to_cam"])
    p = rw.Attention(given["q"], given["k"], given["v"], positions, causal=False)
    assert p.logit_scale == pytest.approx(params["scale"], rel=1e-6)
    out, weights = rw.attend(made(p), return_weights=True)
    close(weights, case.outputs["attn"], SINGLE)
    close(out, case.outputs["out"], SINGLE)
    if not params["euclid"]:
        close(rw.attend(made(p), backend="sdpa"), case.outputs["out"], SINGLE)


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f_dims", "options"),
    [
        (MIXED, {}),
        (MIXED, {"v_transform": False}),
        ({"se3": 4, "so3": 6, "so2": 4}, {"so3_degree": 1}),
        ({"so2": 12}, {"max_freq": (1.0, 2.5)}),
        ({"so2": 12}, {"shared_freqs": True}),
        ({"t2": 3}, {}),
    ],
)
@pytest.mark.parametrize("kv", [4, 2])
def test_against_the_pairwise_loop(f_dims, options, kv):
    p, coordinates, extrinsics = setting(f_dims, kv=kv)
    made = gta(f_dims, **options)
    want = pairwise(made, p, coordinates, extrinsics, 0.7)
    close(attend(made, p), want, 1e-11)
    close(attend(made, p, "sdpa"), want, 1e-11)


def test_euclidean_similarity_against_a_loop():
    p, coordinates, extrinsics = setting(POINTS, kv=2)
    made = gta(POINTS, euclid=True)
    every = extrinsics.repeat_interleave(2, 1)
    others = rw.GTA({k: n for k, n in POINTS.items() if k != "se3"}, learn_scale=False)

    def act(x, pose, place, inverse):
        """Bring a vector into the world (inverse) or the frame of a camera: points move, the rest turns."""
        rho = group_element(others, pose, place, 1.0)
        rho = torch.linalg.inv(rho) if inverse else rho
        pose = pose.clone()
        pose[:3, 3] *= 0.7
        pose = torch.linalg.inv(pose) if inverse else pose
        points = [pose[:3, :3] @ x[c : c + 3] + pose[:3, 3] for c in (2, 5)]
        rest = rho @ torch.cat([x[:2], x[8:]])
        return torch.cat([rest[:2], *points, rest[2:]])

    out = torch.zeros_like(p.q)
    for x in range(2):
        for y in range(4):
            q, k, v = (
                torch.stack([act(t[n], every[x, n], coordinates[x, n], True) for n in range(6)])
                for t in (p.q[x, y], p.k[x, y // 2], p.v[x, y // 2])
            )
            s = -0.5 * torch.cdist(q, k).square() * p.q.shape[-1] ** -0.5
            mixed = s.softmax(-1) @ v
            out[x, y] = torch.stack([act(mixed[n], every[x, n], coordinates[x, n], False) for n in range(6)])
    close(attend(made, p), out, 1e-11)
    close(attend(made, p, "sdpa"), out, 1e-11)


@pytest.mark.parametrize(("f_dims", "euclid"), [(MIXED, False), ({"triv": 3, "se3": 8}, False)])
def test_where_nothing_moves_it_is_plain_attention(f_dims, euclid):
    p, coordinates, _ = setting(f_dims)
    still = torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4)
    for place in (coordinates * 0, coordinates[:, :1].expand_as(coordinates)):
        close(
            attend(gta(f_dims, euclid=euclid), at(p, place, still)), attend(rw.NoPE(), p.replace(positions=None)), 1e-13
        )
    differ(attend(gta(f_dims, euclid=euclid), p), attend(rw.NoPE(), p.replace(positions=None)))


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(
    ("f_dims", "options"),
    [(MIXED, {}), (MIXED, {"v_transform": False}), (POINTS, {"euclid": True}), ({"so3": 6}, {"so3_degree": 1})],
)
def test_a_change_of_the_world_changes_nothing(f_dims, options, scale):
    p, coordinates, extrinsics = setting(f_dims)
    made = gta(f_dims, scale, **options)
    world = poses(2, 1, seed=50)
    want = attend(made, p)
    close(attend(made, at(p, coordinates, extrinsics @ world)), want, 1e-12 * max(1.0, scale**2))
    if scale <= 1:  # far-away points saturate the softmax of the Euclidean variant
        differ(attend(made, at(p, coordinates, world @ extrinsics)), want, 1e-6)


def test_a_common_shift_of_patches_changes_nothing():
    f_dims = {"triv": 1, "so2": 8, "t2": 6}
    p, coordinates, extrinsics = setting(f_dims)
    want = attend(gta(f_dims), p)
    shifted = coordinates + torch.tensor([0.37, -1.2], dtype=torch.float64)
    close(attend(gta(f_dims), at(p, shifted, extrinsics)), want)
    differ(attend(gta(f_dims), at(p, coordinates * 2, extrinsics)), want)


class TwoAxes(rw.Rotary):
    """Interleaved RoPE over two axes, with GTA's frequencies."""

    axes = 2

    def __init__(self, freqs):
        super().__init__("interleaved")
        self.freqs = tuple(freqs)

    def angles(self, position):
        steps = torch.tensor(self.freqs, dtype=torch.float64)
        return (2 * math.pi * steps[:, None] * position[:, :, None]).flatten(2)


def test_turned_patches_without_values_are_two_axis_rope():
    p, coordinates, extrinsics = setting({"so2": 12})
    made = gta({"so2": 12}, v_transform=False, max_freq=3.0)
    rope = TwoAxes([3.0 / 4, 3.0 / 2, 3.0])
    close(attend(made, p), attend(rope, p.replace(positions=rw.Positions(coordinates))))
    for ours, theirs in zip(
        made.rotate(p.q, p.k, p.positions), rope.rotate(p.q, p.k, rw.Positions(coordinates)), strict=True
    ):
        close(ours, theirs)
    assert extrinsics.shape == (2, 3, 4, 4)


# ---- one key: ρ(g_i g_j⁻¹) v_j, which shows the matrices -------------------------------------------------------------


def matrix(made, pose_q, pose_k, place_q=(0.0, 0.0), place_k=(0.0, 0.0)):
    """ρ(g_q g_k⁻¹) as the library has it: the output for one key whose value is each basis vector in turn."""
    c = made.width
    v = torch.eye(c, dtype=torch.float64)[:, None, None]
    q, k = random(c, 1, 1, c, seed=1), random(c, 1, 1, c, seed=2)

    def side(pose, place):
        return view_positions(torch.tensor(place, dtype=torch.float64)[None, None], pose[None, None])

    positions = rw.Positions(q=side(pose_q, place_q), k=side(pose_k, place_k))
    return attend(made, rw.Attention(q, k, v, positions, causal=False))[:, 0, 0].T


def test_one_key_arrives_in_the_frame_of_the_query():
    a, b = poses(2, seed=3)
    places_ = (0.3, 0.8), (0.6, 0.1)
    made = gta()
    want = [
        group_element(made, g, torch.tensor(x, dtype=torch.float64), 0.7) for g, x in zip((a, b), places_, strict=True)
    ]
    close(matrix(made, a, b, *places_), want[0] @ torch.linalg.inv(want[1]))


def test_degree_one_is_the_rotation_in_another_order():
    r, eye = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    r[:3, :3] = rotations(seed=4)
    got = matrix(gta({"so3": 3}, so3_degree=1), r, eye)
    order = [1, 2, 0]
    close(got, r[:3, :3][order][:, order])


@pytest.mark.parametrize(("width", "degree"), [(3, 1), (8, 2)])
def test_so3_is_an_orthogonal_representation(width, degree):
    made, eye = gta({"so3": width}, so3_degree=degree), torch.eye(4, dtype=torch.float64)
    a, b = poses(2, seed=5)
    close(matrix(made, a, eye) @ matrix(made, b, eye), matrix(made, a @ b, eye))
    close(matrix(made, a, b), matrix(made, a, eye) @ matrix(made, b, eye).T)
    close(matrix(made, a, eye) @ matrix(made, a, eye).T, torch.eye(width, dtype=torch.float64))
    close(matrix(made, eye, eye), torch.eye(width, dtype=torch.float64))
    moved = a.clone()
    moved[:3, 3] += 5
    close(matrix(made, moved, eye), matrix(made, a, eye))  # translations play no part


def test_every_kind_is_a_representation():
    made, eye = gta(), torch.eye(4, dtype=torch.float64)
    a, b = poses(2, seed=6)
    x, y = (0.2, 0.7), (0.5, 0.1)
    both = (0.2 + 0.5, 0.7 + 0.1)
    close(matrix(made, a, eye, x) @ matrix(made, b, eye, y), matrix(made, a @ b, eye, both))


def test_translations_make_values_grow():
    p, coordinates, extrinsics = setting({"se3": 8}, far=100.0)
    large = attend(gta({"se3": 8}, 1.0), p).norm()
    small = attend(gta({"se3": 8}, 0.01), p).norm()
    assert large > 20 * small
    assert rw.GTA({"se3": 8}).trans_scale.item() == pytest.approx(0.01)
    assert coordinates.shape[1] == 2 * extrinsics.shape[1]


# ---- sides, heads, views ---------------------------------------------------------------------------------------------


def test_cross_attention_has_cameras_of_its_own():
    coordinates, extrinsics = places(views=5, patches=2)
    p = problem(s=10, d=33, causal=False, positions=view_positions(coordinates, extrinsics))
    whole = attend(gta(), p)
    targets = slice(4, 10)
    sides = rw.Positions(
        q=view_positions(coordinates[:, targets], extrinsics[:, 2:]), k=view_positions(coordinates, extrinsics)
    )
    crossed = rw.Attention(p.q[:, :, targets], p.k, p.v, sides, causal=False)
    close(attend(gta(), crossed), whole[:, :, targets])


def test_tokens_are_view_major():
    p, coordinates, extrinsics = setting()
    each = view_positions(coordinates, extrinsics.repeat_interleave(2, 1))
    assert torch.equal(attend(gta(), p), attend(gta(), p.replace(positions=each)))
    column = p.positions.query.column("extrinsics")
    assert torch.equal(column[:, 0], column[:, 1])
    assert not torch.equal(column[:, 1], column[:, 2])


def test_grouped_heads_equal_repeated_ones():
    p, _, _ = setting(h=6, kv=2)
    close(attend(gta(), p), attend(gta(), expanded(p)))


def test_patch_grid():
    grid = patch_grid(4, 6)
    assert grid.shape == (24, 2)
    assert grid[0].tolist() == [0.0, 0.0]
    assert grid[1].tolist() == [0.0, 1 / 6]
    assert grid[6].tolist() == [0.25, 0.0]
    strided = patch_grid(16, 8, stride=8)  # rows 4 and 12, column 4
    assert strided.tolist() == [[4 / 16, 4 / 8], [12 / 16, 4 / 8]]


def test_published_frequencies():
    made = gta({"so2": 32})
    assert made.so2_freqs == 8
    assert gta({"so2": 8}, so2_freqs=2).so2_freqs == 2
    default = rw.GTA(head_dim=64)
    assert dict(default.blocks) == {"se3": 32, "so2": 32}


# ---- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("f_dims", "euclid"), [(MIXED, False), (POINTS, True)])
def test_the_scale_of_translations_is_learned(f_dims, euclid):
    p, _, _ = setting(f_dims)
    made = rw.GTA(f_dims, trans_scale=0.5, euclid=euclid).double()
    target = random(*p.q.shape, seed=60)

    def loss(scale):
        after = torch.func.functional_call(made, {"trans_scale": scale}, (p,))
        return (rw.attend(after, backend="dense") - target).square().mean()

    scale = made.trans_scale.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (scale,))
    loss(scale).backward()
    assert scale.grad.abs() > 1e-4
    assert [n for n, _ in made.named_parameters()] == ["trans_scale"]
    assert not list(rw.GTA(f_dims, learn_scale=False, euclid=euclid).parameters())


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f_dims", "options"),
    [
        ({"se3": 6}, {}),
        ({"se3": 8}, {"euclid": True}),
        ({"so3": 6}, {}),
        ({"so3": 8}, {"so3_degree": 1}),
        ({"so2": 6}, {}),
        ({"so2": 8}, {"so2_freqs": 3}),
        ({"t2": 4}, {}),
        ({"se2": 4}, {}),
        ({"triv": -1}, {}),
        ({"so2": 8}, {"head_dim": 16}),
        ({"so2": 8}, {"max_freq": (1.0, 2.0, 3.0)}),
        ({"so3": 3}, {"so3_degree": 3}),
        (None, {"head_dim": 12}),
    ],
)
def test_widths_that_groups_do_not_fill(f_dims, options):
    with pytest.raises(rw.ConfigError):
        rw.GTA(f_dims, **options)


def test_heads_of_another_width():
    p, _, _ = setting({"se3": 8})
    with pytest.raises(rw.ShapeError, match="12"):
        attend(gta({"se3": 12}), p)
    narrow = rw.Attention(p.q, p.k, p.v[..., :4], p.positions, causal=False)
    with pytest.raises(rw.ShapeError):
        attend(gta({"se3": 8}), narrow)
    assert attend(gta({"se3": 8}, v_transform=False), narrow).shape[-1] == 4


def test_positions_without_cameras():
    p, coordinates, _ = setting({"se3": 8})
    with pytest.raises(NeedsColumn, match="extrinsics"):
        attend(gta({"se3": 8}), p.replace(positions=rw.Positions(coordinates)))
    with pytest.raises(rw.PositionError):
        attend(gta({"so2": 8}), p.replace(positions=rw.Positions.arange(6)))


@pytest.mark.parametrize("spoil", ["transposed", "projective", "nan", "views", "shape"])
def test_cameras_that_are_none(spoil):
    coordinates, extrinsics = places()
    if spoil == "transposed":
        extrinsics = extrinsics.transpose(-1, -2)
    elif spoil == "projective":
        extrinsics[0, 1, 3, 2] = 1e-3
    elif spoil == "nan":
        extrinsics[0, 0, 0, 0] = torch.nan
    elif spoil == "views":
        extrinsics = poses(2, 4)
    else:
        extrinsics = extrinsics[..., :3, :]
    with pytest.raises(rw.PositionError):
        view_positions(coordinates, extrinsics)


def test_blocks_come_in_one_order():
    p, _, _ = setting()
    shuffled = {k: MIXED[k] for k in ("t2", "so2", "triv", "so3", "se3")}
    assert [k for k, _ in gta(shuffled).blocks] == ["triv", "se3", "so3", "so2", "t2"]
    assert torch.equal(attend(gta(shuffled), p), attend(gta(), p))


@pytest.mark.parametrize("sizes", [(3,), (1, 1)])
def test_transformed_keys_and_values_are_cached(sizes):
    p, coordinates, extrinsics = setting()
    p = p.replace(causal=True)
    made, every = gta(), extrinsics.repeat_interleave(2, 1)
    cache, outputs, start = rw.KVCache(made), [], 0
    for size in [*sizes, *[1] * (6 - sum(sizes))]:
        part = slice(start, start + size)
        step = view_positions(coordinates[:, part], every[:, part])
        outputs.append(
            rw.attend(cache.extend(rw.Attention(*(t[:, :, part] for t in (p.q, p.k, p.v)), step)), backend="dense")
        )
        start += size
    close(torch.cat(outputs, 2), attend(made, p))


def test_low_precision_keeps_matrices_wide():
    p, _, _ = setting({"se3": 8, "so2": 8}, far=10.0)
    low = rw.Attention(*(t.bfloat16() for t in (p.q, p.k, p.v)), p.positions, causal=False)
    wide = rw.Attention(*(t.double() for t in (low.q, low.k, low.v)), p.positions, causal=False)
    made = rw.GTA({"se3": 8, "so2": 8}, trans_scale=0.1).to(torch.bfloat16)
    close(rw.attend(made(low)), rw.attend(made(wide)), 0.03)
