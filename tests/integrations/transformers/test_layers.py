"""`ropewalk verify --hf`: two checkpoints of one model, layer by layer."""

import json

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from ropewalk import hf
from ropewalk.cli import app
from ropewalk.core.errors import ConfigError
from ropewalk.functional import convert_pairing
from ropewalk.integrations.transformers.layers import capture

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def llama(folder, seed=0, change=None, **options):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **options))
    if change is not None:
        change(model)
    model.save_pretrained(folder)
    return folder


def test_the_same_model_twice(tmp_path):
    a, b = llama(tmp_path / "a"), llama(tmp_path / "b")
    verdict = hf.verify_models(a, b)
    assert verdict.same, str(verdict)
    assert len(verdict.layers) == 2
    assert verdict.logits == 0.0


def test_another_base_is_named_in_every_layer(tmp_path):
    a, b = (
        llama(tmp_path / "a"),
        llama(tmp_path / "b", rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}),
    )
    out = CliRunner().invoke(app, ["verify", "--hf", str(a), str(b), "--json"])
    assert out.exit_code == 1, out.output
    said = json.loads(out.output)
    assert [v["first"]["same"] for v in said["layers"]] == [True, True]
    assert [v["second"]["findings"][0]["cause"] for v in said["layers"]] == ["base", "base"]


def test_permuted_weights_want_the_other_pairing(tmp_path):
    def permute(model):
        for layer in model.model.layers:
            for name, heads in (("q_proj", 4), ("k_proj", 2)):
                weight = getattr(layer.self_attn, name).weight
                weight.data = convert_pairing(weight.data, heads, "half", "interleaved")

    a, b = llama(tmp_path / "a"), llama(tmp_path / "b", change=permute)
    verdict = hf.verify_models(a, b)
    assert not verdict.same
    assert [f.cause for f in verdict.findings] == ["permuted"]
    assert verdict.layers[0].second.errors[0].cause == "pairing"


def test_layers_of_several_types_and_the_model_as_it_was(tmp_path):
    torch.manual_seed(0)
    config = Gemma3TextConfig(**SHAPE, sliding_window=16, layer_types=["sliding_attention", "full_attention"])
    model = Gemma3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    verdict = hf.verify_models(tmp_path, tmp_path)
    assert verdict.same, str(verdict)
    ids = torch.arange(12)[None]
    before = model(ids).logits
    capture(model, ids)
    assert not any(m._forward_pre_hooks for m in model.modules())
    torch.testing.assert_close(model(ids).logits, before)


def test_what_is_no_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        hf.verify_models(llama(tmp_path / "a"), tmp_path / "nothing")
