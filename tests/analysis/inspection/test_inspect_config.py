"""Configurations without weights: what is wrong in them is found, with its number, and what is right is left alone."""

from __future__ import annotations

import json
import math

import pytest
import torch

from ropewalk.analysis.inspection.configuration import inspect_config, parse_dtype, table_error
from ropewalk.analysis.inspection.reading import read_parts
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import geometric


def config(**more):
    made = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 8192,
        "rope_theta": 500_000.0,
    }
    return {k: v for k, v in {**made, **more}.items() if v is not None}


def scaled(rope_type, **more):
    outer = {k: more.pop(k) for k in list(more) if k in ("model_type", "max_position_embeddings", "layer_types")}
    return config(rope_scaling={"rope_type": rope_type, **more}, **outer)


LLAMA31 = scaled(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
    max_position_embeddings=131072,
)


def said(values, severity=None, **options):
    found = inspect_config(values, **options).findings
    return [f for f in found if severity is None or f.severity == severity]


def one(values, part, **options):
    """Return the only finding that speaks of something."""
    found = [f for f in said(values, **options) if part in f.title]
    assert len(found) == 1, [f.title for f in said(values, **options)]
    return found[0]


# ---- models that work are left alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        config(),
        LLAMA31,
        config(rope_theta=1e6, max_position_embeddings=32768, model_type="mistral"),
        config(max_position_embeddings=4096, rope_theta=10_000.0),  # Llama 2
        config(hidden_size=576, num_attention_heads=9, rope_theta=100_000.0),  # SmolLM2
    ],
)
def test_models_that_work_have_neither_errors_nor_warnings(values):
    assert [f for f in said(values) if f.severity != "note"] == []


def test_a_configuration_without_rotary_keys_is_a_note():
    (finding,) = said({"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12})
    assert finding.severity == "note"
    assert "says nothing" in finding.title


@pytest.mark.parametrize("values", [{}, 3, None, "config.json"])
def test_no_configuration_at_all(values):
    with pytest.raises(ConfigError, match="configuration"):
        inspect_config(values)


# ---- the configuration's own mistakes, as they were met in the field ------------------------------------------------------


def mistakes():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 8192}
    yield scaled("yarn", factor=4.0, original_max_position_embedings=8192), "original_max_position_embedings"
    yield scaled("yarn", factor=4.0, old_context_len=8192), "old_context_len"
    yield config(rope_thetta=1e6), "rope_thetta"
    yield config(rope_theta=None, rope_thetta=1e6), "rope_thetta"
    yield (
        config(rope_scaling={"rope_type": "yarn", **yarn}, rope_parameters={"rope_type": "linear", "factor": 2.0}),
        "both",
    )
    yield config(rope_scaling={"rope_type": "yarn", "type": "linear", **yarn}), "both given"
    yield config(rope_parameters={"rope_type": "default", "rope_theta": 1e4}), "different things"
    yield config(rope_scaling={"factor": 4.0}), "rope_type"
    yield scaled("yran", **yarn), "unknown"
    yield scaled("yarn", **yarn) | {"original_max_position_embeddings": 4096}, "different things"
    yield (
        scaled("longrope", short_factor=[1.0] * 64, long_factor=[1.0] * 63, original_max_position_embeddings=4096),
        "64",
    )
    yield config(hidden_size=65 * 32), "65"
    yield config(head_dim=4, partial_rotary_factor=0.75, model_type="phi"), "odd"
    yield scaled("linear", factor=0.25), "at least 1"
    yield scaled("yarn", factor=math.nan, original_max_position_embeddings=8192), "factor"
    yield config(head_dim=1 << 40), "at most"
    yield config(num_hidden_layers=10**400), "num_hidden_layers"
    yield config(max_position_embeddings=1e300), "positions can count"
    yield scaled("yarn", factor=1e300, original_max_position_embeddings=8192), "positions can count"
    yield config(rope_theta=-1.0), "base"
    yield config(rope_theta=math.nan), "base"
    yield config(partial_rotary_factor=0.5), "do not know partial_rotary_factor"


@pytest.mark.parametrize(("values", "part"), list(mistakes()))
def test_mistakes_are_errors_that_say_what_to_change(values, part):
    errors = said(values, "error")
    assert any(part in f.title for f in errors), [f.title for f in said(values)]
    assert all(f.fix for f in errors)


def test_a_factor_that_is_not_the_ratio_of_the_lengths():
    values = scaled("yarn", factor=4.0, original_max_position_embeddings=8192, max_position_embeddings=16384)
    finding = one(values, "factor is 4.0")
    assert (finding.severity, finding.number) == ("warning", 2.0)
    assert "Correct" in finding.fix


def test_the_ratio_that_is_right_is_not_mentioned():
    values = scaled("yarn", factor=4.0, original_max_position_embeddings=8192, max_position_embeddings=32768)
    assert not [f for f in said(values) if "factor is" in f.title]


def test_keys_that_a_type_does_not_use():
    finding = one(scaled("linear", factor=2.0, beta_fast=32), "beta_fast")
    assert finding.severity == "warning"
    assert "changes nothing" in finding.title


def test_one_scaling_for_layers_of_two_types():
    values = scaled("linear", factor=8.0, layer_types=["full_attention", "sliding_attention"], model_type="other")
    assert one(values, "one rope_scaling for layers").severity == "warning"


def test_no_base():
    finding = one(config(rope_theta=None, rope_scaling={"rope_type": "linear", "factor": 2.0}), "no base")
    assert finding.severity == "warning"


# ---- frequencies against a context ---------------------------------------------------------------------------------------


def test_planes_that_meet_new_angles():
    finding = one(config(), "beyond those of 8192", context=32768)
    turns = [8192 * 500_000.0 ** (-i / 64) / (2 * math.pi) for i in range(64)]
    assert finding.number == sum(t < 1 for t in turns) == 29
    assert "factor 4" in finding.fix


def test_interpolated_planes_meet_none():
    assert not [f for f in said(scaled("linear", factor=4.0), context=8192) if "beyond those" in f.title]


def test_sliding_layers_see_their_window_only():
    values = config(max_position_embeddings=32768, rope_theta=10_000.0, model_type="mistral", sliding_window=4096)
    assert not said(values, "warning", context=131072)
    assert one(values, "less than a random one", context=131072).number < 4096
    assert said({**values, "sliding_window": None}, "warning")


def test_the_published_case_of_a_base_too_small():
    """Mistral v0.1 at its claimed 32k: φ 3.78, cos φ −0.80 (sheet 009)."""
    values = config(max_position_embeddings=32768, rope_theta=10_000.0, model_type="mistral")
    finding = one(values, "past a quarter turn")
    assert finding.severity == "warning"
    assert finding.number == pytest.approx(3.78, abs=5e-3)
    assert "-0.80" in finding.evidence


def test_the_phase_budgets_of_the_sheet():
    for base, length, phase in ((1e4, 4096, 0.473), (5e5, 8192, 0.020), (5e5, 131072, 0.322), (1e6, 32768, 0.041)):
        sections = inspect_config(config(rope_theta=base), context=length).sections
        rows = next(s for s in sections if s.name == "Bounds").tables[0].rows
        assert float(rows[0][1].split()[0]) == pytest.approx(phase, abs=1e-3)


def test_the_sum_of_cosines_is_warned_of_beyond_the_claimed_context_only():
    assert one(config(rope_theta=10_000.0), "less than a random one").severity == "note"
    assert one(config(rope_theta=10_000.0), "less than a random one", context=65536).severity == "warning"


def test_layer_types_are_inspected_by_themselves():
    values = config(
        model_type="gemma3_text",
        rope_theta=None,
        sliding_window=1024,
        layer_types=["full_attention", "sliding_attention"],
        max_position_embeddings=131072,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    )
    names = [s.name for s in inspect_config(values).sections]
    assert "Frequencies, full_attention layers" in names
    assert "Frequencies, sliding_attention layers" in names
    assert not [f for f in said(values) if f.severity != "note"]  # the sliding layers' base would fail at 131072


def test_a_part_of_a_configuration_names_itself():
    finding = one({"text_config": config(rope_thetta=1.0), "vision_config": {"hidden_size": 8}}, "rope_thetta")
    assert finding.title.startswith("text_config: ")


def test_layers_without_rotary_are_a_note():
    values = config(
        rope_theta=None,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": None},
    )
    assert one(values, "have no rotary encoding").severity == "note"


def test_the_context_that_yarn_speaks_of():
    values = scaled("yarn", factor=4.0, original_max_position_embeddings=32768, max_position_embeddings=32768)
    (part,) = read_parts(values)
    assert part.ladders[0].claimed == 131072
    assert inspect_config(values).context == 131072


# ---- tables in low precision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tables_built_in_half_precision_are_wrong_far_out(dtype):
    finding = one(config(), f"in {str(dtype)[6:]}, angles at position 8191", dtype=dtype)
    assert finding.number == 0.5


def test_the_table_that_was_reported():
    """gpt-neox#1003: cos is off by 0.78 at position 1857, head 32, frequencies and angles in bf16."""
    spectrum = geometric(32)
    positions = torch.tensor([1857.0], dtype=torch.float64)
    formed = (positions.to(torch.bfloat16)[:, None] * spectrum.tensor().to(torch.bfloat16)).double()
    off = (formed.cos() - (positions[:, None] * spectrum.tensor()).cos()).abs().max()
    assert off > 0.5
    assert table_error(spectrum, 1858, torch.bfloat16, angles=True).phase > 0.25


def test_float32_is_right_to_a_thousandth_of_a_turn_at_a_hundred_thousand():
    error = table_error(geometric(128, 5e5), 131072, torch.float32, angles=True)
    assert 1e-5 < error.phase < 2e-3
    assert one(config(), "in float32, angles", context=1 << 21).number > 0.01


def test_rounding_cos_and_sin_alone_costs_half_a_step():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        error = table_error(geometric(64), 4096, dtype, angles=False)
        assert 0 < error.score < torch.finfo(dtype).eps
        assert error.phase < torch.finfo(dtype).eps / math.pi


def test_planes_that_stand_still_have_no_error():
    spectrum = geometric(8).keep([0, 1])
    assert table_error(spectrum, 200_000, torch.float16, angles=True).phase == 0.5
    assert table_error(spectrum.keep([]), 200_000, torch.float32, angles=True).phase == 0.0


@pytest.mark.parametrize(
    ("text", "dtype"), [("bf16", torch.bfloat16), ("FP16", torch.float16), ("float32", torch.float32)]
)
def test_names_of_dtypes(text, dtype):
    assert parse_dtype(text) is dtype


def test_other_dtypes_are_refused():
    with pytest.raises(ConfigError, match="fp8"):
        parse_dtype("fp8")
    with pytest.raises(ConfigError, match="float64"):
        inspect_config(config(), dtype=torch.float64)
    with pytest.raises(ConfigError, match="context"):
        inspect_config(config(), context=0)
    with pytest.raises(ConfigError, match="context"):
        inspect_config(config(), context=1 << 60)


def test_very_many_layers():
    assert inspect_config(config(num_hidden_layers=1 << 50)).errors == 0


# ---- the value itself -----------------------------------------------------------------------------------------------------


def test_it_is_plain_json_with_the_gravest_first():
    values = scaled("linear", factor=2.0, beta_fast=1, model_type="llama") | {"partial_rotary_factor": 0.5}
    made = inspect_config(values, context=65536)
    text = json.dumps(made.as_dict(), allow_nan=False)
    read = json.loads(text)
    assert [f["severity"] for f in read["findings"]] == sorted(
        (f["severity"] for f in read["findings"]), key=["error", "warning", "note"].index
    )
    assert sum(read["counts"].values()) == len(read["findings"])
    assert made.errors == read["counts"]["error"] == 1
    planes = next(s for s in read["sections"] if s["name"] == "Frequencies")["tables"][0]["rows"]
    assert len(planes) == 32
