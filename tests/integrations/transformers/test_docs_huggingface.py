"""The page on Hugging Face models: its examples run as they stand there."""

import re
from pathlib import Path

import pytest
import torch
from hf_families import model, tokens

from ropewalk import hf
from ropewalk.integrations.transformers.changes import SCHEDULES

PAGE = (Path(__file__).parents[3] / "docs" / "huggingface.md").read_text()
EXAMPLES = dict(re.findall(r"### ([^\n]+)\n.*?```python\n(.*?)```", PAGE, re.S))
USED = {
    "Llama 2": ["llama2"],
    "Llama 3": ["llama3"],
    "Mistral": ["mistral"],
    "Qwen2 and Qwen3": ["qwen2", "qwen3"],
    "Gemma 2": ["gemma2"],
    "Gemma 3": ["gemma3"],
    "Phi-3": ["phi3"],
    "GPT-NeoX": ["gpt_neox"],
    "StableLM": ["stablelm"],
    "OLMo 2": ["olmo2"],
    "SmolLM3": ["smollm3"],
    "Cohere": ["cohere"],
    "DeepSeek-V2 and DeepSeek-V3": ["deepseek_v2", "deepseek_v3"],
    "GPT-OSS": ["gpt_oss"],
    "ModernBERT": ["modernbert"],
}


def test_there_is_one_a_family():
    assert list(EXAMPLES) == list(USED)


@pytest.mark.parametrize(("title", "family"), [(t, f) for t, families in USED.items() for f in families])
def test_an_example_runs(title, family, tmp_path, monkeypatch):
    whole = hf.export  # whose check costs seconds, and has a test of its own
    monkeypatch.setattr(hf, "export", lambda *given, **options: whole(*given, **options, verify=False))
    space = {"model": model(family), "path": tmp_path / "out", "tokens": tokens()}
    with torch.no_grad():
        exec(compile(EXAMPLES[title], f"docs/huggingface.md, {title}", "exec"), space)
        assert space["model"](tokens()).logits.isfinite().all()


def test_every_schedule_is_named():
    for name in SCHEDULES:
        assert f"`{name}`" in PAGE
