"""Frequencies read from configurations, against those that transformers makes; and what must not be chosen silently."""

from __future__ import annotations

import copy
import itertools
import math
import warnings

import pytest
import torch

import ropewalk as rw
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import (
    RopeConfigWarning,
    Spectrum,
    geometric,
    p_rope,
    read_rope_config,
    rope_layer_types,
    spectrum_from_config,
    to_rope_parameters,
)

WIDTHS = (8, 64, 80, 96, 128, 256)
FRACTIONS = (None, 0.25, 0.5, 0.75)
BASES = (10_000.0, 500_000.0, 1e7)


def config(head_dim=64, max_length=4096, **more):
    """Return what a config.json holds."""
    return {
        "hidden_size": 4 * head_dim,
        "num_attention_heads": 4,
        "head_dim": head_dim,
        "max_position_embeddings": max_length,
    } | more


def entry(rope_type, fraction=None, base=10_000.0, **more):
    made = {"rope_type": rope_type, "rope_theta": base, **more}
    return made if fraction is None else {**made, "partial_rotary_factor": fraction}


def theirs(values, length=None, layer_type=None):
    """Return inverse frequencies and attention factor as the installed transformers makes them."""
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
    made = LlamaConfig(**copy.deepcopy(values))  # which it changes
    parameters = made.rope_parameters if layer_type is None else made.rope_parameters[layer_type]
    if parameters["rope_type"] == "default":
        return GPTNeoXRotaryEmbedding.compute_default_rope_parameters(made, "cpu")
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](made, "cpu", seq_len=length, layer_type=layer_type)


def check(values, length=None, layer_type=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RopeConfigWarning)
        ours = spectrum_from_config(values, length=length, layer_type=layer_type)
    inv_freq, attention_factor = theirs(values, length, layer_type)
    torch.testing.assert_close(ours.tensor(), inv_freq.double(), rtol=5e-6, atol=0)
    assert math.isclose(ours.attention_factor, attention_factor, rel_tol=1e-12)


def grid(*axes, widths=WIDTHS):
    return list(itertools.product(widths, FRACTIONS, BASES, *axes))


# ---- parity ----------------------------------------------------------------------------------------------------------


def test_default():
    for width, fraction, base in grid():
        check(config(width, rope_parameters=entry("default", fraction, base)))


def test_linear():
    for width, fraction, base, factor in grid((1.0, 2.0, 3.7, 16)):
        check(config(width, rope_parameters=entry("linear", fraction, base, factor=factor)))


def test_dynamic():
    for width, fraction, base, factor in grid((1.0, 2.0, 8.0)):
        if width * (fraction or 1) == 2:
            continue  # divides by zero there; ours keeps the only plane
        for length in (100, 4096, 4097, 30_000):
            check(config(width, rope_parameters=entry("dynamic", fraction, base, factor=factor)), length)


def test_llama3():
    for width, fraction, base, slow in grid((1.0, 2.0)):
        more = {
            "factor": 8.0,
            "low_freq_factor": slow,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        check(config(width, 131_072, rope_parameters=entry("llama3", fraction, base, **more)))


def test_proportional():
    for width, fraction, base, factor in grid((None, 2.0)):
        more = {} if factor is None else {"factor": factor}
        check(config(width, rope_parameters=entry("proportional", fraction, base, **more)))


@pytest.mark.parametrize("ratio", [1.0, 4.0, 40.0])
def test_yarn(ratio):
    for width, fraction, base, more in grid(
        (
            {},
            {"attention_factor": 1.0},
            {"attention_factor": 0.7},
            {"mscale": 1.0, "mscale_all_dim": 1.0},
            {"mscale": 0.707, "mscale_all_dim": 0.9},
            {"mscale": 0.707},
            {"mscale_all_dim": 1.0},
            {"mscale": 1.0, "mscale_all_dim": 0},
            {"beta_fast": 16, "beta_slow": 2},
            {"beta_fast": None, "beta_slow": None},
            {"truncate": False},
        ),
        widths=(8, 80, 128),
    ):
        parameters = entry("yarn", fraction, base, factor=ratio, original_max_position_embeddings=4096, **more)
        check(config(width, int(4096 * ratio), rope_parameters=parameters))


def test_yarn_without_a_factor_takes_the_ratio():
    parameters = entry("yarn", factor=None, original_max_position_embeddings=2048)
    check(config(64, 8192, rope_parameters=parameters))


def test_longrope():
    for width, fraction, more in itertools.product(
        WIDTHS, FRACTIONS, ({}, {"attention_factor": 1.19}, {"factor": 8.0}, {"factor": 1.0})
    ):
        planes = int(width * (fraction or 1)) // 2
        short, long = [1.0 + 0.01 * i for i in range(planes)], [1.0 + i for i in range(planes)]
        more = {**more, "short_factor": short, "long_factor": long, "original_max_position_embeddings": 4096}
        for length in (10, 4096, 4097):
            check(config(width, 32_768, rope_parameters=entry("longrope", fraction, **more)), length)


def test_longrope_original_length_beside_the_dictionary():
    parameters = entry("longrope", short_factor=[1.0] * 32, long_factor=[2.0] * 32)
    check(config(64, 8192, rope_parameters=parameters, original_max_position_embeddings=4096), 5000)


def test_older_style_and_older_names():
    for scaling in (
        {"type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    ):
        check(config(64, rope_theta=5e5, rope_scaling=scaling))
    su = {"type": "su", "short_factor": [1.0] * 32, "long_factor": [3.0] * 32}
    got = spectrum_from_config(
        config(64, 8192, rope_theta=1e4, rope_scaling=su, original_max_position_embeddings=4096), length=8192
    )
    assert got.inv_freq == geometric(64).longrope([3.0] * 32).inv_freq


def test_by_layer_type():
    values = config(
        64,
        layer_types=["sliding_attention", "full_attention"],
        num_hidden_layers=2,
        rope_parameters={
            "sliding_attention": entry("default"),
            "full_attention": entry("yarn", base=1e6, factor=4.0, original_max_position_embeddings=1024),
        },
    )
    check(values, layer_type="full_attention")
    assert spectrum_from_config(values, layer_type="sliding_attention") == geometric(64)
    assert rope_layer_types(values) == ("sliding_attention", "full_attention")


def test_configurations_of_transformers():
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import DeepseekV3Config, Gemma3TextConfig, GPTNeoXConfig, LlamaConfig, Olmo3Config
    llama = LlamaConfig(
        hidden_size=64, num_attention_heads=4, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0}
    )
    assert spectrum_from_config(llama).inv_freq == geometric(16, 5e5).linear(2.0).inv_freq
    gemma = Gemma3TextConfig()
    assert spectrum_from_config(gemma, layer_type="sliding_attention") == geometric(256, 1e4)
    assert spectrum_from_config(gemma, layer_type="full_attention") == geometric(256, 1e6)
    olmo = Olmo3Config(
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=4,
        max_position_embeddings=4096,
        rope_theta=5e5,
        rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
    )
    assert spectrum_from_config(olmo, layer_type="sliding_attention") == geometric(16, 5e5)
    assert spectrum_from_config(olmo, layer_type="full_attention") == geometric(16, 5e5).yarn(8.0, 512)
    assert len(spectrum_from_config(DeepseekV3Config()).inv_freq) == 32
    assert len(spectrum_from_config(GPTNeoXConfig()).inv_freq) == 96 * 0.25 / 2


@pytest.mark.slow
def test_every_configuration_of_transformers():
    """Read the default configuration of every model; what transformers makes by type is equal."""
    pytest.importorskip("transformers")
    equal = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        for name in list(CONFIG_MAPPING.keys()):
            try:
                made = CONFIG_MAPPING[name]()
            except Exception:  # some have no default
                continue
            for layer_type in rope_layer_types(made) or (None,):
                try:
                    read = read_rope_config(made, layer_type=layer_type)
                    ours = read.spectrum(length=1024)
                except ConfigError as why:
                    assert "Did you mean" not in str(why), (name, why)  # nothing of theirs is misspelt
                    continue
                if read.rope_type in ROPE_INIT_FUNCTIONS:
                    inv_freq, factor = ROPE_INIT_FUNCTIONS[read.rope_type](made, "cpu", 1024, layer_type)
                    torch.testing.assert_close(ours.tensor(), inv_freq.double(), rtol=5e-6, atol=0, msg=name)
                    assert math.isclose(ours.attention_factor, factor, rel_tol=1e-12), name
                    equal += 1
    assert equal > 5


# ---- what must not be chosen silently --------------------------------------------------------------------------------


def findings(values, **more):
    return " ".join(read_rope_config(values, **more).findings)


def test_unknown_type_is_named():
    with pytest.raises(ConfigError, match=r"'yarnn' is unknown.*Did you mean 'yarn'"):
        spectrum_from_config(config(rope_parameters=entry("yarnn", factor=2.0)))


def test_no_type_but_a_factor():
    with pytest.raises(ConfigError, match="no 'rope_type'"):
        spectrum_from_config(config(rope_theta=1e4, rope_scaling={"factor": 2.0}))


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("original_max_position_embedding", "original_max_position_embeddings"),
        ("orginal_max_position_embeddings", "original_max_position_embeddings"),
        ("original_max_seq_len", "original_max_position_embeddings"),
        ("scaling_factor", "factor"),
        ("beta_fats", "beta_fast"),
        ("attention_facotr", "attention_factor"),
        ("base", "rope_theta"),
    ],
)
def test_misspelt_keys(wrong, meant):
    good = entry("yarn", factor=4.0, original_max_position_embeddings=1024, attention_factor=1.0, beta_fast=32)
    bad = {(wrong if key == meant else key): value for key, value in good.items()}
    with pytest.raises(ConfigError, match=f"'{wrong}'.*Did you mean '{meant}'"):
        spectrum_from_config(config(rope_parameters=bad))


@pytest.mark.parametrize("wrong", ["rope_thetas", "rope_scalling", "rope_parameter", "orginal_max_position_embeddings"])
def test_misspelt_names_beside_the_dictionary(wrong):
    with pytest.raises(ConfigError, match="Did you mean"):
        spectrum_from_config({"head_dim": 64, wrong: 1})


def test_both_styles():
    old, new = {"type": "linear", "factor": 2.0}, entry("linear", factor=2.0)
    assert spectrum_from_config(config(rope_theta=1e4, rope_scaling=old, rope_parameters=new)) == geometric(64).linear(
        2.0
    )
    with pytest.raises(ConfigError, match="both given"):
        spectrum_from_config(config(rope_scaling=old, rope_parameters=entry("linear", factor=4.0)))
    with pytest.raises(ConfigError, match="different things"):
        spectrum_from_config(config(rope_theta=5e5, rope_parameters=new))
    with pytest.raises(ConfigError, match="both given"):
        spectrum_from_config(
            config(rope_theta=1e4, rope_scaling={"type": "linear", "rope_type": "yarn", "factor": 2.0})
        )


def test_factor_and_ratio_of_lengths():
    parameters = entry("yarn", factor=4.0, original_max_position_embeddings=2048)
    values = config(64, 4096, rope_parameters=parameters)
    assert "factor is 4.0" in findings(values)
    with pytest.warns(RopeConfigWarning, match="= 2; the factor is taken"):
        assert spectrum_from_config(values) == geometric(64).yarn(4.0, 2048)
    assert not findings(config(64, 8192, rope_parameters=parameters))
    llama = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    assert not findings(config(64, 131_072, rope_parameters=entry("llama3", factor=8.0, **llama)))  # as released


def test_original_length():
    with pytest.warns(RopeConfigWarning, match="is taken for the length of the training"):
        spectrum_from_config(config(rope_parameters=entry("yarn", factor=4.0)))
    with pytest.raises(ConfigError, match="different things"):
        values = config(rope_parameters=entry("yarn", factor=4.0, original_max_position_embeddings=1024))
        spectrum_from_config({**values, "original_max_position_embeddings": 2048})
    with pytest.raises(ConfigError, match="needs 'original_max_position_embeddings'"):
        spectrum_from_config({"head_dim": 64, "rope_parameters": entry("yarn", factor=4.0)})


def test_base_is_never_assumed_silently():
    for values in ({"head_dim": 64}, {"head_dim": 64, "rope_parameters": {"rope_type": "default"}}):
        with pytest.warns(RopeConfigWarning, match="10000 is taken"):
            assert spectrum_from_config(values) == geometric(64)
    for values in ({"rope_theta": 5e5}, {"rotary_emb_base": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}):
        assert spectrum_from_config({"head_dim": 64, **values}) == geometric(64, 5e5)
    with pytest.raises(ConfigError, match="base is a positive number"):
        spectrum_from_config({"head_dim": 64, "rope_theta": -1.0})


def test_partial_factor_counts_once():
    both = config(128, rope_theta=1e4, partial_rotary_factor=0.5, rope_parameters=entry("linear", 0.5, factor=2.0))
    assert len(spectrum_from_config(both).inv_freq) == 32
    with pytest.raises(ConfigError, match="different things"):
        spectrum_from_config({**both, "partial_rotary_factor": 0.25})
    assert len(spectrum_from_config({"head_dim": 64, "rope_theta": 1e4, "rotary_pct": 0.25}).inv_freq) == 8
    assert len(spectrum_from_config({"n_embd": 256, "n_head": 4, "rope_theta": 1e4, "rotary_dim": 16}).inv_freq) == 8


def test_latent_attention_turns_a_part():
    parts = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "rope_theta": 1e4}
    for values in (parts, {**parts, "head_dim": 64}, {**parts, "partial_rotary_factor": 0.5}):
        assert spectrum_from_config(values) == geometric(64)  # the half is not halved again
    with pytest.raises(ConfigError, match="64 by qk_rope_head_dim, 32 by partial_rotary_factor"):
        spectrum_from_config({**parts, "head_dim": 64, "partial_rotary_factor": 0.5})


@pytest.mark.parametrize(("head_dim", "fraction"), [(65, None), (4, 0.75), (10, 0.5)])
def test_odd_widths(head_dim, fraction):
    with pytest.raises(ConfigError, match=r"even|odd"):
        spectrum_from_config(config(head_dim, rope_parameters=entry("default", fraction)))


def test_widths_of_other_models():
    with pytest.raises(ConfigError, match="num_attention_heads"):
        spectrum_from_config({"hidden_size": 64, "num_attention_heads": [2, 4], "rope_theta": 1e4})
    with pytest.raises(ConfigError, match="width of a head"):
        spectrum_from_config({"rope_theta": 1e4})


def test_dynamic_needs_a_length():
    values = config(rope_parameters=entry("dynamic", factor=2.0))
    with pytest.raises(ConfigError, match="depends on the length"):
        spectrum_from_config(values)
    assert spectrum_from_config(values, length=100).inv_freq == geometric(64).inv_freq
    assert spectrum_from_config(values, length=100_000).inv_freq != geometric(64).inv_freq


def test_keys_of_other_types_are_a_finding():
    values = config(rope_parameters=entry("linear", factor=2.0, original_max_position_embeddings=1024, colour="red"))
    assert "does not use 'original_max_position_embeddings'" in findings(values)
    assert "'colour', which nothing reads" in findings(values)


def test_truncate_by_layer_type_counts():
    yarn = entry("yarn", factor=4.0, original_max_position_embeddings=1024, truncate=False)
    values = config(layer_types=["full_attention"], rope_parameters={"full_attention": yarn})
    assert spectrum_from_config(values, layer_type="full_attention") == geometric(64).yarn(4.0, 1024, truncate=False)


def test_layers_that_differ():
    gemma = {
        "head_dim": 64,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"type": "linear", "factor": 8.0},
    }
    assert spectrum_from_config(gemma, layer_type="sliding_attention") == geometric(64, 1e4)
    assert spectrum_from_config(gemma, layer_type="full_attention") == geometric(64, 1e6).linear(8.0)
    with pytest.raises(ConfigError, match=r"give layer_type, one of.*Did you mean 'full_attention'"):
        spectrum_from_config(gemma, layer_type="full_atention")
    none = {"full_attention": None, "sliding_attention": entry("default")}
    with pytest.raises(ConfigError, match="no rotary encoding"):
        spectrum_from_config(
            config(layer_types=["full_attention", "sliding_attention"], rope_parameters=none),
            layer_type="full_attention",
        )
    flat = config(
        rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0}, layer_types=["full_attention", "chunked"]
    )
    assert "taken for all of them" in findings(flat)
    with pytest.raises(ConfigError, match="mixes layer types"):
        spectrum_from_config(config(rope_parameters={"full_attention": entry("default"), "factor": 2.0}))


def test_nested_text_model():
    with pytest.raises(ConfigError, match="text_config"):
        spectrum_from_config({"text_config": {"head_dim": 64}})


def test_multimodal_sections_are_a_finding():
    values = config(rope_theta=1e6, rope_scaling={"type": "mrope", "mrope_section": [8, 12, 12]})
    assert "mrope_section" in findings(values)
    assert read_rope_config(values).spectrum() == geometric(64, 1e6)


def test_clipping_key():
    values = config(rope_parameters=entry("linear", factor=2.0, clip_low_n=5, clip_mode="hard"))
    assert spectrum_from_config(values) == geometric(64).linear(2.0).clipped(5, "hard")


@pytest.mark.parametrize(
    "more",
    [
        {"rope_parameters": entry("linear")},
        {"rope_parameters": entry("linear", factor="2")},
        {"rope_parameters": entry("linear", factor=math.nan)},
        {"rope_parameters": entry("longrope", short_factor=[1.0] * 3, long_factor=[1.0] * 32)},
        {"rope_parameters": entry("longrope", short_factor=[1.0] * 32)},
        {"rope_parameters": "yarn"},
        {"rope_parameters": entry("yarn", factor=2.0, original_max_position_embeddings=0)},
        {"rope_parameters": entry("yarn", factor=2.0, original_max_position_embeddings="4096")},
        {"rope_parameters": entry("yarn", factor=2.0, original_max_position_embeddings=2048, truncate="false")},
        {"rope_parameters": entry("yarn", factor=2.0, original_max_position_embeddings=2048, attention_factor="1")},
        {"rope_parameters": entry("yarn", factor=2.0, original_max_position_embeddings=2048, attention_factor=0.0)},
        {"rope_parameters": entry("default", fraction="0.5")},
        {"rope_parameters": entry("default", fraction=math.nan)},
        {"rope_parameters": entry("default", base=[1e4])},
        {"rope_theta": 1e4, "rotary_dim": 66},
        {"rope_theta": 1e4, "head_dim": -2},
        {"rope_theta": 1e4, "max_position_embeddings": "4096"},
    ],
)
def test_what_is_missing_or_no_number(more):
    with pytest.raises(ConfigError):
        spectrum_from_config(config(**more), length=10)


# ---- and back --------------------------------------------------------------------------------------------------------

LADDER = geometric(64, 5e5)
SPECTRA = {
    "default": [LADDER, LADDER.abf(1e6), LADDER.ntk(4.0), LADDER.dynamic_ntk(9000, 4096, factor=2.0)],
    "linear": [LADDER.linear(4.0), LADDER.abf(1e7).linear(2.0)],
    "yarn": [
        LADDER.yarn(8.0, 4096),
        LADDER.yarn(8.0, 4096, attention_factor=1.0, slow=2.0),
        LADDER.yarn(8.0, 4096, truncate=False),
    ],
    "llama3": [LADDER.llama3()],
    "proportional": [p_rope(LADDER, 0.75)],
    "longrope": [
        LADDER.clipped(8),
        LADDER.clipped(8, "hard"),
        LADDER.yarn(8.0, 4096, ramp="paper"),
        LADDER.yarn(8.0, 4096).clipped(3),
        LADDER.dprope(512, 1024),
        LADDER.linear(2.0).ntk(2.0),
        Spectrum(tuple(reversed(LADDER.inv_freq)), 1.3),
        LADDER.longrope([1.0 + i for i in range(32)], attention_factor=1.2),
    ],
}


@pytest.mark.parametrize(
    ("kind", "spectrum"),
    [(k, s) for k, several in SPECTRA.items() for s in several],
    ids=lambda x: getattr(x, "origin", x)[:60],
)
def test_export(kind, spectrum):
    made = to_rope_parameters(spectrum, original=4096)
    assert made["rope_type"] == kind
    values = config(64, made.get("original_max_position_embeddings", 4096), rope_parameters=dict(made))
    back = read_rope_config(values)
    torch.testing.assert_close(back.spectrum().tensor(), spectrum.tensor(), rtol=1e-12, atol=0)
    inv_freq, attention_factor = theirs(values)
    torch.testing.assert_close(inv_freq.double(), spectrum.tensor(), rtol=5e-6, atol=1e-20)
    assert math.isclose(attention_factor, spectrum.attention_factor, rel_tol=1e-12)


@pytest.mark.parametrize(
    "spectrum", [geometric(32).yarn(4.0, 1024), geometric(32), geometric(14).clipped(3)], ids=lambda x: x.origin
)
def test_export_of_a_part_of_the_head(spectrum):
    made = to_rope_parameters(spectrum, head_dim=100, original=1024)
    got = read_rope_config({"head_dim": 100, "max_position_embeddings": 1024, "rope_parameters": made}).spectrum()
    torch.testing.assert_close(got.tensor(), spectrum.tensor(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "geometric(",
        "geometric('x').linear(2.0)",
        "geometric(64, base=500000.0).linear(3.0)",
        "geometric(64, base=500000.0).linear(factor=2.0, what=1)",
        "geometric(64).unknown(2).linear(2.0)",
        "print('no').linear(2.0)",
        "__import__('os').linear(2.0)",
    ],
)
def test_export_trusts_numbers_and_not_the_text(origin):
    spectrum = Spectrum(LADDER.linear(2.0).inv_freq, origin=origin)
    made = to_rope_parameters(spectrum, original=4096)
    assert made["rope_type"] == "longrope"
    back = read_rope_config(config(64, rope_parameters=made)).spectrum()
    torch.testing.assert_close(back.tensor(), spectrum.tensor(), rtol=1e-12, atol=0)


def test_export_refuses_what_does_not_fit():
    with pytest.raises(ConfigError, match="do not fit"):
        to_rope_parameters(geometric(64), head_dim=32)


def test_an_exported_spectrum_turns_as_before():
    spectrum = geometric(16).clipped(3)
    made = to_rope_parameters(spectrum)
    read = read_rope_config({"head_dim": 16, "rope_parameters": made, "max_position_embeddings": 64}).spectrum()
    q = torch.randn(1, 2, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(rw.RoPE(spectrum=read).rotate(q, q)[0], rw.RoPE(spectrum=spectrum).rotate(q, q)[0])
