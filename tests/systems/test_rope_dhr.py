"""RoPE-DHR and the memory path of CoMemo (arXiv 2506.06279)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import attend, close, differ, golden, logits, problem, random
from torch import nn

import ropewalk as rw
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.rotary.rope_dhr import GatedCrossAttention, ThumbnailIds, media_positions, trains_in_stage

CASES = golden("062")
RELEASED = ThumbnailIds(tile_order="column")


def tiled(columns, rows, n):
    """X columns and Y rows of tiles of n × n tokens."""
    return rw.Tiles(rows, columns, n, n)


def ids(blocks, scheme):
    return scheme.coordinates(rw.layout(blocks).query)[0, :, 0]


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("tile")])
def test_golden_tiles(name):
    p = CASES[name].params
    before = [rw.Text(p["position_bias"])] if p["position_bias"] else []
    got = ids([*before, tiled(p["columns_X"], p["rows_Y"], p["grid"])], RELEASED)
    assert torch.equal(got[p["position_bias"] :], CASES[name].outputs["position_ids"].double())


def test_golden_sequence():
    case = CASES["sequence_ids"]
    p = case.params
    blocks = [rw.Text(p["text_before"])]
    for (x, y), after in zip(p["images_XY"], p["text_after_each"], strict=True):
        blocks += [rw.Text(1), tiled(x, y, p["grid"]), rw.Text(1 + after)]
    where = rw.layout(blocks)
    assert torch.equal(RELEASED.coordinates(where.query)[0, :, 0], case.outputs["position_ids"].double())
    _, media = media_positions(where)
    assert torch.equal(RELEASED.coordinates(media)[0, :, 0], case.outputs["media_position_ids"].double())


# ---- properties of the sheet -----------------------------------------------------------------------------------------

GRIDS = [(1, 1), (2, 1), (1, 3), (3, 2), (5, 3), (4, 4)]


@pytest.mark.parametrize(("x", "y"), GRIDS)
@pytest.mark.parametrize("mapping", ["authors", "centre"])
@pytest.mark.parametrize("order", ["row", "column"])
def test_an_image_moves_the_position_on_by_its_thumbnail(x, y, mapping, order):
    n, b = 4, 3
    got = ids([rw.Text(b), tiled(x, y, n), rw.Text(2)], ThumbnailIds(mapping, order))
    image = got[b:-2]
    assert image.min() >= b
    assert image.max() <= b + n * n - 1
    assert image[-n * n :].tolist() == list(range(b, b + n * n))
    assert got[-2:].tolist() == [b + n * n, b + n * n + 1]
    if x * y == 1:
        assert got.tolist() == list(range(len(got)))


def test_the_largest_id_counts_one_thumbnail_an_image():
    grids, n = [(3, 2), (1, 1), (2, 2)], 3
    blocks = [rw.Text(2), *(b for x, y in grids for b in (tiled(x, y, n), rw.Text(2)))]
    tokens = sum(block.length for block in blocks)
    tiles = sum(x * y if x * y > 1 else 0 for x, y in grids)
    assert ids(blocks, ThumbnailIds()).max() == tokens - 1 - n * n * tiles


@pytest.mark.parametrize(("x", "y"), [g for g in GRIDS if g != (1, 1)])
def test_centres_map_evenly(x, y):
    n = 4
    got = ids([tiled(x, y, n)], ThumbnailIds("centre"))[: x * y * n * n].long()
    assert torch.bincount(got).tolist() == [x * y] * (n * n)
    whole = got.reshape(y, x, n, n).transpose(1, 2).reshape(y * n, x * n)  # the image as it was cut
    rows, columns = whole // n, whole % n
    assert bool(((rows.diff(dim=0) >= 0) & (rows.diff(dim=0) <= 1)).all())
    assert bool(((columns.diff(dim=1) >= 0) & (columns.diff(dim=1) <= 1)).all())
    assert bool((rows.diff(dim=1) == 0).all())


def test_orders_of_tiles():
    for x, y in ((1, 3), (4, 1)):
        assert torch.equal(ids([tiled(x, y, 4)], ThumbnailIds()), ids([tiled(x, y, 4)], RELEASED))
    n = 4
    row, column = (ids([tiled(2, 2, n)], s)[:-16].reshape(2, 2, n, n) for s in (ThumbnailIds(), RELEASED))
    assert torch.equal(row.transpose(0, 1), column)
    differ(row, column)


def test_tiles_need_not_be_square():
    """H × W tokens in a tile: a place is row · W + column of the thumbnail."""
    got = ids([rw.Tiles(1, 2, 2, 3)], ThumbnailIds("centre"))
    assert got[:12].tolist() == [0, 0, 1, 3, 3, 4, 1, 2, 2, 4, 5, 5]


def test_logits():
    made = rw.RoPEDHR(8, base=100.0)
    where = rw.layout([[rw.Text(2), rw.Tiles(1, 2, 2, 3), rw.Text(2)]])
    p = problem(b=1, s=22, positions=where)
    at = made.scheme.coordinates(where.query)[..., 0]
    close(logits(made(p)), logits(rw.RoPE(8, base=100.0, pairing="half")(p.replace(positions=rw.Positions(at)))))


# ---- the memory path -------------------------------------------------------------------------------------------------

BATCH = [[rw.Text(2), rw.Tiles(1, 2, 2, 3), rw.Text(3)], [rw.Text(4), rw.Image(3, 2), rw.Text(2)], [rw.Text(7)]]


def memory(**more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GatedCrossAttention(12, rw.RoPEDHR(8, base=100.0), num_heads=2, head_dim=8, **more).double()


def opened():
    block = memory()
    with torch.no_grad():
        block.attention_gate.fill_(0.7)
        block.feed_forward_gate.fill_(-0.4)
    return block


def prompt():
    where = rw.layout(BATCH)
    x = random(3, where.query.length, 12)
    index, tokens = media_positions(where)
    return x, x.gather(1, index[..., None].expand(-1, -1, 12)), where, tokens


def test_closed_gates_change_nothing_and_learn():
    x, media, where, tokens = prompt()
    block = memory()
    out = block(x, media, where, tokens)
    assert torch.equal(out, x)
    out.square().sum().backward()
    assert block.attention_gate.grad.abs() > 0
    assert block.feed_forward_gate.grad.abs() > 0


def test_memory_by_hand():
    x, media, where, tokens = prompt()
    block = opened()
    out = block(x, media, where, tokens)
    close(out[2, :7], x[2, :7])  # without media
    ids_of_x, ids_of_media = (block.encoding.scheme.coordinates(t)[..., 0] for t in (where.query, tokens))
    for row, m in ((0, 18), (1, 6)):
        norm = lambda t: t / (t.square().mean(-1, keepdim=True) + 1e-5).sqrt()  # noqa: E731
        q = (norm(x[row]) @ block.q.weight.T).reshape(-1, 2, 8).transpose(0, 1)
        k, v = (norm(media[row, :m]) @ block.kv.weight.T).reshape(-1, 2, 2, 8).permute(1, 2, 0, 3)

        def turn(t, at):
            w = torch.tensor([100.0 ** (-i / 4) for i in range(4)], dtype=torch.float64)
            z = torch.complex(t[..., :4], t[..., 4:]) * torch.polar(torch.ones(()).double(), at[:, None] * w)
            return torch.cat([z.real, z.imag], -1)

        weights = (turn(q, ids_of_x[row]) @ turn(k, ids_of_media[row, :m]).mT / math.sqrt(8)).softmax(-1)
        found = (weights @ v).transpose(0, 1).reshape(-1, 16) @ block.out.weight.T
        made = x[row] + math.tanh(0.7) * found
        h = norm(made)
        inner = nn.functional.silu(h @ block.gate.weight.T) * (h @ block.up.weight.T)
        close(out[row], made + math.tanh(-0.4) * (inner @ block.down.weight.T), 1e-10)


def test_memory_decodes_and_drops_what_is_flagged():
    x, media, where, tokens = prompt()
    block = opened()
    whole = block(x, media, where, tokens)
    parts = [block(x[:, a:b], media, where.slice(a, b), tokens) for a, b in ((0, 5), (5, 6), (6, x.shape[1]))]
    close(torch.cat(parts, 1), whole)
    none = block(x, media, where, tokens, sees=torch.zeros(x.shape[:2], dtype=torch.bool))
    close(none, block(x, torch.zeros_like(media), where, tokens))
    with pytest.raises(ShapeError, match="do not fit"):
        block(x, media[:, :-1], where, tokens)
    assert block(x, media[:, :0], where, tokens.slice(0, 0)) is x


@pytest.mark.parametrize(
    ("stage", "kinds"), [(1, {"memory", "gates", "projector"}), (2, {"memory", "projector"}), (3, None)]
)
def test_stages(stage, kinds):
    block, host, projector = memory(), nn.Linear(3, 3), nn.Linear(2, 3)
    trained = {id(p) for p in trains_in_stage(stage, nn.ModuleList([block]), host, projector)}
    gates = {id(block.attention_gate), id(block.feed_forward_gate)}
    sets = {
        "gates": gates,
        "memory": {id(p) for p in block.parameters()} - gates,
        "projector": {id(p) for p in projector.parameters()},
        "host": {id(p) for p in host.parameters()},
    }
    want = set().union(*(s for name, s in sets.items() if kinds is None or name in kinds))
    assert trained == want
    assert {id(p) for m in (block, host, projector) for p in m.parameters() if p.requires_grad} == want


def test_bad_input():
    with pytest.raises(ConfigError, match="mapping is 'authors' or 'centre'"):
        rw.RoPEDHR(8, mapping="center")
    with pytest.raises(ConfigError, match="tile_order is"):
        rw.RoPEDHR(8, tile_order="rows")
    with pytest.raises(ConfigError, match="stages 1, 2 and 3"):
        list(trains_in_stage(4, nn.ModuleList(), nn.Linear(1, 1), nn.Linear(1, 1)))
    with pytest.raises(ConfigError, match="GatedCrossAttention modules"):
        list(trains_in_stage(1, nn.ModuleList([nn.Linear(1, 1)]), nn.Linear(1, 1), nn.Linear(1, 1)))


def test_attend_agrees_between_backends():
    made = rw.RoPEDHR(8)
    p = problem(b=3, s=23, positions=rw.layout(BATCH))
    close(attend(made, p, "sdpa"), attend(made, p))
