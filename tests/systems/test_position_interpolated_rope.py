"""Position-interpolated RoPE in the plane (Dens3R, arXiv 2507.16290)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.coordinates.grid import scaled_pair, scaled_positions
from ropewalk.core.errors import ConfigError, PositionError

CASES = golden("055")


def rope(trained=4, mode="axes", d=16):
    return rw.PositionInterpolatedRoPE(d, trained, mode)


def image(rows, columns):
    return rw.layout([rw.Image(rows, columns)])


def places(made, where):
    return made.scheme.coordinates(where.key)[0]


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p = case.params
    made = rw.PositionInterpolatedRoPE(p["head_dim"], p["trained_grid"], base=p["base"])
    fixed = scaled_positions(p["grid"], p["trained_grid"])
    close(fixed.key.position[0], case.outputs["positions_yx_scaled"])
    for where in (image(*p["grid"]), fixed):
        q, k = made.rotate(case.inputs["q"], case.inputs["k"], where)
        close(q, case.outputs["q_rot"], DOUBLE)
        close(k, case.outputs["k_rot"], DOUBLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def test_grids_up_to_the_trained_one_stay():
    made, plain = rope((4, 6)), rw.AxialRoPE(16, base=100.0, pairing="interleaved")
    where, grid = image(3, 6), rw.grid_positions(3, 6)
    assert torch.equal(places(made, where), grid.key.position[0].double())
    p = problem(s=18, d=16, positions=where)
    assert torch.equal(made(p).q, made(p.replace(positions=grid)).q)
    # The same pairs of channels, in the other order: the channels of an axis are paired as halves.
    order = torch.arange(16).reshape(2, 2, 4).mT.flatten()
    got = plain(p.replace(q=p.q[..., order], k=p.k[..., order], positions=grid))
    close(logits(got), logits(made(p)))
    interleaved = rw.PositionInterpolatedRoPE(16, 6, pairing="interleaved")
    close(interleaved(p).q, plain(p.replace(positions=grid)).q)


def test_twice_as_large():
    made = rope((3, 4))
    wide, plain = places(made, image(6, 8)).reshape(6, 8, 2), places(made, image(3, 4)).reshape(3, 4, 2)
    assert torch.equal(wide[::2, ::2], plain)
    assert wide.reshape(-1, 2).amax(0).tolist() == [2.5, 3.5]  # within the trained range


def test_only_differences_count():
    made = rope()
    where = made.scheme.positions(image(6, 8))
    p = problem(s=48, d=16, positions=where)
    far = where.map_sides(lambda t: t.with_columns(position=t.position + 100.25))
    close(logits(made(p.replace(positions=far))), logits(made(p)), 1e-10)


def test_axes_do_not_mix():
    made = rope()
    q = random(1, 1, 6, 16)
    rows, columns = rw.grid_positions(6, 1), rw.grid_positions(1, 6)
    assert torch.equal(made.rotate(q, q, rows)[0][..., 8:], q[..., 8:])
    assert torch.equal(made.rotate(q, q, columns)[0][..., :8], q[..., :8])
    differ(made.rotate(q, q, rows)[0][..., :8], q[..., :8])


def test_coordinates_or_frequencies():
    made = rope()
    where = image(8, 6)
    slower = made.inv_freq[0] * torch.tensor([4 / 8] * 4 + [4 / 6] * 4, dtype=torch.float64)
    angles = made.allocation.spread(rw.grid_positions(8, 6).key.coordinates())[:, 0] * slower
    close(made.angles(made.scheme.coordinates(where.key)), angles)


def test_proportions_are_kept():
    made = rope(mode="isotropic")
    c = places(made, image(2, 8)).reshape(2, 8, 2)
    assert c[1, 0].tolist() == [0.5, 0]
    assert c[0, 1].tolist() == [0, 0.5]
    assert places(rope(), image(2, 8)).reshape(2, 8, 2)[1, 0].tolist() == [1.0, 0]


# ---- what must work --------------------------------------------------------------------------------------------------


def test_two_images_of_different_sizes():
    made = rope()
    where = rw.Positions(q=image(4, 4), k=image(8, 6))
    q, k = random(1, 2, 16, 16), random(1, 2, 48, 16, seed=1)
    p = made(rw.Attention(q, k, k, where, causal=False))
    same = made(rw.Attention(q, k, k, scaled_pair((4, 4), (8, 6), 4), causal=False))
    close(logits(p), logits(same))
    one, other = 1 * 4 + 2, 2 * 6 + 3  # (1, 2) of the first image is (2, 3) of the second, scaled by 1/2 and 2/3
    close(p.q[:, :, one].mul(p.k[:, :, other]).sum(-1), q[:, :, one].mul(k[:, :, other]).sum(-1))


def test_tokens_that_are_no_patches_do_not_turn():
    made = rope()
    where = rw.layout([rw.Text(2), rw.Image(2, 3), rw.Video(2, 1, 3)])
    q = random(1, 1, 14, 16)
    got, _ = made.rotate(q, q, where)
    assert torch.equal(got[:, :, :2], q[:, :, :2])
    assert torch.equal(places(made, where)[2:8], places(made, image(2, 3)))
    assert torch.equal(places(made, where)[8:11], places(made, where)[11:])  # frames share coordinates


def test_a_row_of_images_of_different_sizes():
    made = rope()
    where = rw.layout([[rw.Image(2, 3)], [rw.Image(1, 5)]])
    c = made.scheme.coordinates(where.key)
    assert torch.equal(c[0], places(made, image(2, 3)))
    assert torch.equal(c[1, :5], places(made, image(1, 5)))


def test_any_axial_encoding():
    p = problem(s=48, d=16)
    where = scaled_positions((6, 8), (3, 4))
    by_hand = rw.Positions(rw.grid_positions(6, 8).key.position / 2)
    for made in (rw.AxialRoPE(16), rw.MixedRoPE(16, 4)):
        assert torch.equal(made(p.replace(positions=where)).q, made(p.replace(positions=by_hand)).q)
    three = scaled_positions((2, 6, 8), (4, 3, 4), num_prefix=1).key.position[0]
    assert three[0].tolist() == [0, 0, 0]
    assert three[-1].tolist() == [1, 2.5, 3.5]


def test_decoding_is_the_full_pass():
    made = rope()
    where = rw.layout([[rw.Text(1), rw.Image(2, 5)]])
    p = problem(b=1, s=11, d=16, positions=where)
    cache = rw.KVCache(made)
    out = [
        rw.attend(
            cache[0].extend(rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], cache.step(where.slice(a, b))))
        )
        for a, b in ((0, 4), (4, 5), (5, 11))
    ]
    close(torch.cat(out, 2), attend(made, p), 1e-10)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"head_dim": 6}, "multiple of 4"),
        ({"trained_grid": None}, "give trained_grid"),
        ({"trained_grid": 0}, "at least 1"),
        ({"trained_grid": (4, 4, 4)}, "one for each of 2 axes"),
        ({"mode": "both"}, "mode is one of"),
        ({"base": -1.0}, "base"),
    ],
)
def test_bad_input(more, match):
    with pytest.raises(ConfigError, match=match):
        rw.PositionInterpolatedRoPE(**{"head_dim": 16, **more})


def test_grids_that_cannot_be():
    with pytest.raises(ConfigError, match="give trained_grid"):
        scaled_positions((4, 6), None)
    with pytest.raises(ConfigError, match="size 0"):
        scaled_positions((0, 6), 4)
    with pytest.raises(PositionError, match="make them with"):
        rope()(problem(d=16))
