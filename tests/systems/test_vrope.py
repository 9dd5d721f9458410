"""VRoPE: four corner distances on one line with the text (arXiv 2502.11664)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, golden, problem

import ropewalk as rw
from ropewalk.coordinates.layout import suffix_mask
from ropewalk.core.errors import ConfigError
from ropewalk.rotary.vrope import CornerIds

CASES = golden("018")
BLOCKS = {"text": rw.Text, "image": rw.Image, "video": rw.Video}


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    pairs = case.params["half_head_dim"]
    made = rw.VRoPE(2 * pairs, case.params["rope_base"])
    where = rw.layout([BLOCKS[kind](*sizes) for kind, *sizes in case.params["segments"]])
    s = where.query.length
    assert s == case.outputs["total_tokens"]
    spread = made.allocation.spread(made.scheme.coordinates(where.query))[0, 0]
    assert torch.equal(spread, case.outputs["position_ids"].double())
    assert made.scheme.cursor(where.key).tolist() == [case.outputs["next_text_index"]]
    rows = made.allocation.spread(made.scheme.coordinates(where.key.continuing(2)))[0, 0]
    assert torch.equal(rows, case.outputs["decode_rows"].double())
    q = (0.1 * torch.arange(s * 2 * pairs, dtype=torch.float64)).sin().reshape(1, 1, s, 2 * pairs)
    close(made.rotate(q, q, where)[0], case.outputs["q_rot"], DOUBLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------

T, H, W = 3, 2, 5
N = H + W - 1


def corners(*blocks, scheme=None):
    return (CornerIds() if scheme is None else scheme).coordinates(rw.layout(list(blocks)).query)[0]


def test_no_corner_is_nearer_to_the_text():
    c = corners(rw.Text(4), rw.Video(T, H, W), rw.Text(2))
    film = c[4:-2].reshape(T, H, W, 4)
    p = film - film.amin((1, 2, 3))[:, None, None, None]
    close(p[..., 0] + p[..., 3], torch.full((T, H, W), N - 1.0))
    close(p[..., 1] + p[..., 2], torch.full((T, H, W), N - 1.0))
    assert torch.equal(p.flip(2), p[..., [1, 0, 3, 2]])  # mirrored left to right
    assert torch.equal(p.flip(1), p[..., [2, 3, 0, 1]])
    assert len({tuple(x) for x in p[0].flatten(0, 1).tolist()}) == H * W  # places can be told apart


def test_frames_and_text_are_on_one_line():
    c = corners(rw.Text(4), rw.Video(T, H, W), rw.Text(2))
    film = c[4:-2].reshape(T, H * W, 4)
    close(film[1:] - film[:-1], torch.full((T - 1, H * W, 4), float(N)))
    assert film.min() == 4
    assert film.max() == 4 + T * N - 1
    assert c[-2].tolist() == [4 + T * N] * 4


def test_text_and_frames_of_one_cell_are_rope():
    p = problem(b=1, d=16, positions=rw.layout([[rw.Text(2), rw.Video(3, 1, 1), rw.Text(2)]]))
    close(attend(rw.VRoPE(16), p), attend(rw.RoPE(16, pairing="half"), p.replace(positions=None)))


def test_order_of_the_paper():
    assert str(rw.VRoPE(16, order="paper").allocation) == "0 2 3 1 0 2 3 1"
    assert str(rw.VRoPE(16).allocation) == "0 1 2 3 0 1 2 3"


def test_pairs_of_time():
    made = rw.VRoPE(16, time_pairs=2)
    assert str(made.allocation) == "t t 0 1 2 3 0 1"
    c = corners(rw.Text(1), rw.Video(2, H, W), rw.Text(1), scheme=made.scheme)
    assert c[1:-1, 4].reshape(2, -1).tolist() == [[1 + N // 2] * H * W, [1 + N + N // 2] * H * W]


def test_three_axes_of_space():
    c = corners(rw.Text(1), rw.Video(2, 2, 3, depth=2), rw.Text(1), scheme=CornerIds(3))
    n = 2 + 3 + 2 - 2
    film = c[1:-1].reshape(2, 2, 3, 2, 8)
    assert film[0, 1, 2, 1].tolist() == [1 + s for s in (4, 3, 2, 1, 3, 2, 1, 0)]
    assert c[-1, 0] == 1 + 2 * n


def test_shared_suffixes_start_at_one_place():
    where = rw.layout([rw.Text(2), rw.Text(3, shared=True), rw.Text(2, shared=True), rw.Text(1)])
    c = CornerIds().coordinates(where.query)[0, :, 0]
    assert c.tolist() == [0, 1, 2, 3, 4, 2, 3, 2]


def test_shared_suffixes_do_not_see_each_other():
    """Each suffix computes what it computes alone behind the prompt."""
    made = rw.VRoPE(16)
    where = rw.layout([[rw.Text(2), rw.Image(2, 3), rw.Text(3, shared=True), rw.Text(2, shared=True)]])
    p = problem(b=1, s=13, d=16, positions=where)
    out = attend(made, p.replace(mask=suffix_mask(where)))
    for index in (list(range(11)), [*range(8), 11, 12]):
        at = torch.tensor(index)
        alone = rw.layout([[rw.Text(2), rw.Image(2, 3), rw.Text(len(index) - 8)]])
        want = attend(made, rw.Attention(p.q[:, :, at], p.k[:, :, at], p.v[:, :, at], alone))
        close(out[:, :, at], want)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"time_pairs": 9}, "from 0 to 8"),
        ({"time_pairs": 6}, "4 corners and only 2 pairs"),
        ({"order": "paper", "dims": 3}, "for two axes"),
        ({"dims": 4}, "dims is 1, 2 or 3"),
        ({"order": "other"}, "order is"),
    ],
)
def test_bad_input(more, match):
    with pytest.raises(ConfigError, match=match):
        rw.VRoPE(16, **more)
