"""FreeFlux: which layers attend by position, and keys and values injected into them (arXiv 2503.16153)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, close, differ, golden, logits, problem, random
from torch import nn

import ropewalk as rw
from ropewalk.analysis.encoding_layers import encoding_slots
from ropewalk.analysis.kv_injection import (
    CONTENT_LAYERS,
    POSITION_LAYERS,
    KVInjection,
    subject_attention,
    subject_mask,
)
from ropewalk.analysis.rope_probe import CAP, MODES, ProbedKeys, RopeProbe, layer_scores, mse, psnr
from ropewalk.core.errors import CannotCache, CannotCompose, ConfigError, NeedsColumn, PositionError, ShapeError

CASES = golden("113")
TEXT, GRID = 2, (4, 5)
CELLS = rw.grid_positions(1, *GRID).query.position[0]
WHERE = rw.Positions(torch.cat([torch.zeros(TEXT, 3, dtype=torch.int64), CELLS])[None])
N = WHERE.query.length


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case, params = CASES[name], CASES[name].params
    made = rw.AxialRoPE(sum(params["axes_dims"]), 3, widths=params["axes_dims"], base=params["theta"])
    q, k, v = (case.inputs[x][None] for x in "qkv")
    p = rw.Attention(q, k, v, rw.Positions(case.inputs["ids"][None]), causal=False)
    close(rw.attend(made(p), "dense")[0], case.outputs["attn_normal"], DOUBLE)
    shift = params["shift"]
    probed = ProbedKeys(made, None if shift is None else tuple(shift), params["n_text"])
    close(rw.attend(probed(p), "dense")[0], case.outputs["attn_probed"], DOUBLE)
    if shift is not None:
        assert torch.equal(probed._moved(p.positions.key).position[0], case.outputs["key_ids"])


# ---- properties of the probe -----------------------------------------------------------------------------------------


def flux(**more):
    return rw.AxialRoPE(12, 3, widths=(4, 4, 4), **more)


def joint(**more):
    return problem(s=N, d=12, positions=WHERE, causal=False, **more)


def test_a_shift_of_nothing_changes_nothing():
    assert torch.equal(ProbedKeys(flux(), (0, 0), TEXT)(joint()).k, flux()(joint()).k)


def test_keys_that_are_moved_are_at_other_distances():
    p = joint()
    got = logits(ProbedKeys(flux(), (10, 0), TEXT)(p))
    assert torch.equal(got[..., :TEXT], logits(flux()(p))[..., :TEXT])
    away = WHERE.query.with_columns(position=WHERE.query.position - torch.tensor([0, 10, 0]))
    want = logits(flux()(p.replace(positions=rw.Positions(q=away, k=WHERE.key))))
    close(got[..., TEXT:], want[..., TEXT:], 1e-11)


def test_moving_queries_too_changes_text_and_image_alone():
    p = joint()
    image = torch.arange(N) >= TEXT
    both = WHERE.map_sides(lambda t: t.with_columns(position=t.position + 7 * image[:, None] * torch.tensor([0, 1, 1])))
    a, b = logits(flux()(p)), logits(flux()(p.replace(positions=both)))
    close(b[..., TEXT:, TEXT:], a[..., TEXT:, TEXT:], 1e-11)
    close(b[..., :TEXT, :TEXT], a[..., :TEXT, :TEXT])
    differ(b[..., TEXT:, :TEXT], a[..., TEXT:, :TEXT])
    whole = WHERE.map_sides(lambda t: t.with_columns(position=t.position + torch.tensor([0, 7, 7])))
    close(logits(flux()(p.replace(positions=whole))), a, 1e-11)


def test_without_a_rotation_keys_have_no_places():
    p = joint()
    order = torch.cat([torch.arange(TEXT), TEXT + torch.randperm(N - TEXT, generator=torch.Generator().manual_seed(0))])
    mixed = p.replace(k=p.k[:, :, order], v=p.v[:, :, order])
    bare = ProbedKeys(flux(), None, TEXT)
    close(rw.attend(bare(mixed), "dense"), rw.attend(bare(p), "dense"))
    differ(rw.attend(flux()(mixed), "dense"), rw.attend(flux()(p), "dense"))


def test_plain_positions_and_short_modes():
    p = problem(s=6, causal=False)
    got = logits(ProbedKeys(rw.RoPE(8), (3,))(p))
    want = logits(rw.RoPE(8)(p.replace(positions=rw.Positions(q=torch.arange(6), k=torch.arange(6) + 3))))
    close(got, want)
    with pytest.raises(PositionError, match="along 2 axes"):
        ProbedKeys(rw.RoPE(8), (3, 3))(p)


# ---- a model with layers of both kinds -------------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention that copies from the left, or from tokens that are alike."""

    def __init__(self, by_position, seed):
        super().__init__()
        self.encoding = rw.AxialRoPE(24, 3, widths=(8, 8, 8))
        self.by_position = by_position
        self.project = random(6, 4, seed=seed)

    def forward(self, x, where):
        q = torch.zeros(*x.shape[:2], 24, dtype=x.dtype)
        if self.by_position:  # fast pairs of rows and columns, the same for all tokens
            k = q.clone()
            k[..., [8, 10, 12, 16, 18, 20]] = 3.0
            left = rw.Positions(torch.tensor([[[0, 0, -1]]]))
            q = rw.AxialRoPE(24, 3, widths=(8, 8, 8)).rotate(k[:, None, :1], k[:, None, :1], left)[0][:, 0].expand_as(k)
        else:  # slow pairs, of which no distance in the image is a part of a turn
            k = q.clone()
            k[..., [6, 14, 15, 22]] = 6 * torch.nn.functional.normalize(x @ self.project, dim=-1)
            q = k
        q, k = 3 * q[:, None], k[:, None]
        out = rw.attend(self.encoding(rw.Attention(q, k, x[:, None], where, causal=False)))
        return (x + out[:, 0]) / 2


class Joint(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.layers = nn.ModuleList(Layer(kind, seed) for seed, kind in enumerate(kinds))

    def forward(self, x, where=WHERE):
        for layer in self.layers:
            x = layer(x, where)
        return x


KINDS = [False, True, True, False, True]


@pytest.fixture
def model():
    return Joint(KINDS)


@pytest.fixture
def x():
    return torch.rand(2, N, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mode", MODES)
def test_layers_of_position_are_told_from_layers_of_content(model, x, mode):
    scores = layer_scores(model, lambda: model(x)[:, TEXT:], modes=[mode], num_text=TEXT)
    position = [scores[i] for i, kind in enumerate(KINDS) if kind]
    content = [scores[i] for i, kind in enumerate(KINDS) if not kind]
    assert max(position) + 5 < min(content), scores  # decibels
    errors = layer_scores(model, lambda: model(x)[:, TEXT:], modes=[mode], num_text=TEXT, measure=mse)
    assert sorted(errors, key=errors.get, reverse=True)[:3] == sorted(scores, key=scores.get)[:3]


def test_the_model_is_what_it_was(model, x):
    before = [layer.encoding for layer in model.layers]
    want = model(x)
    with RopeProbe(model, [1], (10, 10), num_text=TEXT):
        assert model.layers[0].encoding is before[0]
        differ(model(x), want)
        with RopeProbe(model, [1, 3], None):
            model(x)
    assert [layer.encoding for layer in model.layers] == before
    assert torch.equal(model(x), want)
    with pytest.raises(RuntimeError, match="mine"), RopeProbe(model, [1], None):
        raise RuntimeError("mine")
    assert [layer.encoding for layer in model.layers] == before


def test_layers_that_share_an_encoding_are_apart():
    shared = nn.Module()
    shared.encodings = rw.PerLayer(rw.RoPE(8), 3)
    assert shared.encodings[0] is shared.encodings[2]
    assert len(encoding_slots(shared)) == 3
    with RopeProbe(shared, [2], None):
        assert isinstance(shared.encodings[2], ProbedKeys)
        assert not isinstance(shared.encodings[0], ProbedKeys)
    assert len(encoding_slots(rw.Sequential(rw.RoPE(8)))) == 0


def test_identical_images_count_as_the_cap():
    a = torch.rand(2, 3, 4)
    assert psnr(a, a) == CAP
    assert psnr(255 * a, 255 * a + 255, peak=255) == pytest.approx(0, abs=1e-6)
    b = a.clone()
    b[1] += 0.1
    assert psnr(b, a) == pytest.approx((CAP + 20) / 2, abs=1e-4)


# ---- injection -------------------------------------------------------------------------------------------------------


def injected(p, layer=None, **options):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = flux() if layer is None else layer

    one = One()
    with KVInjection(one, [0], grid=GRID, num_text=TEXT, **options):
        return one.encoding(p)


def test_the_target_sees_the_image_of_the_source():
    p = joint()
    plain, got = flux()(p), injected(p)
    for now, was in ((got.k, plain.k), (got.v, plain.v)):
        assert torch.equal(now[0], was[0])
        assert torch.equal(now[1, :, :TEXT], was[1, :, :TEXT])
        assert torch.equal(now[1, :, TEXT:], was[0, :, TEXT:])
    assert torch.equal(got.q, plain.q)


def test_what_is_injected_into_itself_changes_nothing():
    p = joint()
    same = p.replace(**{n: getattr(p, n)[:1].expand(2, -1, -1, -1).clone() for n in "qkv"})
    assert torch.equal(rw.attend(injected(same), "dense"), rw.attend(flux()(same), "dense"))


def test_values_alone_leave_attention_as_it_is():
    p = joint()
    (plain, weights), (got, same) = (
        rw.attend(e, "dense", return_weights=True) for e in (flux()(p), injected(p, what="v"))
    )
    assert torch.equal(weights, same)
    differ(plain[1], got[1])


def test_tokens_of_the_new_object_keep_their_own():
    keep = torch.zeros(GRID, dtype=torch.bool)
    keep[1, 2] = True
    p = joint()
    plain, got = flux()(p), injected(p, keep=keep)
    own = TEXT + 1 * 5 + 2
    assert torch.equal(got.k[1, :, own], plain.k[1, :, own])
    assert torch.equal(got.k[1, :, own + 1], plain.k[0, :, own + 1])


def test_a_region_is_moved():
    region = torch.zeros(GRID, dtype=torch.bool)
    region[0, :2] = True
    p = joint()
    got = injected(p, region=region, shift=(2, 1), what="v")
    for column in (0, 1):
        assert torch.equal(got.v[1, :, TEXT + 10 + column + 1], p.v[0, :, TEXT + column])
    assert torch.equal(got.v[1, :, TEXT + 1], p.v[1, :, TEXT + 1])
    with pytest.raises(PositionError, match="leaves the grid"):
        injected(p, region=region, shift=(0, 4))


def test_only_in_some_steps():
    p = joint()
    for step in (44, 45):
        now = p.replace(positions=rw.at_step(WHERE, step, 50))
        got, plain = injected(now, window=(0.0, 0.9)), flux()(now)
        assert torch.equal(got.v[1], plain.v[1]) == (step == 45)
    with pytest.raises(NeedsColumn, match="at_step"):
        injected(p, window=(0.0, 0.9))


def test_layers_that_attend_by_position_hold_the_layout(model, x):
    """The target ends up nearer to the source when keys and values go into its layers of position."""
    plain = model(x)
    with KVInjection(model, [1, 2, 4], grid=GRID, num_text=TEXT):
        got = model(x)
    assert torch.equal(got[0], plain[0])
    assert mse(got[1:], plain[:1]) < 0.7 * mse(plain[1:], plain[:1])


def test_layers_of_the_released_model():
    assert len(POSITION_LAYERS) == 7
    assert len(CONTENT_LAYERS) == 13
    assert not set(POSITION_LAYERS) & set(CONTENT_LAYERS)
    assert max(POSITION_LAYERS + CONTENT_LAYERS) < 19 + 38


# ---- where the object is ---------------------------------------------------------------------------------------------


def test_the_mask_of_a_word():
    weights = torch.full((2, N, N), 0.01, dtype=torch.float64)
    there = [TEXT + r * 5 + c for r in (1, 2) for c in (2, 3)]
    weights[:, 1, there] = 0.5
    weights[:, there, 1] = 0.3
    found = subject_attention([weights, weights], [1], TEXT)
    assert found[there[0] - TEXT].item() == pytest.approx(0.4)
    mask = subject_mask(found, GRID, 0.6)
    assert mask[1:3, 2:4].all()
    assert int(mask.sum()) == 4
    assert subject_mask(torch.ones(20), GRID).sum() == 0
    # one cell: the weights of the kernel
    one = torch.zeros(25)
    one[12] = 1
    line = torch.tensor([math.exp(-2), 1, math.exp(-2)])
    centre, side = 1 / line.sum() ** 2, math.exp(-2) / line.sum() ** 2
    just = float(side / centre)
    assert int(subject_mask(one, (5, 5), just * 0.99).sum()) == 5
    assert int(subject_mask(one, (5, 5), just * 1.01).sum()) == 1


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be(model):
    for layers in ([5], [-1], [1, 1]):
        with pytest.raises(ConfigError, match="counted from 0"):
            RopeProbe(model, layers, None)
    with pytest.raises(ConfigError, match="no encoding of ropewalk"):
        RopeProbe(nn.Linear(2, 2), [0], None)
    with pytest.raises(ConfigError, match="num_text"):
        RopeProbe(model, [0], None, num_text=-1)
    with pytest.raises(ConfigError, match="how far keys are moved"):
        RopeProbe(model, [0], ())
    with pytest.raises(CannotCompose, match="more than a map of q and k"):
        ProbedKeys(rw.ALiBi(4), (1,))(problem(s=5))
    with pytest.raises(CannotCache, match="whole passes"):
        rw.KVCache(ProbedKeys(rw.RoPE(8), None))
    with pytest.raises(ShapeError, match="expected the same"):
        psnr(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(PositionError, match="of the grid"):
        KVInjection(model, [0], grid=GRID, keep=torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(ConfigError, match="another row"):
        KVInjection(model, [0], grid=GRID, rows=(1, 1))
    with pytest.raises(ShapeError, match="tokens up to"):
        injected(problem(s=7, d=12, positions=rw.Positions(WHERE.query.slice(0, 7)), causal=False))
    with pytest.raises(PositionError, match="20 image tokens"):
        subject_mask(torch.ones(20), (4, 4))
