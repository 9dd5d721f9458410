"""What is said of a checkpoint, and every bad input: an error before anything is written."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import TEXT, TRAINED, llama, save
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel

from ropewalk.cli import main
from ropewalk.core.errors import ConfigError, UnknownNameError
from ropewalk.lab.errors import DataError
from ropewalk.lab.extend import Extension, extend
from ropewalk.lab.extend.checkpoint import read_checkpoint, wanted_length
from ropewalk.lab.extend.methods import method


def settings(checkpoint, **more):
    few = {"windows": 2, "needles": 0, "definitions": 0, "data": TEXT}
    return Extension(str(checkpoint), **{"to": "2x", "methods": ("pi",), **few, **more})


def copied(checkpoint, folder, **config):
    """A copy with other entries in its config.json; None takes one out."""
    shutil.copytree(checkpoint, folder)
    file = folder / "config.json"
    values = {**json.loads(file.read_text()), **config}
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return folder


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} if folder.is_dir() else {}


def refused(source, out, match, error=ConfigError, **more):
    """By the function and by the command; nothing is written, and the checkpoint stays as it is."""
    before = contents(source)
    with pytest.raises(error, match=match) as caught:
        extend(settings(source, **more), out)
    arguments = ["extend", str(source), "--to", more.get("to", "2x"), "--out", str(out), "--windows", "2"]
    for option, values in (("--method", more.get("methods", ("pi",))), ("--text", more.get("data", TEXT))):
        arguments += [part for value in values for part in (option, value)]
    arguments += [part for name in more.get("lm_eval", ()) for part in ("--lm-eval", name)]
    with contextlib.redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and re.search(match, " ".join(said.getvalue().split()))
    assert "Traceback" not in said.getvalue() and not out.exists() and contents(source) == before
    return str(caught.value)


def test_it_is_described(checkpoint):
    made = read_checkpoint(checkpoint)
    told = made.describe()
    assert told["family"] == "llama" and told["trained_length"] == TRAINED and told["base"] == {"all": 10_000.0}
    assert told["scaling"] is None and told["quantised"] is None
    (said,) = made.sentences()
    assert "trained for 64 tokens, base 10000, no scaling" in said


@pytest.mark.parametrize("text, tokens", [("4x", 256), ("1.5x", 96), ("200", 200), ("1_000", 1000), ("2k", 2048)])
def test_wanted_lengths(text, tokens):
    assert wanted_length(text, TRAINED) == tokens


@pytest.mark.parametrize("text", ["64", "1x", "0.5x", "32"])
def test_lengths_within_the_trained_one_are_refused(text):
    with pytest.raises(ConfigError, match="nothing to extend"):
        wanted_length(text, TRAINED)


@pytest.mark.parametrize("text", ["long", "x", "-2x", "1.3", "nan", "inf", "1e400"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(ConfigError, match="--to"):
        wanted_length(text, TRAINED)


def test_arguments_follow_from_the_checkpoint(checkpoint):
    made = read_checkpoint(checkpoint)
    assert str(method("yarn", made, 256)) == "yarn(factor=4, original=64)"
    assert str(method("PI", made, 96)) == "linear(factor=1.5)"
    assert str(method("ntk > clipped", made, 128)) == "ntk(factor=2) > clipped(planes=5)"
    assert str(method("dprope", made, 128)) == "dprope(length=128, original=64)"
    assert str(method("dynamic_ntk", made, 128)) == "dynamic_ntk(original=64)"
    assert str(method("string_shifted", made, 128)) == "string_shifted(shift=21, local=2)"
    assert "base=500000" in str(method("entropy_abf", made, 128))
    assert str(method("yarn(factor=8)", made, 256)) == "yarn(factor=8, original=64)"
    assert str(method("rope + alibi", made, 256)) == "rope + alibi"
    assert str(method("hirope", made, 256)) == "hirope(train_length=64, window=16)"
    assert "length=256" in str(method("self_extend", made, 256)) and "window=32" in str(method("rerope", made, 256))


def test_what_goes_on_top_of_other_frequencies(checkpoint):
    made = read_checkpoint(checkpoint)
    assert str(method("dope", made, 128)) == "ntk(factor=2) > dope(train_length=64)"
    assert str(method("dope(mode='parts')", made, 128)).endswith("> dope(train_length=64, mode='parts')")
    assert str(method("yarn > dope", made, 128)).startswith("yarn(factor=2, original=64) > dope")
    assert str(method("psc", made, 128)) == "linear(factor=2) > psc"
    assert str(method("attention_temperature", made, 128)) == "rope + log_length_scale"


def test_no_such_folder(tmp_path):
    refused(tmp_path / "nothing", tmp_path / "out", "no folder or file .*hf download")


def test_learned_absolute_positions(tmp_path):
    config = GPT2Config(vocab_size=257, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    refused(save(GPT2LMHeadModel(config), tmp_path / "gpt2"), tmp_path / "out", "learned absolute positions")


def test_biases_instead_of_rotation(tmp_path):
    config = BloomConfig(vocab_size=257, hidden_size=32, n_layer=1, n_head=2)
    refused(save(BloomForCausalLM(config), tmp_path / "bloom"), tmp_path / "out", "rotary|rotat|max_position")


def test_missing_weights(checkpoint, tmp_path):
    folder = copied(checkpoint, tmp_path / "lacking")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    refused(folder, tmp_path / "out", "lacks 1 weights.*up_proj")


def test_tied_weights_that_are_said_to_be_apart(checkpoint, tmp_path):
    folder = copied(checkpoint, tmp_path / "untied", tie_word_embeddings=False)
    refused(folder, tmp_path / "out", "lm_head.*tie_word_embeddings is false")


def test_missing_shards(tmp_path):
    folder = tmp_path / "sharded"
    llama().save_pretrained(folder, max_shard_size="100KB")
    (lost, *_) = sorted(folder.glob("*-of-*.safetensors"))
    lost.unlink()
    assert lost.name in refused(folder, tmp_path / "out", "lacks 1 of its")


def test_pickled_weights(checkpoint, tmp_path):
    folder = copied(checkpoint, tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refused(folder, tmp_path / "out", "pickled weights only.*convert them once")


def test_no_tokenizer(checkpoint, tmp_path):
    folder = copied(checkpoint, tmp_path / "dumb")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    refused(folder, tmp_path / "out", "has no tokenizer")


@pytest.mark.parametrize(
    "config, match",
    [
        ({"rope_parameters": {"rope_type": "yarm", "rope_theta": 1e4, "factor": 2.0}}, "'yarm' is unknown.*'yarn'"),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
                "rope_scaling": {"type": "linear", "factor": 4.0},
            },
            "rope_scaling .* and rope_parameters .* different things",
        ),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "faktor": 2.0}}, "'faktor'"),
        ({"architectures": ["LlamaForCausalLN"]}, "LlamaForCausalLM"),
        ({"architectures": ["LlamaModel"]}, "give a causal language model"),
    ],
)
def test_configurations(checkpoint, tmp_path, config, match):
    refused(copied(checkpoint, tmp_path / "wrong", **config), tmp_path / "out", match)


def test_a_scaling_is_not_stacked_on_another(checkpoint, tmp_path):
    entry = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    folder = copied(checkpoint, tmp_path / "scaled", rope_parameters=entry)
    refused(folder, tmp_path / "out", r"scaled already.*linear.*factor 2.*--force")
    assert read_checkpoint(folder, force=True).scaled


def test_text_that_is_too_short(checkpoint, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("def short():\n    return 1\n" * 4)
    said = refused(checkpoint, tmp_path / "out", "need a document of 129 tokens", DataError, data=(str(text),))
    assert f"has {len(text.read_text())}" in said


def test_text_that_is_not_there(checkpoint, tmp_path):
    refused(checkpoint, tmp_path / "out", "no file or folder", data=(str(tmp_path / "nothing"),))


@pytest.mark.parametrize(
    "more, error, match",
    [
        ({"methods": ("yarm",)}, UnknownNameError, "Did you mean 'yarn'"),
        ({"methods": ("yarn(factor=4", )}, ConfigError, "missing"),
        ({"methods": ("yarn(faktor=4)",)}, ConfigError, "faktor"),
        ({"methods": ("p_rope",)}, ConfigError, "needs p"),
        ({"methods": ("unchanged",)}, ConfigError, "measured with every run"),
        ({"to": "64"}, ConfigError, "nothing to extend"),
    ],
)  # fmt: skip
def test_methods(checkpoint, tmp_path, more, error, match):
    refused(checkpoint, tmp_path / "out", match, error, **more)


@pytest.mark.parametrize(
    "more, match",
    [
        ({"methods": ("pi", "pi")}, "named twice"),
        ({"methods": ()}, "at least one method"),
        ({"choose": "yarn"}, "--choose is one of"),
        ({"recipe": "endpromt"}, "Did you mean 'endprompt'"),
        ({"windows": 0}, "windows"),
        ({"tune": -1}, "tune"),
        ({"lr": float("nan")}, "learning rate"),
        ({"depths": (0.0, 2.0)}, "depths"),
        ({"search": "genetic"}, "longrope"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_settings(more, match):
    with pytest.raises(ConfigError, match=match):
        Extension("x", **{"to": "2x", "methods": ("pi",), **more})


def test_lm_eval_where_it_is_not_installed(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    refused(checkpoint, tmp_path / "out", r"pip install 'lm-eval\[hf\]'", lm_eval=("hellaswag",))


def test_a_folder_that_holds_something_else(checkpoint, tmp_path):
    from ropewalk.lab.errors import RunError

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("dear to somebody")
    with pytest.raises(RunError, match="holds other files"):
        extend(settings(checkpoint), tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]
