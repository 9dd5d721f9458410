"""Encodings in tiny random transformers of diffusers: applied, run, removed."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

import ropewalk as rw
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers")

from ropewalk.integrations import diffusers as rwd

TEXT, ROWS, COLUMNS, FRAMES = 5, 3, 4, 2


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flux():
    model = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=24,
        num_attention_heads=2,
        joint_attention_dim=8,
        pooled_projection_dim=8,
        axes_dims_rope=(8, 8, 8),
    )
    cells = rw.grid_positions(1, ROWS, COLUMNS).query.position[0].float()
    inputs = {
        "hidden_states": noise(2, ROWS * COLUMNS, 4),
        "encoder_hidden_states": noise(2, TEXT, 8, seed=1),
        "pooled_projections": noise(2, 8, seed=2),
        "timestep": torch.tensor([0.5, 0.5]),
        "img_ids": cells,
        "txt_ids": torch.zeros(TEXT, 3),
    }
    return model, inputs


def wan():
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=24,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    )
    inputs = {
        "hidden_states": noise(1, 4, FRAMES, 2 * ROWS, 2 * COLUMNS),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": noise(1, TEXT, 8, seed=1),
    }
    return model, inputs


def sd3(dual=()):
    model = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=24,
        num_attention_heads=2,
        joint_attention_dim=8,
        caption_projection_dim=48,
        pooled_projection_dim=8,
        out_channels=4,
        pos_embed_max_size=8,
        dual_attention_layers=dual,
    )
    inputs = {
        "hidden_states": noise(2, 4, 2 * ROWS, 2 * COLUMNS),
        "encoder_hidden_states": noise(2, TEXT, 8, seed=1),
        "pooled_projections": noise(2, 8, seed=2),
        "timestep": torch.tensor([500, 500]),
    }
    return model, inputs


MODELS = {"flux": flux, "wan": wan, "sd3": sd3, "sd3 dual": lambda: sd3((0,))}


@pytest.fixture(params=MODELS)
def made(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = MODELS[request.param]()
        for parameter in model.parameters():  # some of them start at zero, behind which nothing would be seen
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval(), inputs


@torch.no_grad()
def run(made):
    model, inputs = made
    return model(**inputs, return_dict=False)[0]


def axes(made):
    return rwd.family_of(made[0]).axes


def other(made):
    return rw.AxialRoPE(24, axes(made), base=50.0)


def test_the_models_own_encoding_is_the_model(made):
    before = run(made)
    with rwd.apply(made[0], rwd.native(made[0])):
        torch.testing.assert_close(run(made), before, atol=2e-5, rtol=1e-4)


def test_applied_run_and_removed_bit_by_bit(made):
    model, _ = made
    before, names = run(made), list(model.state_dict())
    processors = list(model.attn_processors.values())
    applied = rwd.apply(model, other(made))
    there = run(made)
    assert (there - before).abs().max() > 1e-3
    assert torch.equal(run(made), there)
    applied.remove()
    assert torch.equal(run(made), before)
    assert list(model.state_dict()) == names
    assert list(model.attn_processors.values()) == processors
    assert not hasattr(model, rwd.NAME)
    rwd.apply(model, other(made))
    rwd.remove(model)
    assert torch.equal(run(made), before)


def test_an_encoding_is_seen_in_the_layers_that_have_it(made):
    model, _ = made
    layers = rwd.family_of(model).layers(model)
    found = []
    for changed in range(len(layers)):
        encodings = [other(made) if n == changed else rwd.native(model) for n in range(len(layers))]
        with rwd.apply(model, encodings):
            found.append(run(made))
    for n, one in enumerate(found):
        for two in found[:n]:
            assert (one - two).abs().max() > 1e-4


def test_learned_encodings_are_trained_with_the_model(made):
    model, inputs = made
    applied = rwd.apply(model, rw.OnAxis(rw.T5(num_heads=2), axes(made) - 1))
    own = [p for n, p in model.named_parameters() if n.startswith(rwd.NAME)]
    assert len(own) == len(rwd.family_of(model).layers(model))
    model(**inputs, return_dict=False)[0].square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in own)
    applied.remove()
    assert not [n for n, _ in model.named_parameters() if n.startswith(rwd.NAME)]


def test_low_precision(made):
    model, inputs = made
    with rwd.apply(model, other(made)):
        want = run(made)
        model.to(torch.bfloat16)
        low = {n: t.to(torch.bfloat16) if t.is_floating_point() and "ids" not in n else t for n, t in inputs.items()}
        got = run((model, low)).float()
    assert (got - want).abs().mean() < 0.1 * want.abs().mean()


def test_a_copy_is_a_model_of_its_own(made):
    model, inputs = made
    before = run(made)
    applied = rwd.apply(model, other(made))
    there, twin = run(made), copy.deepcopy(model)
    applied.remove()
    assert torch.equal(run((twin, inputs)), there)
    rwd.remove(twin)
    assert torch.equal(run((twin, inputs)), before)


# ---- steps and resolutions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["wan"], indirect=True)
def test_the_first_steps_of_a_video(made):
    """Spatial scaling outside its window is the model itself."""
    model, _ = made
    before = run(made)
    applied = rwd.apply(model, rw.SpatialRoPEScale(24))
    with pytest.raises(NeedsColumn, match="at_step"):
        run(made)
    found = []
    for step in (0, 4, 5, 49):
        applied.positions = lambda positions, step=step: rw.at_step(positions, step, 50)
        found.append(run(made))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert (found[0] - before).abs().max() > 1e-4
    torch.testing.assert_close(found[2], before, atol=2e-5, rtol=1e-4)
    applied.remove()


@pytest.mark.parametrize("made", ["flux"], indirect=True)
def test_tokens_of_two_resolutions(made):
    """FLUX takes any ids, so that a mixed grid is a matter of positions."""
    model, inputs = made
    mask = torch.zeros(1, ROWS, COLUMNS, dtype=torch.bool)
    mask[0, 1, 1:3] = True
    where = rw.mixed_resolution_positions(mask, 2, num_text=TEXT)
    tokens = where.query.length - TEXT
    mixed = {**inputs, "hidden_states": noise(2, tokens, 4), "img_ids": where.query.position[0, TEXT:].float()}
    with rwd.apply(model, rw.PhaseAlignedRoPE(24, 3, widths=(8, 8, 8)), positions=lambda _: where):
        got = run((model, mixed))
    assert got.shape == (2, tokens, 4)
    plain = {**inputs, "hidden_states": mixed["hidden_states"][:, : ROWS * COLUMNS]}
    before = run((model, plain))
    coarse = rw.mixed_resolution_positions(~mask & False, 2, num_text=TEXT)
    with rwd.apply(model, rw.PhaseAlignedRoPE(24, 3, widths=(8, 8, 8)), positions=lambda _: coarse):
        torch.testing.assert_close(run((model, plain)), before, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("made", ["sd3"], indirect=True)
def test_without_the_table_of_sd3_nothing_but_the_encoding_says_places(made):
    model, inputs = made
    before = run(made)
    table = model.pos_embed.pos_embed
    flipped = {**inputs, "hidden_states": inputs["hidden_states"].roll(2, -1)}
    with rwd.apply(model, rw.NoPE(), drop_absolute=True):
        a, b = run(made), run((model, flipped))
    torch.testing.assert_close(b, a.roll(2, -1), atol=1e-5, rtol=1e-4)
    with rwd.apply(model, rw.AxialRoPE(24), drop_absolute=True):
        a, b = run(made), run((model, flipped))
    assert (b - a.roll(2, -1)).abs().max() > 1e-3
    assert model.pos_embed.pos_embed is table
    assert torch.equal(run(made), before)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_applied(made):
    model, _ = made
    before = run(made)
    layers = len(rwd.family_of(model).layers(model))
    for encoding, message in (
        ([rw.AxialRoPE(24, axes(made))] * (layers + 1), f"{layers + 1} encodings for {layers} layers"),
        (rw.Sinusoidal(48), "acts on token embeddings"),
        (torch.nn.Linear(2, 2), "is no encoding"),
        (rw.RoPEPlusPlus(24), "heads of 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            rwd.apply(model, encoding)
    assert torch.equal(run(made), before)
    with rwd.apply(model, other(made)), pytest.raises(ConfigError, match="already"):
        rwd.apply(model, other(made))
    with pytest.raises(ConfigError, match="no encoding of ropewalk"):
        rwd.remove(model)
    applied = rwd.apply(model, other(made))
    applied.remove()
    with pytest.raises(ConfigError, match="removed already"):
        applied.remove()


def test_what_fails_while_it_runs_says_why(made):
    model, _ = made
    before = run(made)
    with rwd.apply(model, rw.RoPE(24)), pytest.raises(PositionError, match="wants plain positions"):
        run(made)
    with rwd.apply(model, rw.AxialRoPE(24, 4, widths=(6, 6, 6, 6))), pytest.raises(PositionError, match="4"):
        run(made)
    assert torch.equal(run(made), before)


def test_models_that_are_not_known(made):
    with pytest.raises(ConfigError, match="FluxTransformer2DModel, WanTransformer3DModel"):
        rwd.apply(torch.nn.Linear(2, 2), rw.NoPE())
    pipe = torch.nn.Module()
    pipe.transformer = made[0]
    with pytest.raises(ConfigError, match=r"pipe\.transformer"):
        rwd.apply(pipe, rw.NoPE())
    if axes(made) == 3:
        with pytest.raises(ConfigError, match="no table to its latents"):
            rwd.apply(made[0], rw.NoPE(), drop_absolute=True)


@pytest.mark.parametrize("made", ["flux"], indirect=True)
def test_processors_that_are_not_known(made):
    model, _ = made

    class Mine(type(model.transformer_blocks[0].attn.processor)):
        pass

    model.transformer_blocks[0].attn.processor = Mine()
    with pytest.raises(ConfigError, match="attends by Mine"):
        rwd.apply(model, rw.NoPE())


@pytest.mark.parametrize("made", ["flux"], indirect=True)
def test_attention_that_does_not_go_through_torch(made):
    model, _ = made

    class FluxAttnProcessor:
        def __call__(self, attn, hidden_states, *rest, **options):
            return hidden_states

    model.single_transformer_blocks[0].attn.processor = FluxAttnProcessor()
    with rwd.apply(model, other(made)), pytest.raises(ConfigError, match="layer 1 asked torch for attention 0 times"):
        run(made)
