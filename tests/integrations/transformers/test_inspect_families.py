"""Default configurations of the installed transformers: none has an error that is not one."""

from __future__ import annotations

import pytest
import transformers
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ropewalk.analysis.inspection.configuration import inspect_config

# Their defaults ask for what no model can do: half of 42 channels is 21, and 2048 / 28 is a head of 73, an odd width.
IMPOSSIBLE = {
    "glm4_moe": "21 channels", "glm4v_moe": "21 channels", "glm4v_moe_text": "21 channels", "qwen3_omni_moe": "73",
    "qwen3_omni_moe_text": "73", "qwen3_omni_moe_thinker": "73",
}  # fmt: skip

QUICK = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_text", "phi3", "gpt_neox", "stablelm", "olmo2", "olmo3",
    "smollm3", "cohere", "deepseek_v3", "gpt_oss", "modernbert", "dbrx", "qwen2_vl", "bert", "gptj", "smolvlm",
)  # fmt: skip


def check(name):
    transformers.logging.set_verbosity_error()
    found = inspect_config(AutoConfig.for_model(name).to_dict())
    errors = [f.title for f in found.findings if f.severity == "error"]
    if name in IMPOSSIBLE:
        assert errors
        assert all(IMPOSSIBLE[name] in title for title in errors)
    else:
        assert errors == []
    return found


@pytest.mark.parametrize("name", QUICK)
def test_defaults_have_no_errors(name):
    check(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of configurations while they are made
def test_no_family_has_a_false_error():
    seen = 0
    for name in CONFIG_MAPPING:
        try:
            AutoConfig.for_model(name)
        except Exception:  # it needs arguments, or packages that are not there
            continue
        seen += bool(check(name).sections)
    assert seen > 300


def test_layer_types_are_told_apart():
    names = [s.name for s in check("gemma3_text").sections]
    assert {"Frequencies, full_attention layers", "Frequencies, sliding_attention layers"} <= set(names)


def test_the_language_model_inside_another_is_found():
    (part,) = {s.name.partition("(")[2] for s in check("gemma3").sections} - {""}
    assert part.startswith("text_config)")
