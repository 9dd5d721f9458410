"""Patches of a vision tower: their order, their rotation, and the size that an image is given (arXiv 2409.12191)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import SINGLE, close, golden

import ropewalk as rw
from ropewalk.coordinates.patches import merge_order
from ropewalk.core.errors import ConfigError, PositionError

CASE = golden("106")["vision_2x4x4_D16"]


def tower(head_dim=16, base=10_000.0):
    return rw.AxialRoPE(head_dim, base=base, pairing="half")


def test_golden():
    where = rw.patch_positions(CASE.inputs.get("grid_thw", CASE.params["grid_thw"]), CASE.params["spatial_merge_size"])
    made = tower(CASE.params["head_dim"], CASE.params["base"])
    close(made.angles(where.query.position.double())[0], CASE.outputs["angles(L,D/2)"], SINGLE)
    n = torch.arange(512, dtype=torch.float64)
    q, k = ((0.1 * n).sin().reshape(1, 1, 32, 16), (0.13 * n + 0.5).sin().reshape(1, 1, 32, 16))
    q, k = made.rotate(q, k, where)
    close(q.flatten(), CASE.outputs["q_rot"].flatten(), SINGLE)
    close(k.flatten(), CASE.outputs["k_rot"].flatten(), SINGLE)


@pytest.mark.parametrize(("rows", "columns", "merge"), [(4, 6, 2), (2, 8, 2), (6, 3, 3), (3, 5, 1)])
def test_order_of_merging(rows, columns, merge):
    order = merge_order(rows, columns, merge)
    raster = torch.arange(rows * columns)
    assert torch.equal(raster[order][order.argsort()], raster)
    token = order.reshape(-1, merge * merge)  # what is merged is a square of neighbours, from its first row on
    top, left = token[:, 0] // columns, token[:, 0] % columns
    for i in range(merge * merge):
        assert torch.equal(token[:, i], (top + i // merge) * columns + left + i % merge)
    merged = (top // merge) * (columns // merge) + left // merge
    assert torch.equal(merged, torch.arange(len(merged)))  # and the tokens come row by row


def test_rows_and_columns_change_places_when_the_picture_is_turned_over():
    made = tower()

    def angles(rows, columns):
        found = made.angles(rw.patch_positions([(1, rows, columns)]).query.position.double())[0]
        return found

    wide, tall = angles(2, 6), angles(6, 2)
    swapped = torch.cat([tall[:, 4:], tall[:, :4]], 1)
    assert {tuple(a) for a in wide.tolist()} == {tuple(a) for a in swapped.tolist()}


def test_frames_do_not_see_each_other():
    """Each temporal patch is a segment of its own; the whole is each alone."""
    made = tower()
    grids = torch.tensor([[1, 2, 6], [2, 4, 2]])
    where = rw.patch_positions(grids)
    assert where.query.column("document")[0].tolist() == [0] * 12 + [1] * 8 + [2] * 8
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 28, 16, generator=generator, dtype=torch.float64) for _ in range(3))
    out = rw.attend(made(rw.Attention(q, k, v, where, causal=False)), "dense")
    for at, grid in ((slice(0, 12), (1, 2, 6)), (slice(12, 20), (1, 4, 2)), (slice(20, 28), (1, 4, 2))):
        alone = rw.Attention(q[:, :, at], k[:, :, at], v[:, :, at], rw.patch_positions([grid]), causal=False)
        close(out[:, :, at], rw.attend(made(alone), "dense"))


@pytest.mark.parametrize(
    ("grids", "match"),
    [
        ([], "at least one"),
        ([(4, 6)], r"\(frames, rows, columns\)"),
        ([(0, 4, 6)], "at least one; got 0"),
        ([(1, 3, 6)], "not merged 2 x 2"),
        (torch.tensor([[1.0, 4.0, 6.0]]), "whole number of frames"),
    ],
)
def test_grids_that_are_none(grids, match):
    with pytest.raises(PositionError, match=match):
        rw.patch_positions(grids)


# ---- sizes of images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((280, 420), (280, 420)),
        ((300, 400), (308, 392)),  # 10.7 and 14.3 factors
        ((42, 98), (56, 112)),  # 1.5 and 3.5 factors: halves go to even
        ((70, 98), (56, 112)),  # 2.5 is 2
        ((20, 30), (56, 84)),  # too few pixels
        ((28, 5000), (28, 5012)),
    ],
)
def test_sizes(size, wanted):
    assert rw.smart_resize(*size) == wanted


@pytest.mark.parametrize("size", [(4000, 3000), (17, 911), (56, 56), (1, 1), (3000, 20), (980, 1020)])
def test_sizes_are_within_bounds(size):
    low, high = 56 * 56, 28 * 28 * 400
    rows, columns = rw.smart_resize(*size, min_pixels=low, max_pixels=high)
    assert rows % 28 == columns % 28 == 0
    assert rows * columns >= low
    assert rows * columns <= high or 28 in (rows, columns)
    tall, wide = size
    if min(rows, columns) > 28:
        assert abs(math.log(rows / columns * wide / tall)) <= math.log(1.5)
    if min(size) > 28 and tall * wide <= high:
        assert abs(rows - tall) <= 28 and abs(columns - wide) <= 28


def test_sizes_that_are_refused():
    with pytest.raises(ConfigError, match="more than 200 times"):
        rw.smart_resize(10, 2001)
    with pytest.raises(ConfigError, match="min_pixels 100 is more than max_pixels 50"):
        rw.smart_resize(10, 20, min_pixels=100, max_pixels=50)
    with pytest.raises(ConfigError, match="height"):
        rw.smart_resize(0, 20)
