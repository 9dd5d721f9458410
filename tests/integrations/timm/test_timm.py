"""Encodings in tiny random vision transformers of timm."""

from __future__ import annotations

import copy
import io
import pickle
import sys

import pytest
import torch
from timm.layers import DiffAttention
from timm.models.eva import Eva
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer

import ropewalk as rw
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, UnknownNameError
from ropewalk.integrations import timm as rt

SIZE = (8, 12)  # 4 x 6 patches: no square
D, HEADS, DEPTH = 24, 2, 2
NAMED = ("axial_rope", "mixed_rope", "gridpe", "harope", "pape", "rope", "alibi", "sinusoidal", "learned")
SCHEMES = ("position_interpolated_rope", "spherope", "mrope")


def disturbed(model):
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g))
    return model.eval()


def made(kind, **more):
    sizes = {"img_size": SIZE, "patch_size": 2, "embed_dim": D * HEADS, "depth": DEPTH, "num_heads": HEADS}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return disturbed(kind(**{**sizes, "num_classes": 3, **more}))


def vit(**more):
    return made(VisionTransformer, **more)


def eva(**more):
    return made(Eva, **{"use_rot_pos_emb": True, "num_reg_tokens": 1, "rope_temperature": 100.0, **more})


MODELS = {
    "vit": vit,
    "vit with registers": lambda: vit(reg_tokens=3, qk_norm=True),
    "vit without class": lambda: vit(class_token=False, global_pool="avg"),
    "vit of any size": lambda: vit(dynamic_img_size=True),
    "eva": eva,
    "eva, apart": lambda: eva(qkv_fused=False, scale_attn_inner=True),
    "eva, grouped": lambda: eva(qkv_fused=False, attn_type="rope", num_kv_heads=1),
    "eva, mixed": lambda: eva(rope_type="mixed", use_abs_pos_emb=False),
}


def images(rows=4, columns=6, batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, 2 * rows, 2 * columns, generator=g)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# ---- the same as timm where it has the encoding ----------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"attn_type": "rope"}, {"qkv_fused": False}, {"rope_rotate_half": True}])
def test_axial_rope_is_the_rotation_of_eva(more):
    model = eva(use_abs_pos_emb=False, **more)
    want = model(images())
    encoding = rw.AxialRoPE(D, base=100.0)
    if "rope_rotate_half" in more:
        encoding = rw.AxialRoPE(D, base=100.0, pairing="half")
    same(rt.apply(model, encoding)(images()), want)


def test_mixed_rope_is_the_mixed_rotation_of_timm():
    model = eva(rope_type="mixed", use_abs_pos_emb=False)
    want, freqs = model(images()), model.rope.freqs.detach()
    layers = [rw.MixedRoPE(D, HEADS) for _ in range(DEPTH)]
    for i, layer in enumerate(layers):
        layer.frequencies.data = freqs[:, i].permute(1, 2, 0).clone()
    same(rt.apply(model, layers)(images()), want)


@pytest.mark.parametrize("build", [vit, eva])
def test_no_encoding_is_no_position(build):
    plain = {"pos_embed": "none"} if build is vit else {"use_abs_pos_emb": False, "use_rot_pos_emb": False}
    without = build(**plain)
    model = build()
    model.load_state_dict(without.state_dict(), strict=False)
    same(rt.apply(model, "nope")(images()), without(images()))


def test_position_embeddings_can_stay():
    model = vit()
    want = model(images())
    same(rt.apply(model, "nope", keep_absolute=True)(images()), want)
    assert not torch.allclose(rt.apply(rt.remove(model), "nope")(images()), want)
    with pytest.raises(AssertionError, match="doesn't match"):  # they are of one size
        rt.apply(model, "nope", keep_absolute=True)(images(5, 7))


# ---- in every model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_apply_and_remove(build):
    model = build()
    before, want = model.state_dict(), model(images())
    names = list(before)
    rt.apply(model, rw.AxialRoPE(D))
    out = model(images())
    assert out.isfinite().all()
    assert (out - want).abs().max() > 1e-3
    assert set(model.state_dict()) <= set(names)
    assert [type(e) for e in rt.encodings(model)] == [rw.AxialRoPE] * DEPTH
    rt.remove(model)
    assert set(model.state_dict()) == set(names)
    assert all(torch.equal(model.state_dict()[n], before[n]) for n in names)
    assert torch.equal(model(images()), want)
    assert rt.remove(model) is model
    with pytest.raises(ConfigError, match="no encoding was applied"):
        rt.encodings(model)


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_other_resolutions(build):
    model = rt.apply(build(), "axial_rope")
    first, large = model(images()), model(images(5, 9))
    assert large.shape == first.shape
    assert torch.equal(model(images()), first)  # nothing is left behind by another size
    assert (model(images(6, 4)) - model(images(6, 4).mT)).abs().max() > 1e-3


@pytest.mark.parametrize("name", [*NAMED, *SCHEMES])
def test_encodings_by_name(name):
    model = rt.apply(vit(), name)
    x = images()
    out = model(x)
    rolled = model(x.roll((2, 4), (2, 3)))  # other places of the same patches
    assert out.isfinite().all()
    assert (out - rolled).abs().max() > 1e-4
    out.sum().backward()
    learned = [p for n, p in model.named_parameters() if ".encoding." in n]
    assert all(p.grad is not None for p in learned)


def test_prefix_tokens_do_not_turn():
    for placing, encoding in (("grid", rw.AxialRoPE(D)), ("layout", rw.PositionInterpolatedRoPE(D))):
        model = rt.apply(vit(reg_tokens=3), encoding)
        model(images(3, 5))
        places = model.blocks[0].attn.places
        assert places.placing == placing
        q = torch.randn(1, HEADS, 4 + 15, D)
        turned, _ = encoding.rotate(q, q, places.positions)
        assert torch.equal(turned[:, :, :4], q[:, :, :4])
        assert (turned[:, :, 5:] - q[:, :, 5:]).abs().amin((1, 3)).max() < 1
        assert (turned[:, :, 5:] - q[:, :, 5:]).abs().amax((1, 3)).min() > 1e-2


def test_what_encodings_see():
    model = vit()
    for encoding, placing, want in (
        (rw.RoPE(D), "sequence", [0, *range(1, 7)]),
        (rw.AxialRoPE(D), "grid", [[0, 0], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]),
        (rw.AxialRoPE(D, 3), "grid", [[0, 0, 0], *[[0, r, c] for r in range(2) for c in range(3)]]),
        (rw.Sequential(rw.AxialRoPE(D), rw.PaPE(D * HEADS, HEADS, axes=2)), "grid", None),
        (rw.MRoPE(D), "layout", list(range(7))),
    ):
        rt.apply(model, encoding)(images(2, 3))
        places = model.blocks[0].attn.places
        assert places.placing == placing
        if want is not None:
            assert places.positions.key.position[0].tolist() == want
    without = rt.apply(vit(class_token=False, global_pool="avg"), "rope")
    without(images(2, 3))
    assert without.blocks[0].attn.places.positions.key.position[0].tolist() == list(range(6))


def test_layers_share_positions_and_tables():
    model = rt.apply(vit(), "axial_rope")
    assert rt.encodings(model)[0] is rt.encodings(model)[1]
    assert model.blocks[0].attn.places is model.blocks[1].attn.places
    model(images())
    first = model.blocks[0].attn.places.positions
    model(images(seed=1))
    assert model.blocks[0].attn.places.positions is first
    grids = rt.encodings(rt.apply(model, "gridpe"))
    assert not torch.equal(grids[0].frequencies, grids[1].frequencies)


def test_one_a_layer_and_one_after_the_other():
    model = vit()
    rt.apply(model, ["axial_rope", rw.MixedRoPE(D, HEADS)])
    assert [type(e) for e in rt.encodings(model)] == [rw.AxialRoPE, rw.MixedRoPE]
    want = rt.apply(vit(), "axial_rope", base=100.0)(images())
    assert torch.equal(rt.apply(model, "axial_rope(base=100)")(images()), want)
    assert len(model.patch_embed._forward_hooks) == 1


def test_masks_and_causality():
    model = rt.apply(vit(class_token=False, global_pool="avg"), "axial_rope")
    n = 24
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    same(model(images(), is_causal=True), model(images(), attn_mask=causal))
    assert (model(images(), is_causal=True) - model(images())).abs().max() > 1e-3
    with pytest.raises(ConfigError, match="boolean"):
        model(images(), attn_mask=torch.zeros(n, n))


def test_features_of_layers():
    model = rt.apply(vit(), "axial_rope")
    last, features = model.forward_intermediates(images(3, 5))
    assert [tuple(f.shape) for f in features] == [(2, D * HEADS, 3, 5)] * DEPTH
    assert last.shape == (2, 16, D * HEADS)


# ---- as a module -----------------------------------------------------------------------------------------------------


def test_copies_and_checkpoints():
    model = rt.apply(vit(), "mixed_rope")
    x = images(3, 7)
    want = model(x)
    assert torch.equal(copy.deepcopy(model)(x), want)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), want)
    names = [n for n in model.state_dict() if "encoding" in n]
    assert names == [f"blocks.{i}.attn.encoding.frequencies" for i in range(DEPTH)]
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    other = rt.apply(vit(), "mixed_rope", seed=5)
    assert (other(x) - want).abs().max() > 1e-4
    other.load_state_dict(torch.load(saved, weights_only=True))
    assert torch.equal(other(x), want)
    whole = copy.deepcopy(model)
    assert torch.equal(rt.remove(whole)(images()), vit()(images()))


def test_low_precision():
    model = rt.apply(vit(), "axial_rope")
    want = model(images())
    half = copy.deepcopy(model).to(torch.bfloat16)
    got = half(images().bfloat16())
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).abs().max() < 0.1 * want.abs().max()
    assert rt.remove(half).pos_embed.dtype == torch.bfloat16


def test_it_trains():
    model = rt.apply(vit(), "mixed_rope").train()
    step = torch.optim.SGD(model.parameters(), 0.1)
    before = model.blocks[1].attn.encoding.frequencies.detach().clone()
    model(images()).square().sum().backward()
    step.step()
    assert (model.blocks[1].attn.encoding.frequencies - before).abs().max() > 0
    model.set_grad_checkpointing()
    model(images(5, 3)).sum().backward()


def test_compiled():
    model = rt.apply(vit(), "axial_rope")
    want = model(images())
    same(torch.compile(model, backend="eager")(images()), want)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_models_that_are_not_known():
    class Other(VisionTransformer):
        pass

    for model in (torch.nn.Linear(2, 2), made(Other)):
        with pytest.raises(ConfigError, match="expected a VisionTransformer or an Eva"):
            rt.apply(model, "axial_rope")
    with pytest.raises(ConfigError, match=r"blocks\.0 attends by ParallelScalingBlock"):
        rt.apply(vit(block_fn=ParallelScalingBlock), "axial_rope")
    with pytest.raises(ConfigError, match=r"blocks\.0 attends by DiffAttention"):
        rt.apply(vit(attn_layer=DiffAttention), "axial_rope")
    for build in (vit, eva):
        with pytest.raises(ConfigError, match="patch_drop_rate=0"):
            rt.apply(build(patch_drop_rate=0.5), "axial_rope")


@pytest.mark.parametrize(
    ("what", "more", "error", "match"),
    [
        ("axial_rop", {}, UnknownNameError, "axial_rope"),
        (3, {}, ConfigError, "cannot apply a int"),
        (["axial_rope"], {}, ConfigError, "1 encodings for a model of 2 layers"),
        (["axial_rope", 3], {}, ConfigError, "layer 1 was given a int"),
        ("axial_rope", {"bass": 3}, ConfigError, "takes no 'bass'"),
        (rw.RoPE(D), {"base": 3}, ConfigError, "give them to its constructor"),
        ("axial_rope", {"placing": "squares"}, ConfigError, "placing is one of"),
        ([rw.AxialRoPE(D), rw.AxialRoPE(D, 3)], {}, ConfigError, r"\[2, 3\] axes"),
    ],
)
def test_bad_encodings(what, more, error, match):
    model = vit()
    want = model(images())
    with pytest.raises(error, match=match):
        rt.apply(model, what, **more)
    assert torch.equal(model(images()), want)  # nothing was changed


def test_bad_use():
    model = rt.apply(vit(), "axial_rope")
    with pytest.raises(ShapeError, match="none were placed"):
        model.blocks(torch.zeros(1, 25, D * HEADS))
    model(images())
    with pytest.raises(ShapeError, match="sees 7 tokens and 25 were placed"):
        model.blocks(torch.zeros(1, 7, D * HEADS))
    with pytest.raises(AssertionError, match="divisible"):
        model(torch.zeros(1, 3, 9, 12))
    with pytest.raises(ShapeError, match="made for head_dim 12"):
        rt.apply(model, rw.AxialRoPE(12))(images())
    with pytest.raises(PositionError, match="wants positions"):
        rt.apply(model, "axial_rope", placing="sequence")(images())
    learned = rt.apply(model, "learned")
    assert learned(images()).isfinite().all()
    with pytest.raises(PositionError):
        learned(images(5, 7))  # beyond what it has learned


def test_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.layers.attention", None)
    monkeypatch.delitem(sys.modules, "ropewalk.integrations.timm")
    with pytest.raises(ConfigError, match=r"ropewalk\[timm\]"):
        import ropewalk.integrations.timm  # noqa: F401
