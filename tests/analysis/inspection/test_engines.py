"""Where engines part, by rule; and the rules about transformers against the installed one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ropewalk.analysis.inspection.configuration import inspect_config
from ropewalk.analysis.inspection.engines import IGNORE_FRACTION, SOURCES, markdown

ROOT = Path(__file__).parents[3]
BASE = {"hidden_size": 512, "num_attention_heads": 4, "max_position_embeddings": 32768, "rope_theta": 1e6}


def findings(rope, model="llama", **more):
    values = {**BASE, "model_type": model, "rope_scaling": rope, **more}
    section = next(s for s in inspect_config(values).sections if s.name == "Engines")
    return section.findings


def about(found, part):
    (finding,) = [f for f in found if part in f.title]
    return finding


def test_plain_frequencies_are_read_alike():
    assert findings(None) == ()
    assert findings({"rope_type": "linear", "factor": 2.0}) == ()


def test_yarn_without_further_keys_is_read_alike():
    assert findings({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}) == ()


def test_yarn_with_both_scales():
    """Factor 16 with both 1.0 wants 1.0 and gets 1.277."""
    rope = {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 2048,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    finding = about(findings(rope), "vLLM at 07b12f1b16d5")
    assert finding.severity == "warning"
    assert "1.277" in finding.title
    assert finding.number == pytest.approx(1 / 1.2772588722239781)
    assert about(findings(rope), "llama.cpp").fix.startswith("write attention_factor 1")
    assert about(findings(rope, model="deepseek_v3"), "vLLM at 07b12f1b16d5").severity == "note"  # a file of its own


def test_a_given_attention_factor():
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "attention_factor": 1.0}
    assert about(findings(rope), "attention factor").number == pytest.approx(1 / 1.138629436111989)


def test_truncate_inside_a_layer_type_is_an_error():
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 8192,
        "truncate": False,
    }
    values = {**BASE, "model_type": "olmo3", "layer_types": ["full_attention", "sliding_attention"], "rope_theta": None}
    values["rope_parameters"] = {
        "full_attention": yarn,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e6},
    }
    errors = [f for f in inspect_config(values).findings if f.severity == "error"]
    assert len(errors) == 1
    assert "truncate" in errors[0].title


def test_dynamic_scaling_is_static_elsewhere():
    found = findings({"rope_type": "dynamic", "factor": 4.0})
    assert about(found, "vLLM").number == 4.0
    assert about(found, "llama.cpp").severity == "warning"


def longrope(**more):
    return {
        "rope_type": "longrope",
        "short_factor": [1.0] * 64,
        "long_factor": [4.0] * 64,
        "original_max_position_embeddings": 4096,
        **more,
    }


def test_longrope():
    found = findings(longrope(attention_factor=1.5), model="phi3")
    assert about(found, "short requests").number == 8.0
    assert "short_mscale" in about(found, "vLLM does not read attention_factor").fix
    assert "phi.py" in about(found, "llama.cpp computes").evidence
    assert [f.title for f in findings(longrope(), model="phi3") if "attention_factor" in f.title] == []
    assert about(findings(longrope()), "llama.cpp's common part").severity == "warning"


def test_equal_factors_do_not_depend_on_the_length():
    found = findings({**longrope(), "long_factor": [1.0] * 64}, model="phi3")
    assert [f for f in found if "short requests" in f.title] == []


def test_llama3_with_another_original_length():
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    finding = about(findings({**rope, "original_max_position_embeddings": 4096}), "llama.cpp takes 8192")
    assert finding.number == 0.5
    assert findings({**rope, "original_max_position_embeddings": 8192}) == ()
    assert findings(rope, original_max_position_embeddings=4096) == ()


def test_a_fraction_that_the_class_does_not_know():
    finding = about(findings(None, partial_rotary_factor=0.5), "do not know")
    assert (finding.severity, finding.number) == ("error", 0.5)
    assert "all 128 channels" in finding.title
    assert findings(None, model="phi", partial_rotary_factor=0.5) == ()


def test_a_base_in_the_new_place_alone():
    values = {**BASE, "rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    finding = about(inspect_config(values).findings, "top level")
    assert (finding.severity, finding.number) == ("note", 100.0)
    assert "DeepSpeed#8345" in finding.evidence


def test_a_gguf_file_is_not_compared():
    assert "Engines" not in [s.name for s in inspect_config(BASE, compare_engines=False).sections]


# ---- against what is installed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", IGNORE_FRACTION)
def test_these_models_do_not_know_the_fraction(model):
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("transformers is not installed")
    name = model.removesuffix("_text")
    file = Path(spec.origin).parent / "models" / name / f"modeling_{name}.py"
    text = file.read_text(encoding="utf-8")
    assert "partial_rotary_factor" not in text
    assert "inv_freq" in text


# ---- one table ------------------------------------------------------------------------------------------------------------


def test_every_source_names_its_revision_and_file():
    assert all(s.revision and s.file.endswith((".py", "file")) for s in SOURCES)
    assert len({(s.engine, s.revision, s.file) for s in SOURCES}) == len(SOURCES)


def test_the_page_shows_the_table():
    assert markdown() in (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
