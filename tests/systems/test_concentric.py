"""Concentric causal attention (arXiv 2410.15926) and PyPE (arXiv 2501.10967)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from reference import attend, close, golden, logits, problem, triangle

import ropewalk as rw
from ropewalk.backends import dense
from ropewalk.core.errors import CannotCache, ConfigError, NotCausal, PositionError

CCA, PYRAMID = golden("082"), golden("078")


def of(p):
    """Blocks of a golden case."""
    return [rw.Text(p["text_before"]), rw.Image(p["H"], p["W"]), rw.Text(p["text_after"])]


def seen(made, *blocks):
    """Return the ids and who sees whom of one sample."""
    where = rw.layout(list(blocks))
    s = where.query.length
    p = made(problem(b=1, h=1, s=s, positions=where))
    return made.scheme.coordinates(where.query)[0, :, 0], dense.allowed(p).expand(1, 1, s, s)[0, 0]


def rings(h, w):
    return [min(r, c, h - 1 - r, w - 1 - c) for r in range(h) for c in range(w)]


# ---- golden values ---------------------------------------------------------------------------------------------------


def test_golden_concentric():
    for case in CCA.values():
        ids, mask = seen(rw.ConcentricAttention(8), *of(case.params))
        assert torch.equal(ids, case.outputs["position_ids"].double())
        if "visible" in case.outputs:
            assert torch.equal(mask.long(), case.outputs["visible"])
        else:
            assert torch.equal(mask.sum(1), case.outputs["visible_count"])


@pytest.mark.parametrize("name", PYRAMID)
def test_golden_pyramid(name):
    case = PYRAMID[name]
    layers = [int(key.removeprefix("position_ids_layer")) for key in case.outputs if key.startswith("position_ids")]
    assert len(layers) > 1
    made = rw.PyPE(8, case.params["jump"])
    for layer in layers:
        ids, mask = seen(made.layer(layer), *of(case.params))
        assert torch.equal(ids, case.outputs[f"position_ids_layer{layer}"].double())
        want = case.outputs[f"visible_layer{layer}"]
        assert torch.equal(mask.long() if want.ndim == 2 else mask.sum(1), want)


# ---- properties of the sheets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("h", "w"), [(4, 6), (5, 3), (1, 4), (1, 1), (7, 2)])
def test_rings_of_any_grid(h, w):
    before, after = 3, 2
    ids, mask = seen(rw.ConcentricAttention(8), rw.Text(before), rw.Image(h, w), rw.Text(after))
    ring = rings(h, w)
    depth = -(-min(h, w) // 2)
    assert ids.tolist() == [0, 1, 2, *(3 + r for r in ring), 3 + depth, 4 + depth]
    want = triangle(before + h * w + after)
    for q in range(h * w):
        for k in range(h * w):
            want[before + q, before + k] = ring[k] <= ring[q]
    assert torch.equal(mask, want)


def test_rings_are_the_same_when_the_grid_is_turned_or_mirrored():
    ids, mask = seen(rw.ConcentricAttention(8), rw.Text(1), rw.Image(5, 3), rw.Text(1))
    flat = torch.arange(15).reshape(5, 3)
    inner = mask[1:-1, 1:-1]
    for order in (flat.flip(0), flat.flip(1), flat.rot90(2)):
        o = order.flatten()
        assert torch.equal(ids[1:-1][o], ids[1:-1])
        assert torch.equal(inner[o][:, o], inner)
    other, turned = seen(rw.ConcentricAttention(8), rw.Text(1), rw.Image(3, 5), rw.Text(1))
    o = torch.arange(15).reshape(3, 5).rot90().flatten()
    assert torch.equal(other[1:-1][o], ids[1:-1])
    assert torch.equal(turned[1:-1, 1:-1][o][:, o], inner)


def test_nothing_flows_from_inner_to_outer_rings():
    made = rw.ConcentricAttention(8)
    where = rw.layout([[rw.Text(1), rw.Image(4, 5), rw.Text(1)]])
    p = problem(b=1, s=22, positions=where)
    v = p.v.clone().requires_grad_()
    out = attend(made, p.replace(v=v))
    ring = torch.tensor(rings(4, 5))
    out[:, :, 1:21][:, :, ring == 0].sum().backward()
    assert v.grad[:, :, 1:21][:, :, ring == 1].abs().max() == 0
    assert bool((v.grad[:, :, 1:21][:, :, ring == 0].abs() > 0).all())


def test_images_and_frames_see_each_other_in_order_alone():
    made = rw.ConcentricAttention(8)
    ids, mask = seen(made, rw.Image(3, 4), rw.Image(2, 2), rw.Video(2, 1, 3), rw.Text(1))
    assert ids.tolist() == [*rings(3, 4), 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5]
    assert not mask[:12, 12:].any()
    assert mask[12:16, 12:16].all()
    assert not mask[16:19, 19:].any()
    assert mask[16:19, 16:19].all()
    assert mask[16:, :16].all()


@pytest.mark.parametrize(
    ("numbering", "ids", "mask"),
    [
        ("raster", [0, 1, 2, 3, 4, 5, 6, 7], None),
        ("reverse", [0, 6, 5, 4, 3, 2, 1, 7], "flipped"),
        ("same", [0, 1, 1, 1, 1, 1, 1, 7], None),
    ],
)
def test_numberings_to_compare_with(numbering, ids, mask):
    got, visible = seen(rw.ConcentricAttention(8, numbering=numbering), rw.Text(1), rw.Image(2, 3), rw.Text(1))
    want = triangle(8)
    if mask:
        want[1:7, 1:7] = triangle(6).T
    assert got.tolist() == ids
    assert torch.equal(visible, want)


@pytest.mark.parametrize("make", [lambda: rw.ConcentricAttention(8), lambda: rw.PyPE(8, 1).layer(2)])
def test_text_is_rope(make):
    p = problem(b=1, positions=rw.layout([[rw.Text(7)]]))
    close(attend(make(), p), attend(rw.RoPE(8, pairing="half"), p.replace(positions=None)))


def test_the_pyramid_descends():
    made = rw.PyPE(8, 2)
    wide = [rw.Text(2), rw.Image(7, 9), rw.Text(2)]
    flat, _ = seen(rw.ConcentricAttention(8), *wide)
    before = flat
    for layer in range(12):
        ids, mask = seen(made.layer(layer), *wide)
        places = max(4 - layer // 2, 1)
        assert torch.equal(ids[2:-2], flat[2:-2].clamp(max=2 + places - 1))
        assert ids[-2] == 2 + places
        assert bool((ids[-1] - ids <= flat[-1] - flat).all())
        assert bool((ids <= before).all())
        if places == 1:
            assert mask[2:-2, 2:-2].all()
        before = ids
    late, early = seen(rw.PyPE(8, 12).layer(11), *wide), seen(rw.ConcentricAttention(8), *wide)
    assert all(torch.equal(a, b) for a, b in zip(late, early, strict=True))


def test_an_image_is_nearer_to_the_text_than_row_by_row():
    wide = [rw.Text(2), rw.Image(7, 9), rw.Text(3)]
    rows, _ = seen(rw.ConcentricAttention(8, numbering="raster"), *wide)
    flat, _ = seen(rw.ConcentricAttention(8), *wide)
    far = [ids[-1] - ids[2:-3] for ids in (rows, flat, *(seen(rw.PyPE(8, 2).layer(i), *wide)[0] for i in (0, 2, 6)))]
    assert all(later.max() <= before.max() and later.mean() <= before.mean() for before, later in pairwise(far))
    assert far[1].max() < far[0].max() and far[1].mean() < far[0].mean()


def test_layers_are_made_with_their_number():
    made = rw.PyPE(8, 3, 500.0).layer(7)
    assert (made.layer_index, made.jump, made.base, made.scheme.merged) == (7, 3, 500.0, 2)


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: rw.ConcentricAttention(8), lambda: rw.PyPE(8, 1).layer(1)])
def test_decoding_after_whole_images(make):
    made = make()
    where = rw.layout([[rw.Text(2), rw.Image(4, 3), rw.Text(1), rw.Image(2, 5), rw.Text(5)]])
    n = where.query.length
    p = problem(b=1, s=n, positions=where)
    want = attend(made, p)
    for chunks in ([n - 4, 1, 1, 1, 1], [2, 12, 1, 10, 2, 1, 2], [14, 16]):
        cache, out, start = rw.KVCache(made), [], 0
        for size in chunks:
            at = slice(start, start + size)
            part = rw.Attention(p.q[:, :, at], p.k[:, :, at], p.v[:, :, at], where.slice(start, start + size))
            out.append(rw.attend(cache.extend(part), "dense"))
            start += size
        close(torch.cat(out, 2), want)
    # and tokens that the cache counts by itself
    cache = rw.KVCache(made)
    part = rw.Attention(p.q[:, :, : n - 4], p.k[:, :, : n - 4], p.v[:, :, : n - 4], where.slice(0, n - 4))
    out = [rw.attend(cache.extend(part), "dense")]
    for i in range(n - 4, n):
        part = rw.Attention(p.q[:, :, i : i + 1], p.k[:, :, i : i + 1], p.v[:, :, i : i + 1])
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), want)


def test_an_image_in_two_chunks_is_refused():
    made = rw.ConcentricAttention(8)
    where = rw.layout([[rw.Text(2), rw.Image(4, 3), rw.Text(1)]])
    p = problem(b=1, s=15, positions=where)
    cache = rw.KVCache(made)
    cache.extend(rw.Attention(p.q[:, :, :5], p.k[:, :, :5], p.v[:, :, :5], where.slice(0, 5)))
    with pytest.raises(CannotCache, match=r"begins inside a block of row 0 \(at its token 3\)"):
        cache.extend(rw.Attention(p.q[:, :, 5:], p.k[:, :, 5:], p.v[:, :, 5:], where.slice(5)))


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input():
    where = rw.layout([[rw.Text(2), rw.Image(4, 3), rw.Text(1)]])
    made = rw.ConcentricAttention(8)
    with pytest.raises(NotCausal, match="says who sees whom"):
        made(problem(b=1, s=15, positions=where, causal=False))
    with pytest.raises(PositionError, match="text_only"):
        made(problem(s=15))
    with pytest.raises(ConfigError, match="rings"):
        rw.ConcentricAttention(8, numbering="ring")
    with pytest.raises(ConfigError, match="jump"):
        rw.PyPE(8, 0)
    with pytest.raises(ConfigError, match="layer_index is a whole number from 0"):
        rw.PyPE(8, layer_index=-1)


def test_logits_are_ropes_at_the_rings():
    made = rw.ConcentricAttention(8, base=50.0)
    where = rw.layout([[rw.Text(2), rw.Image(4, 3), rw.Text(1)]])
    p = problem(b=1, s=15, positions=where)
    at = made.scheme.coordinates(where.query)[..., 0]
    plain = rw.RoPE(8, base=50.0, pairing="half")(p.replace(positions=rw.Positions(at)))
    close(logits(made(p)), logits(plain))
