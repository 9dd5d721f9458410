"""What was applied comes back with the checkpoint."""

import json

import pytest
import torch
from hf_families import FAMILIES, model, tokens

import ropewalk as rw
from ropewalk import hf
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import geometric


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_frequencies_come_back(family, tmp_path):
    made = hf.apply(hf.apply(model(family), "yarn", factor=4), "clipped", planes=2)
    made.save_pretrained(tmp_path)
    again = hf.load(tmp_path)
    assert hf.spectrum(again) == hf.spectrum(made)
    assert again.config.to_dict()["ropewalk"] == made.config.to_dict()["ropewalk"]
    assert torch.equal(again(tokens()).logits, made(tokens()).logits)
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(hf.load(tmp_path / "again")(tokens()).logits, made(tokens()).logits)
    assert "ropewalk" not in hf.remove(again).config.to_dict()
    assert torch.equal(again(tokens()).logits, model(family)(tokens()).logits)


@pytest.mark.parametrize("what", ["rope + fox", "dynamic_ntk(factor=2)", ["alibi", "nope"], "rope(base=100)"])
@pytest.mark.parametrize("family", ["llama3", "gemma3", "deepseek_v2"])
def test_encodings_come_back_with_what_they_learned(family, what, tmp_path):
    made = hf.apply(hf.apply(model(family), "linear", factor=2), what)
    for name, parameter in made.named_parameters():
        if name.startswith("ropewalk."):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    made.save_pretrained(tmp_path)
    again = hf.load(tmp_path)
    assert torch.equal(again(tokens()).logits, made(tokens()).logits)
    out = again.generate(tokens(), max_new_tokens=4, do_sample=False)
    assert torch.equal(out, made.generate(tokens(), max_new_tokens=4, do_sample=False))


def test_what_was_an_object_has_to_be_given_again(tmp_path):
    encoding = rw.Sequential(rw.RoPE(16, pairing="half"), rw.ALiBi(4))
    made = hf.apply(model("llama2"), encoding)
    made.save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=r"given as objects \(Sequential\); give them again: hf\.load\(path, encoding\)"
    ):
        hf.load(tmp_path)
    assert torch.equal(hf.load(tmp_path, encoding)(tokens()).logits, made(tokens()).logits)


def test_a_checkpoint_that_was_never_changed(tmp_path):
    model("llama3").save_pretrained(tmp_path)
    assert torch.equal(hf.load(tmp_path)(tokens()).logits, model("llama3")(tokens()).logits)
    with pytest.raises(ConfigError, match="was saved without a change"):
        hf.load(tmp_path, "alibi")


def test_in_another_dtype(tmp_path):
    made = hf.apply(model("llama2"), "rope + fox")
    made.save_pretrained(tmp_path)
    again = hf.load(tmp_path, dtype=torch.bfloat16)
    assert again.dtype == torch.bfloat16
    assert {p.dtype for n, p in again.named_parameters() if n.startswith("ropewalk.")} == {torch.float32}


# ---- folders that are wrong ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    hf.apply(model("llama2"), "rope + fox").save_pretrained(tmp_path)
    return tmp_path


def test_pickled_weights(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(
        ConfigError, match=r"pickled weights only \(pytorch_model\.bin\).*safetensors\.torch\.save_file"
    ):
        hf.load(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds no weights"):
        hf.load(folder)


@pytest.mark.parametrize("size", [0, 4, 100, 5000])
def test_weights_cut_short(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        hf.load(folder)


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_no_configuration(folder, tmp_path):
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        hf.load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds a list"):
        hf.load(folder)
    with pytest.raises(ConfigError, match="cannot be read"):
        hf.load(tmp_path / "elsewhere")


def test_an_architecture_there_is_not(folder):
    change(folder, architectures=["LlamaForCausalML"])
    with pytest.raises(ConfigError, match=r"no architecture 'LlamaForCausalML'\. Did you mean 'LlamaForCausalLM'"):
        hf.load(folder)
    change(folder, architectures=[])
    with pytest.raises(ConfigError, match="expected one"):
        hf.load(folder)


def test_learned_numbers_of_other_encodings(folder):
    record = json.loads((folder / "config.json").read_text())["ropewalk"]
    change(folder, ropewalk={**record, "encodings": ["fox", "nope"]})
    with pytest.raises(ConfigError, match="it was saved with others"):
        hf.load(folder)


def test_frequencies_of_another_model(folder):
    spectrum = {"inv_freq": list(geometric(16).inv_freq), "attention_factor": 1.0, "origin": ""}
    change(folder, ropewalk={"version": "0", "spectra": {"model.other": {"all": spectrum}}})
    with pytest.raises(ConfigError, match=r"has frequencies for model\.other"):
        hf.load(folder)
