"""RoPE++ (arXiv 2512.07525)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import attend, close, decoded, differ, expanded, golden, logits, problem, random

import ropewalk as rw
from ropewalk.frequencies import linear, ntk, yarn
from ropewalk.rotary.rope_pp import (
    RoPEPlusPlus,
    RoPEPlusPlusAttention,
    attention_distance,
    characteristic_curves,
    disturbed,
    imaginary_heads,
    widen_output,
)

CASE = golden("020")["ec_or_eh_core_gqa"]
AT = torch.tensor([0, 3, 4, 10, 11, 40, 2])
ABLATIONS = {"imagh": [0, 0, 1, 1], "imagx": [0, 1, 0, 1], "imago": [1, 1, 1, 1]}


def waves(name, step, shift, *shape):
    n = torch.arange(math.prod(shape), dtype=torch.float64)
    return getattr(torch, name)(step * n + shift).reshape(shape)


def placed(p, at=AT):
    return p.replace(positions=rw.Positions(at))


def by_formula(p, at, base=10_000.0, pairing="half"):
    """The real and the imaginary logits of each query head, scaled."""
    d = p.q.shape[-1]
    q, k = (
        (x.unflatten(-1, (2, d // 2)) if pairing == "half" else x.unflatten(-1, (d // 2, 2)).transpose(-1, -2))
        for x in (p.q, p.k.repeat_interleave(p.num_heads // p.num_kv_heads, 1))
    )
    (q1, q2), (k1, k2) = (x.unbind(-2) for x in (q, k))
    dot = torch.einsum("bhtj,bhsj->bhtsj", q1, k1) + torch.einsum("bhtj,bhsj->bhtsj", q2, k2)
    cross = torch.einsum("bhtj,bhsj->bhtsj", q1, k2) - torch.einsum("bhtj,bhsj->bhtsj", q2, k1)
    w = torch.tensor([base ** (-2 * j / d) for j in range(d // 2)], dtype=torch.float64)
    angle = (at[:, None] - at[None, :]).double()[..., None] * w
    real = (dot * angle.cos() + cross * angle.sin()).sum(-1)
    imaginary = (dot * angle.sin() - cross * angle.cos()).sum(-1)
    return real / d**0.5, imaginary / d**0.5


# ---- golden values ---------------------------------------------------------------------------------------------------


def test_golden():
    heads, kv, n, d = (CASE.params[name] for name in ("q_proj_heads", "kv_heads", "T", "D"))
    q, k, v = (
        waves("sin", 0.1, 0, 1, heads, n, d),
        waves("sin", 0.07, 0.5, 1, kv, n, d),
        waves("sin", 0.05, 1, 1, kv, n, d),
    )
    at = rw.Positions(CASE.params["positions"])
    for layout in ("ec", "eh"):
        encoding = RoPEPlusPlus(d, float(CASE.params["base"]), layout=layout)
        q_rot, k_rot = encoding.rotate(q, k, at)
        close(q_rot, CASE.outputs["q_rot"], 1e-8)
        close(k_rot, CASE.outputs["k_rot"], 1e-8)
        p = rw.Attention(q, k, v, at)
        close(logits(encoding(p)), CASE.outputs["logits"], 1e-8)
        for backend in ("dense", "sdpa"):
            close(attend(encoding, p, backend), CASE.outputs["attn_out"], 1e-8)


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("kv", [4, 2, 1])
def test_logits_are_both_parts_of_the_product(pairing, kv):
    p, encoding = placed(problem(kv=kv)), RoPEPlusPlus(8, pairing=pairing)
    real, imaginary = by_formula(p, AT, pairing=pairing)
    got = logits(encoding(p))
    assert got.shape == (2, 8, 7, 7)
    close(got[:, 0::2], real)
    close(got[:, 1::2], imaginary)
    shifted = logits(encoding(placed(p, AT + 977)))
    close(shifted, got, 1e-11)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_real_heads_are_rope(pairing):
    p = placed(problem(kv=2))
    q, k = RoPEPlusPlus(8, pairing=pairing).rotate(p.q, p.k, AT)
    want_q, want_k = rw.RoPE(8, pairing=pairing).rotate(p.q, p.k, AT)
    assert torch.equal(q[:, 0::2], want_q)
    assert torch.equal(k, want_k)
    assert torch.equal(attend(RoPEPlusPlus(8, pairing=pairing), p)[:, 0::2], attend(rw.RoPE(8, pairing=pairing), p))


def test_imaginary_queries_are_turned_by_another_quarter():
    p = placed(problem())
    q = RoPEPlusPlus(8).rotate(p.q, p.k, AT)[0][:, 1::2]
    w = rw.RoPE(8).inv_freq
    angle = AT.double()[:, None] * w - math.pi / 2
    a, b = p.q.chunk(2, -1)
    close(q, torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1))
    close(q.norm(dim=-1), p.q.norm(dim=-1), 1e-14)


def test_imaginary_logits_of_equal_content():
    p = placed(problem())
    one = p.q[:, :, :1].expand_as(p.q)
    same = p.replace(q=one, k=one)
    imaginary = logits(RoPEPlusPlus(8)(same))[:, 1::2]
    close(imaginary, -imaginary.transpose(-1, -2))
    assert imaginary.diagonal(dim1=-2, dim2=-1).abs().max() < 1e-14
    cross = by_formula(p, AT * 0)[1]
    close(logits(RoPEPlusPlus(8)(p))[:, 1::2].diagonal(dim1=-2, dim2=-1), cross.diagonal(dim1=-2, dim2=-1))


def test_of_one_pair_the_squares_add_up_to_a_constant():
    p = problem(d=2, scale=1.0, s=1)
    q, k = p.q.expand(2, 4, 7, 2), p.k.expand(2, 4, 7, 2)
    both = logits(RoPEPlusPlus(2)(placed(rw.Attention(q, k, k, scale=1.0))))
    size = both[:, 0::2].square() + both[:, 1::2].square()
    close(size, size[..., :1, :1].expand_as(size))


def test_far_out_the_quarter_turn_loses_nothing():
    p = problem(kv=2)
    got = logits(RoPEPlusPlus(8)(placed(p, AT + 10_000_000)))
    close(got, logits(RoPEPlusPlus(8)(placed(p))), 1e-8)


# ---- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(ABLATIONS))
@pytest.mark.parametrize("kv", [4, 2])
def test_ablations_keep_the_number_of_heads(layout, kv):
    p, encoding = placed(problem(kv=kv)), RoPEPlusPlus(8, layout=layout)
    kinds = torch.tensor(ABLATIONS[layout], dtype=torch.bool)
    assert torch.equal(imaginary_heads(4, layout), kinds)
    assert encoding.output_heads(4) == 4
    real, imaginary = by_formula(p, AT)
    close(logits(encoding(p)), torch.where(kinds[:, None, None], imaginary, real))
    close(decoded(encoding, problem(kv=kv), 3), attend(encoding, problem(kv=kv)))


def test_heads_of_the_layer_are_counted_where_they_were_dealt_out():
    p = placed(problem())
    for layout in ABLATIONS:
        after = rw.Sequential(rw.PerHead([rw.NoPE(), rw.NoPE()]), RoPEPlusPlus(8, layout=layout))
        close(attend(after, p), attend(RoPEPlusPlus(8, layout=layout), p), 1e-15)


def test_which_heads_are_imaginary():
    assert imaginary_heads(2).tolist() == [False, True, False, True]
    assert RoPEPlusPlus(8).output_heads(3) == 6
    assert rw.Sequential(rw.ALiBi(3), RoPEPlusPlus(8)).output_heads(3) == 6
    assert rw.Partial(RoPEPlusPlus(4), 4).output_heads(3) == 6
    assert rw.PerHead([RoPEPlusPlus(8), rw.RoPE(8)]).output_heads(4) == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoPEPlusPlus(8, layout="imag"),
        lambda: imaginary_heads(4, "both"),
        lambda: RoPEPlusPlusAttention(24, 3, layout="eh"),
        lambda: RoPEPlusPlusAttention(24, 4, 1, layout="eh"),
        lambda: RoPEPlusPlusAttention(24, 3, layout="imagh"),
        lambda: RoPEPlusPlusAttention(24, 4, 3),
        lambda: RoPEPlusPlusAttention(25, 4),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(rw.ConfigError):
        make()


def test_half_of_an_odd_number_of_heads_is_refused():
    with pytest.raises(rw.ShapeError, match="odd"):
        RoPEPlusPlus(8, layout="imagh")(problem(h=3))


# ---- twice the heads, with everything that is per head -----------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (4, 2)])
def test_decoding_is_the_full_pass(sizes):
    p = problem(kv=2, s=9)
    close(decoded(RoPEPlusPlus(8), p, *sizes), attend(RoPEPlusPlus(8), p))


def test_masks_and_sinks_of_a_head_are_those_of_both():
    mask, sinks = torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.7, random(4, seed=8)
    p = problem(kv=2, mask=mask, sinks=sinks)
    out = attend(RoPEPlusPlus(8), p)
    close(out[:, 0::2], attend(rw.RoPE(8, pairing="half"), p), 1e-15)
    close(attend(RoPEPlusPlus(8), p, "sdpa"), out)
    imaginary = attend(RoPEPlusPlus(8, layout="imago"), p)
    close(out[:, 1::2], imaginary, 1e-15)


def test_masks_of_a_head_in_a_cache():
    mask = torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.7
    p = problem(kv=2)
    for encoding in (RoPEPlusPlus(8), rw.PerHead([RoPEPlusPlus(8), rw.RoPE(8)])):
        want = attend(encoding, p.replace(mask=mask))
        cache, outs = rw.KVCache(encoding), []
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            part = rw.Attention(*(t[:, :, start:stop] for t in (p.q, p.k, p.v)), mask=mask[:, :, start:stop, :stop])
            outs.append(rw.attend(cache.extend(part), backend="dense"))
        close(torch.cat(outs, 2), want)


def test_mixed_with_others_head_by_head():
    p = placed(problem())
    encoding = rw.Sequential(rw.PerHead([RoPEPlusPlus(8), rw.RoPE(8)]), rw.ALiBi(6))
    got = attend(encoding, p)
    assert got.shape[1] == encoding.output_heads(4) == 6
    first = attend(rw.Sequential(RoPEPlusPlus(8), rw.ALiBi(slopes=_slopes(6)[:4])), _heads(p, 0, 2))
    second = attend(rw.Sequential(rw.RoPE(8), rw.ALiBi(slopes=_slopes(6)[4:])), _heads(p, 2, 4))
    close(got, torch.cat([first, second], 1))
    close(decoded(encoding, problem(), 3), attend(encoding, problem()))


def _slopes(n):
    return rw.ALiBi(n).slope.tolist()


def _heads(p, start, stop):
    return rw.Attention(*(t[:, start:stop] for t in (p.q, p.k, p.v)), p.positions)


def test_partial_copies_the_channels_left_over():
    p = placed(problem(d=8))
    q, k = rw.Partial(RoPEPlusPlus(4), 4).rotate(p.q, p.k, AT)
    close(q[:, 0::2, :, 4:], p.q[..., 4:], 1e-15)
    close(q[:, 1::2, :, 4:], p.q[..., 4:], 1e-15)
    turned, _ = RoPEPlusPlus(4).rotate(p.q[..., :4], p.k[..., :4], AT)
    close(q[..., :4], turned, 1e-15)
    close(k[..., 4:], p.k[..., 4:], 1e-15)


def test_of_several_scores_each_has_an_imaginary_part():
    p = problem()
    string = rw.STRINGShifted(8, 3, 1)
    both = attend(rw.Sequential(string, RoPEPlusPlus(spectrum=rw.Spectrum((0.0,) * 4))), p)
    close(both[:, 0::2], attend(string, p))
    with_cache = rw.Sequential(string, RoPEPlusPlus(spectrum=rw.Spectrum((0.0,) * 4)))
    close(decoded(with_cache, p, 4), both)


# ---- layers ----------------------------------------------------------------------------------------------------------


def sizes(layer):
    return [
        sum(w.numel() for w in (layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight)),
        layer.o_proj.weight,
    ]


def test_sizes_of_the_layouts():
    layers = {name: RoPEPlusPlusAttention(32, 4, 2, layout=name) for name in ("ec", "eh", *ABLATIONS)}
    plain = sizes(layers["imago"])[0]
    assert sizes(layers["ec"])[0] == plain == 2 * sizes(layers["eh"])[0]
    assert layers["ec"].o_proj.in_features == 64
    assert layers["eh"].o_proj.in_features == layers["imagx"].o_proj.in_features == 32
    kept = {}
    for name, layer in layers.items():
        cache = rw.KVCache(layer.encoding)
        with torch.no_grad():
            layer(torch.randn(1, 5, 32), encode=cache.extend)
        kept[name] = sum(t.numel() for s in cache[0].stored for t in (s.k, s.v))
        assert not cache[0].stored[0].features
    assert kept["ec"] == kept["imagh"] == 2 * kept["eh"]


@pytest.mark.parametrize("layout", ["ec", "eh", *ABLATIONS])
def test_layers_decode(layout):
    torch.manual_seed(0)
    layer, x = RoPEPlusPlusAttention(32, 4, 2, layout=layout).double(), random(2, 7, 32)
    want = layer(x)
    assert want.shape == x.shape
    cache = rw.KVCache(layer.encoding)
    got = [layer(x[:, i : i + 1], encode=cache.extend) for i in range(7)]
    close(torch.cat(got, 1), want)


def test_zeros_for_the_imaginary_heads_are_the_rope_model():
    torch.manual_seed(0)
    layer, x = RoPEPlusPlusAttention(32, 4, 2, layout="ec").double(), random(2, 7, 32)
    weight = random(32, 32, seed=4)
    with torch.no_grad():
        layer.o_proj.weight.copy_(widen_output(weight, 4))
    q, k, v = (w(x).unflatten(-1, (-1, 8)).transpose(1, 2) for w in (layer.q_proj, layer.k_proj, layer.v_proj))
    rope = attend(rw.RoPE(8, pairing="half"), rw.Attention(q, k, v))
    close(layer(x), rope.transpose(1, 2).flatten(2) @ weight.T)
    with pytest.raises(rw.ShapeError):
        widen_output(weight, 5)


@pytest.mark.parametrize("schedule", ["linear", "ntk", "yarn"])
def test_schedules_go_underneath(schedule):
    ladder = rw.geometric(64)
    spectrum = {
        "linear": lambda: linear(ladder, 8),
        "ntk": lambda: ntk(ladder, 8),
        "yarn": lambda: yarn(ladder, 32, 4096, ramp="paper"),
    }[schedule]()
    p = placed(problem(d=64))
    q, k = RoPEPlusPlus(spectrum=spectrum).rotate(p.q, p.k, AT)
    want_q, want_k = rw.RoPE(spectrum=spectrum, pairing="half").rotate(p.q, p.k, AT)
    close(k, want_k, 1e-15)
    close(q[:, 0::2], want_q, 1e-15)
    close(q[:, 1::2].norm(dim=-1), want_q.norm(dim=-1), 1e-14)


def test_the_published_yarn_is_the_ramp_of_the_paper():
    """Released: 4096 tokens, γ over the turns of each plane, frequencies times γ + (1 − γ)/f."""
    w, f = rw.geometric(64).tensor(), 32
    gamma = ((4096 * w / (2 * math.pi) - 1) / 31).clamp(0, 1)
    got = yarn(rw.geometric(64), f, 4096, ramp="paper")
    close(got.tensor(), w * (gamma + (1 - gamma) / f))
    assert got.attention_factor == pytest.approx(0.1 * math.log(f) + 1)


# ---- analysis --------------------------------------------------------------------------------------------------------


def test_characteristic_curves_are_mean_logits():
    far = torch.tensor([0, 1, 5, 30])
    q = torch.ones(1, 1, 1, 8, dtype=torch.float64)
    p = rw.Attention(
        q, q.expand(1, 1, 4, 8), q.expand(1, 1, 4, 8), rw.Positions(q=[0], k=-far), causal=False, scale=1 / 8
    )
    got = logits(RoPEPlusPlus(8)(p))[0, :, 0]
    for curve, want in zip(characteristic_curves(rw.geometric(8), far), got, strict=True):
        close(curve, want)
    real, imaginary = characteristic_curves(rw.geometric(64), torch.tensor([0, 1, 20, 500]))
    assert real[0] == 1
    assert imaginary[0] == 0
    assert (real.diff() < 0).all()
    assert imaginary[0] < imaginary[1] < imaginary[2]  # rises first
    near, far = (
        [c.mean() for c in characteristic_curves(rw.geometric(64), torch.arange(*span))]
        for span in ((5, 50), (500, 5000))
    )
    assert far[1] / near[1] > 2 * far[0] / near[0]  # and falls more slowly


@pytest.mark.parametrize("imaginary", [True, False])
def test_noise_on_one_kind_of_heads(imaginary):
    p = RoPEPlusPlus(8)(placed(problem()))
    which = imaginary_heads(4) if imaginary else ~imaginary_heads(4)
    noisy = disturbed(p, 0.5, which, torch.Generator().manual_seed(1))
    again = disturbed(p, 0.5, which, torch.Generator().manual_seed(1))
    assert torch.equal(noisy.q, again.q)
    assert torch.equal(noisy.q[:, ~which], p.q[:, ~which])
    differ(noisy.q[:, which], p.q[:, which])
    assert abs((noisy.q - p.q)[:, which].std() - 0.5) < 0.1
    close(rw.attend(noisy)[:, ~which], rw.attend(p)[:, ~which], 1e-15)
    with pytest.raises(rw.ShapeError):
        disturbed(p, 0.5, which[:4])
    with pytest.raises(rw.ConfigError):
        disturbed(p, float("nan"), which)


def test_attention_distance():
    weights = torch.zeros(1, 2, 3, 3)
    weights[0, 0] = torch.eye(3)
    weights[0, 1] = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 0]])  # the last sees nothing
    close(attention_distance(weights), torch.tensor([0.0, 0.25]), 1e-7)
    close(attention_distance(weights, rw.Positions([0, 10, 20])), torch.tensor([0.0, 2.5]), 1e-7)
    last = weights[:, :, 1:2]  # of one query, the newest, which stands at 2
    close(attention_distance(last), torch.tensor([1.0, 1.5]), 1e-7)


def test_grouped_heads_are_expanded_ones():
    p = placed(problem(h=6, kv=2))
    close(attend(RoPEPlusPlus(8), p), attend(RoPEPlusPlus(8), placed(expanded(p))))
