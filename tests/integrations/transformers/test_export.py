"""Checkpoints for engines that have never heard of ropewalk, loaded by plain transformers in a process of its own."""

import json
import subprocess
import sys
import warnings

import pytest
import torch
from hf_families import FAMILIES, LLAMA3, YARN, model, tokens
from safetensors.torch import load_file, save_file

from ropewalk import hf
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import RopeConfigWarning, geometric
from ropewalk.integrations.transformers import command
from ropewalk.integrations.transformers import export as module

RELOAD = module.SCRIPT.read_text().replace('if __name__ == "__main__":', "if False:")
SEVERAL = f"""{RELOAD}
import warnings
warnings.simplefilter("ignore")
transformers.utils.logging.set_verbosity_error()
for folder in sys.argv[2:]:
    main(folder, sys.argv[1], folder + "/answer")
"""

CHANGES = [
    ("yarn", {"factor": 4}),
    ("linear", {"factor": 2}),
    ("clipped", {"planes": 2}),
    ("llama3", {"factor": 4}),
    ("p_rope", {"p": 0.5}),
    ("ntk", {"factor": 3}),
]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Each family with one schedule after the other, exported; the models' logits and those of plain transformers."""
    root = tmp_path_factory.mktemp("exported")
    made = {}
    asked = {"input_ids": tokens(2, 8), "position_ids": torch.stack([torch.arange(8), torch.arange(8) * 9])}
    save_file(asked, root / "asked")
    with torch.no_grad():
        for i, family in enumerate(FAMILIES):
            what, arguments = CHANGES[i % len(CHANGES)]
            changed = hf.apply(model(family), what, **arguments)
            written = hf.export(changed, root / family, verify=False)
            made[family] = (hf.spectrum(changed), written, changed(**asked, use_cache=False)[0])
    folders = [str(root / family) for family in FAMILIES]
    run = subprocess.run(
        [sys.executable, "-c", SEVERAL, str(root / "asked"), *folders], capture_output=True, text=True, cwd=root
    )
    assert run.returncode == 0, run.stderr
    return {family: (*values, load_file(root / family / "answer")) for family, values in made.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_transformers_computes_the_same(exported, family):
    spectra, written, wanted, answer = exported[family]
    torch.testing.assert_close(answer["logits"], wanted, atol=1e-4, rtol=1e-4)
    (place,) = {key.rpartition(".")[0] for key in answer if key.endswith("inv_freq")}
    for layer_type, spectrum in spectra.items():
        prefix = "" if layer_type == "all" else f"{layer_type}_"
        got = answer[f"{place}.{prefix}inv_freq"].double()
        torch.testing.assert_close(got, spectrum.tensor(), rtol=1e-5, atol=1e-20)
    config = json.loads((written.path / "config.json").read_text())
    assert "ropewalk" not in config
    assert written.difference is None and "not checked" in str(written)


def test_clipped_cope_end_to_end(tmp_path):
    """Verified by the export itself: loaded and run where ropewalk cannot be imported."""
    made = hf.apply(model("llama3"), "clipped", planes=4)
    written = hf.export(made, tmp_path / "out", max_length=128)
    assert 0 <= written.difference < 1e-4
    entry = written.entries["all"]
    assert entry["rope_type"] == "longrope" and entry["short_factor"] == entry["long_factor"]
    assert entry["long_factor"][-1] >= 1e29  # a plane that stands still
    assert entry["short_mscale"] == entry["long_mscale"] == entry["attention_factor"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_parameters"] == entry
    assert config["max_position_embeddings"] == 128
    assert config["original_max_position_embeddings"] == LLAMA3["original_max_position_embeddings"]
    assert any("stand still" in line for line in written.lost)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RopeConfigWarning)  # keys that other engines read
        again = hf.spectrum(config)["all"]
    assert again.inv_freq == pytest.approx(hf.spectrum(made)["all"].inv_freq, rel=1e-12)


@pytest.mark.parametrize(
    ("what", "arguments", "rope_type"),
    [
        ("linear", {"factor": 2}, "linear"),
        ("yarn", {"factor": 4}, "yarn"),
        ("llama3", {"factor": 8}, "llama3"),
        ("abf", {"base": 1e6}, "default"),
        ("ntk", {"factor": 2}, "default"),
        ("p_rope", {"p": 0.5}, "proportional"),
        ("clipped", {"planes": 3}, "longrope"),
        ("ntk_by_parts", {"factor": 4}, "longrope"),
    ],
)
def test_a_type_of_its_own_where_there_is_one(what, arguments, rope_type, tmp_path):
    made = hf.apply(model("llama2"), what, **arguments)
    assert hf.export(made, tmp_path, verify=False).entries["all"]["rope_type"] == rope_type


def test_a_model_that_was_never_changed(tmp_path):
    entries = hf.export(model("llama3"), tmp_path, verify=False).entries
    assert entries["all"] == LLAMA3


def test_an_unusual_temperature_is_written_in_every_spelling(tmp_path):
    made = hf.apply(model("llama2"), "yarn", factor=4, attention_factor=1.5)
    entry = hf.export(made, tmp_path, verify=False).entries["all"]
    assert entry["attention_factor"] == 1.5
    assert entry["attn_factor"] * geometric(16).yarn(4, 64).attention_factor == pytest.approx(1.5)


def test_the_scale_of_all_logits_survives(tmp_path):
    """DeepSeek multiplies its softmax scale by what mscale_all_dim says, also beside other frequencies."""
    made = model("deepseek_v3")
    scaling = made.model.layers[0].self_attn.scaling
    assert scaling != made.model.layers[0].self_attn.qk_head_dim ** -0.5
    hf.export(hf.apply(made, "clipped", planes=2), tmp_path, verify=False)
    assert hf.load(tmp_path).model.layers[0].self_attn.scaling == pytest.approx(scaling, rel=1e-12)


def test_layer_types_get_entries_of_their_own(tmp_path):
    made = model("gemma3")
    hf.apply(made, {"full_attention": hf.spectrum(made)["full_attention"].linear(8)})
    entries = hf.export(made, tmp_path, verify=False).entries
    assert {t: e["rope_type"] for t, e in entries.items()} == {
        "full_attention": "linear",
        "sliding_attention": "default",
    }


def test_what_a_layer_type_cannot_say_natively(tmp_path):
    """`truncate` of a layer type is not read by transformers, so the native entry would be another spectrum."""
    made = model("gemma3", max_position_embeddings=512)
    yarn = geometric(16).yarn(4, 512, truncate=False)
    hf.apply(made, {"full_attention": yarn})
    assert hf.export(made, tmp_path, verify=False).entries["full_attention"]["rope_type"] == "longrope"


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_encodings_are_no_entry(tmp_path):
    with pytest.raises(hf.CannotExport, match=r"has an encoding \(ALiBi\).*all of it would be lost"):
        hf.export(hf.apply(model("llama2"), "alibi"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="is not empty"):
        hf.export(model("llama2"), tmp_path)


def test_logits_that_differ_are_not_exported(tmp_path):
    """Something that no checkpoint holds: a hook of the user's."""
    made = model("llama2")
    made.model.layers[0].register_forward_hook(lambda layer, args, out: out + 1)
    with pytest.raises(hf.CannotExport, match=r"computes other logits .* apart \(relative\)"):
        hf.export(made, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# ---- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ropewalk.hf", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            command.main()
        return (stop.value.code or 0, *capsys.readouterr())

    return call


def test_the_command_line_without_writing_code(run, tmp_path):
    model("llama2").save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    status, out, _ = run("spectrum", tmp_path / "in")
    assert status == 0 and "geometric(16, base=10000.0)" in out
    status, _, err = run("apply", tmp_path / "in", "yarn(factor=4)", "clipped(planes=3)", "--to", tmp_path / "applied")
    assert status == 0, err
    wanted = geometric(16).yarn(4, 64).clipped(3)
    assert hf.spectrum(hf.load(tmp_path / "applied"))["all"] == wanted
    status, out, _ = run("spectrum", tmp_path / "applied")
    assert status == 0 and ".clipped(3, 'soft')" in out
    status, out, err = run("export", tmp_path / "applied", "--to", tmp_path / "out", "--no-verify")
    assert status == 0 and "longrope" in out, err
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    status, out, _ = run("apply", tmp_path / "in", "rope + fox", "--to", tmp_path / "fox")
    assert status == 0 and [type(e).__name__ for e in hf.encodings(hf.load(tmp_path / "fox"))] == ["Sequential"] * 2


def test_the_command_line_says_what_is_wrong(run, tmp_path):
    model("llama2", rope_parameters=YARN).save_pretrained(tmp_path / "in")
    status, _, err = run("apply", tmp_path / "in", "yarn(factr=4)", "--to", tmp_path / "out")
    assert status == 2 and "Did you mean 'factor'?" in err
    status, _, err = run("apply", tmp_path / "in", "yarn(factor=4)", "--to", tmp_path / "in")
    assert status == 2 and "is not empty" in err
    status, _, err = run("spectrum", tmp_path / "nowhere")
    assert status == 2 and "cannot be read" in err


def test_without_transformers_the_message_names_the_extra():
    code = "import sys; sys.modules['transformers'] = None; import ropewalk.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "ConfigError" in done.stderr and "pip install 'ropewalk[hf]'" in done.stderr


def test_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "ropewalk.hf", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "spectrum" in done.stdout and "export" in done.stdout
