"""Depth-aware RoPE and objects that are moved by their positions (arXiv 2606.27332)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk import testing
from ropewalk.coordinates.depth import ObjectMove, perspective_move, sample_depth, token_shift, warp_index
from ropewalk.coordinates.target_depth import fill_background
from ropewalk.core.errors import CannotEdit, ConfigError, NeedsColumn, PositionError

CASES = golden("071")
MODES = ["rotate", "overwrite"]


def mask_of(rows, columns, *cells):
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    for cell in cells:
        mask[cell] = True
    return mask


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p = case.params
    sizes = [(p["H"], p["W"])] * (p["segment_index"] + 1)
    move = ObjectMove(case.inputs["mask"].bool(), p["dy_tokens"], p["dx_tokens"], p["scale"], p["rotate_deg"])
    index = warp_index(*move)
    assert index.tolist() == case.outputs["position_source_index"].tolist()
    plain = rw.depth_axis(rw.centered_grid_ids(sizes), case.inputs["depth"], mode=p["mode"])
    moved = rw.warp_rows(plain, [move])
    made = rw.DepthRoPE(sum(p["axes_dim"]), mode=p["mode"], base=p["theta_base"])
    assert list(made.widths) == p["axes_dim"]
    cos, sin = made.tables(moved.query, (), torch.float64)
    n = p["H"] * p["W"]
    close(cos[0, 0, n:], case.outputs["freqs_real"], DOUBLE)
    close(sin[0, 0, n:], case.outputs["freqs_imag"], DOUBLE)
    # The target stays where it was.
    was, _ = made.tables(plain.query, (), torch.float64)
    assert torch.equal(cos[:, :, :n], was[:, :, :n])


# ---- properties of the sheet: positions ------------------------------------------------------------------------------


def test_ids_about_the_middle():
    where = rw.centered_grid_ids([(4, 5), (2, 3)], text=2).query
    at, image = where.position[0], where.column("image")[0]
    assert at[:2].tolist() == [[2, 2, 2], [3, 3, 3]]
    assert at[2].tolist() == [0, -2, -3]
    assert at[21].tolist() == [0, 1, 1]
    assert at[22:].tolist() == [[1, r, c] for r in (-1, 0) for c in (-2, -1, 0)]
    assert image.tolist() == [-1] * 2 + [0] * 20 + [1] * 6


def test_widths():
    assert rw.DepthRoPE(128).widths == (16, 56, 56)
    assert rw.DepthRoPE(16).widths == (4, 6, 6)


def two(depth=None, mode="rotate", sizes=((4, 4), (4, 4)), text=0, **more):
    where = rw.centered_grid_ids(sizes, text)
    return where if depth is None else rw.depth_axis(where, depth, mode=mode, **more)


def test_constant_depth_is_a_number_of_a_frame():
    where = two(torch.full((8, 8), 1.5))
    at = rw.centered_grid_ids([(4, 4), (4, 4)]).query.position.double()
    at[..., 0] = 1.5
    p = problem(b=1, s=32, d=16, causal=False)
    made, plain = rw.DepthRoPE(16), rw.AxialRoPE(16, 3, widths=(4, 6, 6))
    close(attend(made, p.replace(positions=where)), attend(plain, p.replace(positions=rw.Positions(at))))


def test_depth_turns_and_only_differences_count():
    depth = 1 + random(4, 4).sigmoid()
    made = rw.DepthRoPE(16)
    p = problem(b=1, s=32, d=16, positions=two(depth), causal=False)
    turned = made(p)
    close(turned.q.norm(dim=-1), p.q.norm(dim=-1))
    close(logits(made(p.replace(positions=two(depth + 7)))), logits(turned), 1e-11)
    differ(logits(made(p.replace(positions=two(depth.flip(0))))), logits(turned))


def test_overwritten_pairs_are_multiplied():
    depth = 1 + random(4, 4).sigmoid()
    p = problem(b=1, h=1, s=34, d=16, positions=two(depth, "overwrite", text=2), causal=False)
    turned = rw.DepthRoPE(16, mode="overwrite")(p)
    d = torch.cat([depth.flatten(), depth.flatten()])
    close(turned.q[0, 0, 2:, :2], p.q[0, 0, 2:, :2] * d[:, None])
    only = (turned.q[..., 2:, :2] @ turned.k[..., 2:, :2].mT)[0, 0]
    close(only, d[:, None] * d * (p.q[..., 2:, :2] @ p.k[..., 2:, :2].mT)[0, 0])
    # Text has no depth, and the other pairs of the axis turn by the number of the picture.
    plain = rw.AxialRoPE(16, 3, widths=(4, 6, 6))(p.replace(positions=two(text=2)))
    close(turned.q[..., :2, :], plain.q[..., :2, :])
    close(turned.q[..., 2:], plain.q[..., 2:])


def test_depth_is_resized_to_cells():
    fine = torch.arange(64.0, dtype=torch.float64).reshape(8, 8)
    at = two(fine).query.position[0, :16, 0].reshape(4, 4)
    close(at, fine.unfold(0, 2, 2).unfold(1, 2, 2).mean((-1, -2)))
    both = two(torch.ones(4, 4), source_depth=torch.full((2, 2), 2.0)).query.position[0, :, 0]
    assert both.tolist() == [1] * 16 + [2] * 16
    batch = two(torch.stack([torch.ones(4, 4), torch.full((4, 4), 2.0)])).query.position[..., 0]
    assert batch[:, ::31].tolist() == [[1, 1], [2, 2]]
    masks = two(torch.ones(4, 4), sizes=[(4, 4)] * 4).query.position[0, :, 0]
    assert masks.unique_consecutive().tolist() == [1, 2, 3]


# ---- properties of the sheet: warps ----------------------------------------------------------------------------------


def test_no_displacement_is_no_warp():
    where = two(1 + random(4, 4).sigmoid())
    mask = mask_of(4, 4, (1, 2), (2, 2))
    for move in (ObjectMove(mask), ObjectMove(mask_of(4, 4), 1, 2, 2.0, 30.0)):
        assert torch.equal(rw.warp_rows(where, [move]).query.position, where.query.position)
    assert warp_index(mask, scale=3.0).tolist() != list(range(16))
    assert warp_index(mask, scale=3.0, bug_compatible=True).tolist() == list(range(16))


@pytest.mark.parametrize("move", [(1, -2), (9, 9), (0, 1, 1.7), (1, 0, 0.4, 25.0), (0, 0, 1.0, 180.0)])
def test_positions_after_a_warp_are_among_those_before(move):
    where = two(1 + random(4, 5).sigmoid(), sizes=[(4, 5), (4, 5)])
    mask = mask_of(4, 5, (1, 1), (1, 2), (2, 1))
    moved, was = (w.query.position[0] for w in (rw.warp_rows(where, [ObjectMove(mask, *move)]), where))
    assert torch.equal(moved[:20], was[:20])
    keep = ~mask.flatten()
    assert torch.equal(moved[20:][keep], was[20:][keep])
    rows = {tuple(r) for r in was[20:].tolist()}
    assert all(tuple(r) in rows for r in moved[20:].tolist())
    assert not torch.equal(moved, was)


@pytest.mark.parametrize("mode", MODES)
def test_an_object_meets_the_target_where_it_is_to_be(mode):
    depth = 1 + random(4, 4).sigmoid()
    moved = rw.warp_rows(two(depth, mode), [ObjectMove(mask_of(4, 4, (1, 0)), 1, 2)]).query
    target, source = 2 * 4 + 2, 16 + 1 * 4 + 0
    assert torch.equal(moved.position[0, target, 1:], moved.position[0, source, 1:])
    if mode == "rotate":
        assert moved.position[0, target, 0] == moved.position[0, source, 0]
    else:
        assert moved.column("depth")[0, target] == moved.column("depth")[0, source]


def test_a_quarter_turn_of_a_square_is_a_permutation():
    mask = mask_of(5, 6, *((r, c) for r in (1, 2, 3) for c in (2, 3, 4)))
    index = warp_index(mask, angle=90.0).reshape(5, 6)
    inside = mask.flatten().nonzero()[:, 0].tolist()
    assert sorted(index[mask].tolist()) == inside
    assert index[1, 4] == 1 * 6 + 2  # the upper right corner comes to lie at the upper left
    back = index.flatten()[index.flatten()]
    assert torch.equal(back, warp_index(mask, angle=180.0))


def test_objects_commute_and_masks_take_their_own_move():
    where = two(1 + random(4, 4).sigmoid(), sizes=[(4, 4)] * 4)
    a, b = ObjectMove(mask_of(4, 4, (0, 0)), 1, 1), ObjectMove(mask_of(4, 4, (3, 3), (3, 2)), -2, 0)
    both = rw.warp_rows(where, [a, b]).query.position
    other = rw.warp_rows(where, [b, a]).query.position
    assert torch.equal(both[:, :32], other[:, :32])
    was = where.query.position[0]
    first, second = both[0, 32:48], both[0, 48:]
    assert torch.equal(first[0], was[32 + 5])
    assert torch.equal(first[1:], was[33:48])
    assert torch.equal(second[15], was[48 + 7])
    assert torch.equal(second[:14], was[48:62])


def test_from_pixels_to_cells_and_steps():
    assert [token_shift(x) for x in (7, 8, 24, 40, -24, 23.9)] == [0, 0, 2, 2, -2, 1]
    mask = torch.zeros(8, 8)
    mask[:4, 4:] = 1
    assert rw.token_mask(mask, 2, 2).tolist() == [[False, True], [False, False]]
    where = two()
    warped = rw.warp_rows(where, [ObjectMove(mask_of(4, 4, (1, 1)), 1, 0)])
    assert [rw.warp_until(step, warped, where) is warped for step in (0, 19, 20, 39)] == [True, True, False, False]


def test_a_copying_model_moves_the_object():
    """Attention that looks where positions agree copies the source, and after a warp the object at its new place."""
    rows = columns = 6
    where = rw.centered_grid_ids([(rows, columns)] * 2)
    at = rw.depth_axis(where, torch.ones(rows, columns))  # as though of one picture, so that cells meet cells
    picture = torch.zeros(rows, columns, dtype=torch.float64)
    picture[1:3, 1:3] = 1.0
    q = torch.full((1, 1, 72, 64), 8.0, dtype=torch.float64)
    v = torch.cat([torch.zeros(36), picture.flatten()]).double()[None, None, :, None]
    mask = torch.zeros(72, 72, dtype=torch.bool)
    mask[:36, 36:] = True  # the target reads the source
    move = ObjectMove(picture > 0.5, 2, 2)
    made = rw.DepthRoPE(64, base=30.0)

    def copied(positions):
        p = rw.Attention(q, q, v.expand(-1, -1, -1, 64), positions, causal=False, mask=mask)
        return attend(made, p)[0, 0, :36, 0].reshape(rows, columns)

    close(copied(at), picture, 1e-3)
    moved = copied(rw.warp_rows(at, [move]))
    assert moved[3:5, 3:5].min() > 0.4  # shared with the background that was there
    assert moved[:3, :2].max() < 0.5
    assert copied(at)[3:5, 3:5].max() < 1e-3


# ---- properties of the sheet: depth of the target --------------------------------------------------------------------


def square(n=24, start=8, size=9):
    mask = torch.zeros(n, n, dtype=torch.bool)
    mask[start : start + size, start : start + size] = True
    return mask


def test_an_object_in_front_of_a_wall():
    wall = torch.full((24, 24), 4.0)
    got = rw.synthesize_target_depth(wall, square(), 3, -2, -1.0, normalise=False)
    inner = got[11 + 2 : 20 - 2, 6 + 2 : 15 - 2]
    close(inner, torch.full((5, 5), 3.0))
    close(got[11, 10], number(4 - 1 / 3))
    close(got[12, 10], number(4 - 2 / 3))
    outside = torch.ones(24, 24, dtype=torch.bool)
    outside[11:20, 6:15] = False
    close(got[outside], torch.full((24 * 24 - 81,), 4.0))
    behind = rw.synthesize_target_depth(wall, square(), 3, -2, 1.0, normalise=False)
    close(behind, wall)
    scaled = rw.synthesize_target_depth(wall, square(), 3, -2, -1.0)
    close(scaled, got - 2)  # from 3 … 4 to 1 … 2
    assert torch.equal(rw.synthesize_target_depth(wall, square()), torch.ones(24, 24, dtype=torch.float64))


def test_a_plane_is_filled_by_itself():
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    plane = (3 + 0.5 * y - 0.25 * x).double()
    hidden = torch.where(square(), 99.0, plane)
    close(fill_background(hidden, square(), 0), plane, 1e-10)


def test_holes_at_the_border_and_the_margin():
    depth = torch.ones(6, 8, dtype=torch.float64)
    depth[:, 5:] = 3.0
    corner = torch.zeros(6, 8, dtype=torch.bool)
    corner[:2, :2] = True
    close(fill_background(depth, corner, 0)[:2, :2], torch.ones(2, 2))
    # By hand: one unknown at the border has three neighbours.
    one = torch.zeros(6, 8, dtype=torch.bool)
    one[0, 4] = True
    close(fill_background(depth, one, 0)[0, 4], number(5 / 3))
    # Within the margin the nearest pixel beyond counts; the first of equals.
    row = torch.arange(9.0, dtype=torch.float64).expand(3, 9)
    middle = torch.zeros(3, 9, dtype=torch.bool)
    middle[:, 4] = True
    assert fill_background(row, middle, 2)[1].tolist() == pytest.approx([0, 1, 1, 1, 4, 7, 7, 7, 8])


def test_the_nearest_pixel_beyond_by_brute_force():
    depth = random(15, 17)
    mask = torch.zeros(15, 17, dtype=torch.bool)
    mask[4:10, 5] = mask[9, 5:12] = mask[4:10, 11] = True  # a notch
    got = fill_background(depth, mask, 3)
    at = torch.cartesian_prod(torch.arange(15), torch.arange(17))
    to_mask = (at[:, None] - mask.nonzero()).square().sum(-1).amin(1).reshape(15, 17)
    beyond = (to_mask > 9).nonzero()
    for r, c in ((to_mask <= 9) & ~mask).nonzero().tolist():
        far = (beyond - torch.tensor([r, c])).square().sum(-1)
        nearest = beyond[far == far.min()][0]
        assert got[r, c] == depth[nearest[0], nearest[1]]


def test_large_holes_are_harmonic():
    depth = random(60, 50)
    hole = torch.zeros(60, 50, dtype=torch.bool)
    hole[10:45, 0:40] = True
    got = fill_background(depth, hole, 0)
    p = torch.nn.functional.pad(got, (1, 1, 1, 1))
    count = torch.nn.functional.pad(torch.ones(60, 50, dtype=torch.float64), (1, 1, 1, 1))
    mean = [x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] for x in (p, count)]
    close((mean[0] / mean[1])[hole], got[hole], 1e-10)


def test_what_is_not_finite_is_far_and_other_masks_have_the_median():
    depth = torch.full((24, 24), 5.0, dtype=torch.float64)
    depth[0, 0], depth[0, 1] = math.inf, math.nan
    depth[square()] = 2.0
    depth[8, 8] = 3.0
    got = rw.synthesize_target_depth(depth, square(), target_mask=square(size=12), normalise=False)
    assert got[0, 0] == got[0, 1] == 5
    close(got[17, 17], number(2.0))  # beyond what the object covered
    assert got[15, 15] == 2


def test_moves_in_space():
    k = torch.tensor([[100.0, 0, 50], [0, 100, 40], [0, 0, 1]])
    assert perspective_move((40, 50), 2.0, (0.5, 0, 0), k) == pytest.approx((40, 75, 2, 1))
    assert perspective_move((60, 50), 2.0, (0, 0, 2.0), k) == pytest.approx((50, 50, 4, 0.5))
    with pytest.raises(PositionError, match="in front of the camera"):
        perspective_move((60, 50), 2.0, (0, 0, -2.0), k)
    with pytest.raises(PositionError, match="intrinsics"):
        perspective_move((60, 50), 2.0, (0, 0, 1), k[:2])


# ---- contract of the other mode, decoding ----------------------------------------------------------------------------


def overwritten(batch, seq, generator):
    where = sample_depth(batch, seq, generator)
    at = where.query.position
    return rw.Positions(torch.cat([at[..., 1:2] * 0, at[..., 1:]], -1), columns={"depth": at[..., 0]})


@pytest.mark.parametrize("check", [c for c in testing.checks() if c not in ("relative", "norm_preserving", "edit")])
def test_contract_of_overwritten_depth(check):
    def made(head_dim):
        return rw.DepthRoPE(head_dim, mode="overwrite")

    for why in testing.check_encoding(made, checks=[check], positions=overwritten).values():
        pytest.skip(why)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_depth():
    where = two()
    for bad in (math.nan, math.inf):
        with pytest.raises(PositionError, match="NaN or infinite somewhere"):
            rw.depth_axis(where, torch.full((4, 4), bad))
    with pytest.raises(PositionError, match="source_depth is NaN"):
        rw.depth_axis(where, torch.ones(4, 4), torch.full((4, 4), math.nan))
    with pytest.raises(PositionError, match="above 0"):
        rw.depth_axis(where, torch.zeros(4, 4), mode="overwrite")
    with pytest.raises(PositionError, match="height, width"):
        rw.depth_axis(where, torch.ones(4))
    with pytest.raises(PositionError, match="for a target alone"):
        rw.depth_axis(rw.centered_grid_ids([(4, 4)]), torch.ones(4, 4), torch.ones(4, 4))
    with pytest.raises(ConfigError, match="'rotate' or 'overwrite'"):
        rw.depth_axis(where, torch.ones(4, 4), mode="both")
    warped = rw.warp_rows(where, [ObjectMove(mask_of(4, 4, (1, 1)), 1, 0)])
    with pytest.raises(PositionError, match="no plain grid any more"):
        rw.depth_axis(warped, torch.ones(4, 4))
    with pytest.raises(PositionError, match="not positions of pictures"):
        rw.depth_axis(rw.Positions.arange(4), torch.ones(4, 4))
    with pytest.raises(NeedsColumn, match="image"):
        rw.depth_axis(rw.Positions(torch.zeros(1, 4, 3)), torch.ones(2, 2))


def test_bad_masks_and_moves():
    where = two()
    with pytest.raises(PositionError, match=r"mask 0 has \(3, 4\) cells and picture 1 \(4, 4\)"):
        rw.warp_rows(where, [ObjectMove(mask_of(3, 4, (1, 1)), 1, 0)])
    with pytest.raises(PositionError, match="overlap"):
        rw.warp_rows(where, [ObjectMove(mask_of(4, 4, (1, 1)), 1, 0)] * 2)
    with pytest.raises(PositionError, match="no picture to take the object from"):
        rw.warp_rows(rw.centered_grid_ids([(4, 4)]), [])
    with pytest.raises(PositionError, match="a mask is bool"):
        warp_index(torch.ones(2, 2))
    with pytest.raises(PositionError, match="its scale above 0"):
        warp_index(mask_of(2, 2), scale=0.0)
    with pytest.raises(PositionError, match="finite numbers"):
        warp_index(mask_of(2, 2), math.nan)
    with pytest.raises(PositionError, match="height, width"):
        rw.token_mask(torch.ones(4), 2, 2)
    with pytest.raises(PositionError, match="number of pixels"):
        token_shift(math.inf)
    with pytest.raises(ConfigError, match="end is a number of steps"):
        rw.warp_until(0, where, where, -1)
    with pytest.raises(PositionError, match=r"\(rows, columns\) of each"):
        rw.centered_grid_ids([])
    with pytest.raises(ConfigError, match="text is a number"):
        rw.centered_grid_ids([(1, 1)], -1)


def test_bad_pictures():
    depth, mask = torch.ones(8, 8), square(8, 3, 2)
    with pytest.raises(PositionError, match="bool and has a value for each"):
        rw.synthesize_target_depth(depth, mask[:4])
    with pytest.raises(PositionError, match="target_mask is bool"):
        rw.synthesize_target_depth(depth, mask, target_mask=mask.float())
    with pytest.raises(PositionError, match="finite nowhere"):
        rw.synthesize_target_depth(depth / 0, mask)
    with pytest.raises(PositionError, match="no background is left"):
        rw.synthesize_target_depth(depth, torch.ones(8, 8, dtype=torch.bool))
    with pytest.raises(PositionError, match="lower margin="):
        fill_background(depth, mask, 9)
    with pytest.raises(PositionError, match="delta is a finite"):
        rw.synthesize_target_depth(depth, mask, delta=math.nan)
    with pytest.raises(ConfigError, match="dy is a whole number"):
        rw.synthesize_target_depth(depth, mask, 0.5)
    with pytest.raises(ConfigError, match="margin is a whole number"):
        fill_background(depth, mask, -1)


def test_bad_encodings():
    with pytest.raises(ConfigError, match="at least 6"):
        rw.DepthRoPE(4)
    with pytest.raises(ConfigError, match="'rotate' or 'overwrite'"):
        rw.DepthRoPE(16, mode="both")
    with pytest.raises(ConfigError, match="a pair of channels for depth"):
        rw.DepthRoPE(16, (0, 8, 8), "overwrite")
    with pytest.raises(PositionError, match="these positions are plain"):
        rw.DepthRoPE(16)(problem(d=16))
    with pytest.raises(NeedsColumn, match="depth"):
        rw.DepthRoPE(16, mode="overwrite")(problem(b=1, s=32, d=16, positions=two(), causal=False))
    made = rw.DepthRoPE(16, mode="overwrite")
    cache = rw.KVCache(made)
    cache.extend(problem(b=1, s=32, d=16, positions=two(torch.ones(4, 4), "overwrite")))
    with pytest.raises(CannotEdit, match="multiplied by their depth"):
        cache.edit(torch.arange(16), two(torch.ones(4, 4), "overwrite").slice(0, 16))
