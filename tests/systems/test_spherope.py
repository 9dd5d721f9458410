"""SpheRoPE: panoramas whose columns wrap around (arXiv 2606.32033)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.lab.panorama import (
    circular_crop,
    circular_pad,
    panorama_guidance,
    phase_remaster,
    seam_score,
)
from ropewalk.rotary.spherope import (
    Flux2Panorama,
    FluxPanorama,
    LTXPanorama,
    sphere,
    spherical_axial_rope,
    substitute,
)

CASES = golden("092")
FLUX, FLUX2, LTX = FluxPanorama((16, 56, 56)), Flux2Panorama((32, 32, 32, 32)), LTXPanorama(1, 30)
HOSTS = {"flux1": FLUX, "flux2": FLUX2, "ltx": LTX}
TABLE = 1e-6


def cells(rows, columns, extra=0):
    """Row, column, rows and columns of the cells of a grid, with further columns beyond its seam."""
    r, c = torch.meshgrid(
        torch.arange(rows, dtype=torch.float64), torch.arange(columns + extra, dtype=torch.float64), indexing="ij"
    )
    return r[None], c[None], torch.full_like(r, rows)[None], torch.full_like(c, columns)[None]


def equal_turns(a, b, tolerance=1e-9):
    close(a.cos(), b.cos(), tolerance)
    assert (a.sin() - b.sin()).abs().max() < tolerance


def angles(scheme, *blocks):
    return scheme.coordinates(rw.layout(list(blocks)).key)[0]


# ---- golden values ---------------------------------------------------------------------------------------------------


def test_golden_flux1():
    case = CASES["flux1_H3_W64"]
    p, at = case.params, case.outputs["tokens"]
    cos, sin = spherical_axial_rope(
        p["H_tokens"], p["W_tokens"], widths=p["axes"], base=p["base"], max_error=p["max_error"]
    )
    torch.testing.assert_close(cos[at, 36:].double(), case.outputs["cos_width_half"], rtol=0, atol=TABLE)
    torch.testing.assert_close(sin[at, 36:].double(), case.outputs["sin_width_half"], rtol=0, atol=TABLE)


def test_golden_flux2():
    case = CASES["flux2_H3_W32_scale2"]
    p, at = case.params, case.outputs["tokens"]
    more = {"widths": p["axes_dims"], "base": p["theta"], "max_error": p["max_error"], "scale": p["scale"]}
    cos, sin = spherical_axial_rope(p["H_tokens"], p["W_tokens"], "flux2", sum(p["axes_dims"]), **more)
    torch.testing.assert_close(cos[at].double(), case.outputs["cos"], rtol=0, atol=TABLE)
    torch.testing.assert_close(sin[at].double(), case.outputs["sin"], rtol=0, atol=TABLE)


def test_golden_ltx():
    case = CASES["ltx_H3_W8_n10"]
    got = LTX.width(*cells(3, 8))[0].flatten(0, 1)
    torch.testing.assert_close(got, case.outputs["width_angles"], rtol=1e-6, atol=TABLE)
    assert torch.equal(angles(LTX, rw.Image(3, 8))[:, 2::3], got)  # time, height and width in turn


def test_golden_noise():
    case = CASES["phase_remaster_1x2x6x12_r2"]
    i = torch.arange(144, dtype=torch.float32)
    x = ((0.7 * i).sin() + (1.3 * i).cos()).reshape(case.params["shape"])
    close(phase_remaster(x, case.params["radius"]).flatten(), case.outputs["out_flat"], 1e-5)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("columns", [6, 24, 64])
def test_columns_wrap_around(host, columns):
    got = HOSTS[host].width(*cells(3, columns, extra=columns))
    equal_turns(got[:, :, columns:], got[:, :, :columns])


@pytest.mark.parametrize("scheme", [FLUX, FLUX2])
def test_fast_pairs_do_not_know_where_a_panorama_begins(scheme):
    got = scheme.width(*cells(2, 64))[0, 0, :, : scheme.split(64)]
    assert got.shape[-1] > 1
    kernel = (got[:, None] - got).cos()
    close(kernel.roll((5, 5), (0, 1)), kernel, 1e-9)


def test_chords_do_not_know_where_a_panorama_begins():
    x, y = (t[0] for t in FLUX.chart(*cells(5, 24)))
    chord = (x[:, :, None] - x[:, None]).square() + (y[:, :, None] - y[:, None]).square()
    close(chord.roll((7, 7), (1, 2)), chord, 1e-9)
    alone = (x[:, :, None] - x[:, None]).square()
    differ(alone.roll((7, 7), (1, 2)), alone)


@pytest.mark.parametrize("scheme", [FLUX, FLUX2])
def test_poles_are_points(scheme):
    got, s = scheme.width(*cells(5, 64))[0], scheme.split(64)
    for pole in (0, 4):
        assert (got[pole, :, s:] - got[pole, :1, s:]).abs().max() < 1e-12
        differ(got[pole, :, :s], got[pole, :1, :s])  # fast pairs are not spherical
    differ(got[2, :, s:], got[2, :1, s:])


def test_height_and_time_are_as_ever():
    got = angles(FLUX, rw.Image(4, 6)).reshape(4, 6, -1)
    stock = rw.AxialRoPE(128, 3, widths=(16, 56, 56))
    grid = rw.grid_positions(1, 4, 6).key.coordinates() + torch.tensor([1.0, 0, 0])
    want = stock.angles(grid)[0].reshape(4, 6, -1)
    assert torch.equal(got[..., :36], want[..., :36])
    zero = FluxPanorama((16, 56, 56), time=0.0)
    assert not angles(zero, rw.Image(4, 6))[:, :8].any()
    second = angles(FLUX2, rw.Image(4, 6))
    assert not second[:, :16].any()
    assert not second[:, 48:].any()


def test_how_many_pairs_wrap():
    assert [FluxPanorama((16, 56, 56)).split(n) for n in (16, 24, 32, 64, 128)] == [0, 1, 1, 4, 4]
    assert [FLUX2.split(n) for n in (16, 24, 32, 64, 128)] == [0, 1, 3, 3, 6]


def test_bounds_of_the_error():
    w = 10_000.0 ** (-torch.arange(28, dtype=torch.float64) / 28)
    assert FluxPanorama((16, 56, 56), max_error=0.0).split(64) == 0
    assert FluxPanorama((16, 56, 56), max_error=1.0).split(64) == int((64 * w >= 2 * math.pi).sum())


def test_a_scale_of_one_is_plain_rounding():
    one = Flux2Panorama((8, 8, 56, 56), base=10_000.0, scale=1.0)
    flat, s = FLUX.width(*cells(2, 64)), FLUX.split(64)
    close(one.width(*cells(2, 64))[..., :s], flat[..., :s])
    slower = Flux2Panorama((8, 8, 56, 56), base=10_000.0, scale=2.0).width(*cells(2, 64))[0, 0, 1, :s]
    fast = flat[0, 0, 1, :s]
    assert slower[0] == fast[0]
    assert slower[-1] < fast[-1]


def test_a_picture_of_one_row_is_a_pole():
    x, y = sphere(*cells(1, 4))
    assert x.abs().max() < 1e-15
    assert y.abs().max() < 1e-15


def test_guidance():
    u, c, g = (random(2, 3, seed=i) for i in range(3))
    close(panorama_guidance(u, c, g, 3.5, 0.0), u + 3.5 * (c - u))
    close(panorama_guidance(u, c, g, 1.0, 0.0), c)
    close(panorama_guidance(u, c, g, 4.0, 6.0), c + 3 * (c - u) + 6 * (g - c))
    assert panorama_guidance(u, c, g, 4.0, step=1) is c
    with pytest.raises(ShapeError, match="of one picture"):
        panorama_guidance(u, c, g[:1], 4.0)


def test_noise():
    x = random(2, 3, 6, 10)
    close(phase_remaster(x, -1.0), x)
    still = x[..., :1].expand(-1, -1, -1, 10)
    close(phase_remaster(still, 12.0), still)
    made = phase_remaster(x, 3.0)
    differ(made, x)
    assert made.dtype == x.dtype
    with pytest.raises(ShapeError, match=r"\(B, C, H, W\)"):
        phase_remaster(x[0])


def test_padding_and_cropping():
    x = random(1, 2, 3, 8)
    wide = circular_pad(x, 3)
    assert torch.equal(wide[..., :3], x[..., -3:])
    assert torch.equal(circular_crop(wide, 3), x)
    assert torch.equal(circular_crop(circular_pad(x, 0), 0), x)
    assert torch.equal(circular_crop(wide.repeat_interleave(4, -1), 3, 4), x.repeat_interleave(4, -1))
    with pytest.raises(ConfigError, match="0 to 8"):
        circular_pad(x, 9)
    with pytest.raises(ConfigError, match="leave nothing"):
        circular_crop(x, 4)


# ---- what must work --------------------------------------------------------------------------------------------------


def test_the_seam_in_an_attention_layer():
    """The first column is as near to the last as to the second; for stock RoPE it is farthest."""
    made, stock = rw.SpheRoPE(128), rw.AxialRoPE(128, 3, widths=(16, 56, 56))
    where = rw.layout([rw.Image(3, 24)])
    content = random(1, 1, 1, 128).expand(1, 1, 72, 128)
    p = rw.Attention(content, content, content, where, causal=False)
    got = logits(made(p))[0, 0, 24, 24:48]  # from the first cell of the middle row to its row
    flat = logits(stock(p.replace(positions=rw.grid_positions(1, 3, 24))))[0, 0, 24, 24:48]
    close(got[1], got[-1], 1e-9)
    close(got[1:].flip(0), got[1:], 1e-9)
    differ(flat[1], flat[-1], 0.1)


def test_the_seam_in_a_picture():
    x = torch.arange(12) * (2 * math.pi / 12)
    waves = torch.stack([x.sin().roll(i) for i in range(12)])
    assert seam_score(waves) == pytest.approx(1.0)
    assert seam_score(x) > 5
    with pytest.raises(ShapeError, match="3 or more"):
        seam_score(x[:2])


def test_text_and_reference_images_are_as_in_the_host():
    blocks = [rw.Text(3), rw.Image(2, 6), rw.Image(2, 6, reference=2)]
    got = angles(FLUX, *blocks)
    assert not got[:3].any()
    grid = rw.grid_positions(1, 2, 6).key.coordinates()
    flat = rw.AxialRoPE(128, 3, widths=(16, 56, 56)).angles(grid + torch.tensor([2.0, 0, 0]))[0]
    close(got[15:], flat)
    differ(got[3:15, 36:], flat[:, 36:])
    second = angles(FLUX2, rw.Text(2), rw.Image(2, 6), rw.Text(1))
    assert not second[:, :48][[0, 1, 14]].any()
    w = 2000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    close(second[[0, 1, 14], 48:], torch.arange(3)[:, None] * w)  # pictures are not counted
    close(angles(FLUX2, rw.Image(2, 6, reference=2))[0, :16], 20 * w)


def test_frames():
    film = rw.Video(2, 2, 6, seconds=0.5)
    got = angles(FLUX, film).reshape(2, 12, -1)
    assert torch.equal(got[0, :, 8:], got[1, :, 8:])
    assert torch.equal(got[:, 0, 0], torch.tensor([1.0, 2.0]).double())
    ltx = angles(LTX, film).reshape(2, 12, 10, 3)
    assert torch.equal(ltx[0, ..., 1:], ltx[1, ..., 1:])
    w = math.pi / 2 * 10_000.0 ** (torch.arange(10, dtype=torch.float64) / 9)
    close(ltx[:, 0, :, 0], (2 * torch.tensor([0.0, 0.5]).double() / 20 - 1)[:, None] * w)


def test_all_heads_of_ltx_together():
    made = rw.SpheRoPELTX(16, 4)  # 64 channels: 10 of each axis, and two pairs that do not turn
    p = problem(s=12, d=16, positions=rw.layout([rw.Image(2, 6)]), causal=False)
    got = made(p)
    assert torch.equal(got.q[:, 0, :, :4], p.q[:, 0, :, :4])
    whole = angles(LTXPanorama(1, 32), rw.Image(2, 6))
    cos, _ = spherical_axial_rope(2, 6, "ltx", 16, num_heads=4)
    close(cos.transpose(0, 1).flatten(1), whole.cos(), TABLE)
    flat = p.q.transpose(1, 2).flatten(2)  # as the host sees it before it is cut into heads
    pairs = torch.view_as_complex(flat.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(whole), whole)
    close(got.q.transpose(1, 2).flatten(2), torch.view_as_real(pairs).flatten(-2))


def test_rows_of_a_table_are_replaced():
    stock = (torch.ones(1, 20, 128), torch.zeros(1, 20, 128))
    made = spherical_axial_rope(2, 6, repeat=True)
    cos, sin = substitute(stock, made, 5)
    assert torch.equal(cos[0, 5:17], made[0])
    assert torch.equal(sin[0, 5:17], made[1])
    for at in (slice(0, 5), slice(17, 20)):
        assert torch.equal(cos[:, at], stock[0][:, at])
    assert torch.equal(made[0][:, ::2], spherical_axial_rope(2, 6)[0])
    for start in (9, -1):
        with pytest.raises(ShapeError, match="do not fit"):
            substitute(stock, made, start)
    with pytest.raises(ShapeError, match="repeat=True"):
        substitute(stock, spherical_axial_rope(2, 6), 5)


@pytest.mark.parametrize("made", [rw.SpheRoPE(16), rw.SpheRoPEFlux2(16), rw.SpheRoPELTX(16, 4)])
def test_decoding_is_the_full_pass(made):
    where = rw.layout([[rw.Text(2), rw.Image(2, 6), rw.Text(1)]])
    p = problem(b=1, s=15, d=16, positions=where)
    cache = rw.KVCache(made)
    out = [
        rw.attend(
            cache[0].extend(rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], cache.step(where.slice(a, b))))
        )
        for a, b in ((0, 5), (5, 6), (6, 15))
    ]
    close(torch.cat(out, 2), attend(made, p), 1e-10)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rw.SpheRoPE(16, (4, 6, 8)), "together"),
        (lambda: rw.SpheRoPE(4), "at least 6"),
        (lambda: rw.SpheRoPE(16, max_error=-0.1), "max_error"),
        (lambda: rw.SpheRoPE(16, time_position=math.inf), "time_position"),
        (lambda: rw.SpheRoPE(16, base=0.0), "base"),
        (lambda: rw.SpheRoPEFlux2(12), "multiple of 8"),
        (lambda: rw.SpheRoPEFlux2(16, scale=0.5), "scale is"),
        (lambda: rw.SpheRoPELTX(16), "give num_heads"),
        (lambda: rw.SpheRoPELTX(10, 1), "12 or more"),
        (lambda: rw.SpheRoPELTX(16, 4, extent=0.0), "extent is a positive number"),
        (lambda: spherical_axial_rope(2, 6, "flux3"), "flux1, flux2, ltx"),
        (lambda: spherical_axial_rope(0, 6), "at least 1"),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_plain_positions():
    with pytest.raises(PositionError, match=r"turns by \(t0, t1, …, w6\).*make them with"):
        rw.SpheRoPE(32)(problem(d=32))


@pytest.mark.parametrize("row", [-1.0, 4.0])
def test_rows_beyond_a_pole(row):
    cell = (torch.tensor([n]) for n in (row, 0.0, 4.0, 8.0))
    with pytest.raises(PositionError, match="latitude out of range"):
        sphere(*cell)
    scheme = rw.SpheRoPE(32).scheme
    with pytest.raises(PositionError, match="beyond"):
        scheme.width(*(torch.tensor([n]).double() for n in (row, 0.0, 4.0, 8.0)))
