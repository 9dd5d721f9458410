"""MouSi's shared positions and the fusion of its experts (arXiv 2401.17221)."""

from __future__ import annotations

import pytest
import torch
from reference import attend, close, differ, problem, random

import ropewalk as rw
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.rotary.mousi import PolyExpertFusion, SharedIds

SHARINGS = {"original": 6, "share_all": 1, "share_by_row": 2, "share_by_row_col": 2}


def ids(sharing, *blocks, **more):
    return SharedIds(sharing, **more).coordinates(rw.layout(list(blocks)).query)[0, :, 0].tolist()


@pytest.mark.parametrize(("sharing", "taken"), SHARINGS.items())
def test_an_image_takes_up(sharing, taken):
    image = {"original": list(range(3, 9)), "share_all": [3] * 6}.get(sharing, [3] * 3 + [4] * 3)
    assert ids(sharing, rw.Text(3), rw.Image(2, 3), rw.Text(2)) == [0, 1, 2, *image, 3 + taken, 4 + taken]
    assert ids(sharing, rw.Text(5)) == [0, 1, 2, 3, 4]


def test_sam():
    taken = {s: ids(s, rw.Image(64, 64), rw.Text(1))[-1] for s in SHARINGS}
    assert taken == {"original": 4096, "share_all": 1, "share_by_row": 64, "share_by_row_col": 64}


def test_several_experts():
    grids = [rw.Image(2, 3, group=1), rw.Image(4, 2, group=1)]
    assert ids("share_by_row", rw.Text(1), *grids, rw.Text(1)) == [0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]
    assert ids("share_by_row", rw.Text(1), *grids, rw.Text(1), shared_start=True) == [
        0, 1, 1, 1, 2, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 5,
    ]  # fmt: skip
    assert ids("share_by_row", rw.Text(1), *grids[::-1], rw.Text(1), shared_start=True)[-1] == 5
    # Without a group grids follow each other, and so do groups.
    apart = ids(
        "share_all", rw.Image(1, 2), rw.Image(2, 1, group=1), rw.Image(1, 2, group=2), rw.Text(1), shared_start=True
    )
    assert apart == [0, 0, 1, 1, 2, 2, 3]


def test_original_is_rope():
    where = rw.layout([[rw.Text(3), rw.Image(2, 3), rw.Text(2)]])
    p = problem(b=1, s=11, positions=where)
    close(attend(rw.MouSi(8, "original"), p), attend(rw.RoPE(8, pairing="half"), p.replace(positions=None)))


def test_a_shared_position_has_no_order_inside():
    """Seen both ways and without column vectors, tokens of an image may change places."""
    made = rw.MouSi(8, "share_all")
    p = problem(b=1, s=6, positions=rw.layout([[rw.Image(2, 3)]]), causal=False)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    mixed = p.replace(q=p.q[:, :, order], k=p.k[:, :, order], v=p.v[:, :, order])
    close(attend(made, mixed), attend(made, p)[:, :, order])
    differ(attend(rw.MouSi(8), mixed), attend(rw.MouSi(8), p)[:, :, order])


def test_attention_follows_the_order_of_the_sequence():
    p = problem(b=1, s=6, positions=rw.layout([[rw.Image(2, 3)]]))
    made = rw.MouSi(8, "share_all")
    changed = p.replace(v=torch.cat([p.v[:, :, :3], p.v[:, :, 3:] + 1], 2))
    close(attend(made, changed)[:, :, :3], attend(made, p)[:, :, :3])


# ---- column vectors --------------------------------------------------------------------------------------------------


def test_column_vectors():
    made = rw.MouSi(8, "share_by_row_col", hidden_size=5, max_columns=4).double()
    where = rw.layout([[rw.Text(1), rw.Image(2, 3), rw.Text(1)], [rw.Text(2), rw.Image(1, 4), rw.Text(2)]])
    x = random(2, 8, 5)
    out = made.embed(x, where)
    zero, c = torch.zeros(5, dtype=torch.float64), made.columns.detach()
    close(out[0] - x[0], torch.stack([zero, c[0], c[1], c[2], c[0], c[1], c[2], zero]))
    close(out[1] - x[1], torch.stack([zero, zero, c[0], c[1], c[2], c[3], zero, zero]))
    with torch.no_grad():
        made.columns.zero_()
    close(made.embed(x, where), x)
    assert 0.01 < rw.MouSi(8, "share_by_row_col", hidden_size=64).columns.std() < 0.03


def test_bad_input():
    where = rw.layout([[rw.Image(2, 3)]])
    with pytest.raises(ConfigError, match="share_by_row"):
        rw.MouSi(8, "share_by_rows")
    with pytest.raises(ConfigError, match="give hidden_size="):
        rw.MouSi(8, "share_by_row_col")
    made = rw.MouSi(8, "share_by_row_col", hidden_size=4, max_columns=2).double()
    with pytest.raises(PositionError, match="3 columns and there are 2 vectors"):
        made.embed(random(1, 6, 4), where)
    with pytest.raises(PositionError, match="positions of a layout"):
        made.embed(random(1, 6, 4))
    with pytest.raises(ShapeError, match="width 4 and the embeddings 5"):
        made.embed(random(1, 6, 5), where)


# ---- the fusion of experts -------------------------------------------------------------------------------------------


def test_fusion_by_hand():
    torch.manual_seed(0)
    made = PolyExpertFusion((3, 5), 4, merge=(2, 1), inner=6).double()
    a, b = random(2, 6, 3), random(2, 4, 5, seed=1)
    first, second = made.experts

    def finish(h):
        return torch.nn.functional.gelu(h) @ made.shared.weight.T + made.shared.bias

    joined = torch.stack([torch.cat([a[:, 2 * i], a[:, 2 * i + 1]], -1) for i in range(3)], 1)
    want = torch.cat([finish(joined @ first.weight.T + first.bias), finish(b @ second.weight.T + second.bias)], 1)
    close(made([a, b]), want)


def test_fusion_by_queries():
    torch.manual_seed(0)
    made = PolyExpertFusion((3, 5), 4, kind="query", inner=8, queries=2, num_heads=2).double()
    a, b = random(2, 6, 3), random(2, 4, 5, seed=1)
    out = made([a, b])
    assert out.shape == (2, 4, 4)
    close(made([a.flip(1), b]), out)  # a set of patches
    differ(made([a, b + random(2, 4, 5, seed=2)])[:, 2:], out[:, 2:])
    close(made([a, b + random(2, 4, 5, seed=2)])[:, :2], out[:, :2])


def test_fusion_refuses():
    with pytest.raises(ConfigError, match="kind is 'mlp' or 'query'"):
        PolyExpertFusion((3,), 4, kind="sum")
    with pytest.raises(ConfigError, match="merge of encoder 0"):
        PolyExpertFusion((3,), 4, merge=(0,))
    made = PolyExpertFusion((3,), 4, merge=(2,))
    with pytest.raises(ShapeError, match="a multiple of 2"):
        made([torch.zeros(1, 5, 3)])
    with pytest.raises(ShapeError, match="2 encoders, and there are 1"):
        made([torch.zeros(1, 4, 3)] * 2)
