"""`ropewalk inspect`: what it prints and writes, and its exit status."""

from __future__ import annotations

import json

import pytest

from ropewalk.cli import main

GOOD = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
    "rope_theta": 500_000.0,
}


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        with pytest.raises(SystemExit) as done:
            main(["inspect", *map(str, arguments)])
        out = capsys.readouterr()
        return done.value.code, out.out, out.err

    return call


@pytest.fixture
def save(tmp_path):
    def write(values, name="config.json"):
        file = tmp_path / name
        file.write_text(values if isinstance(values, str) else json.dumps(values))
        return file

    return write


def test_a_good_configuration(run, save):
    code, out, _ = run(save(GOOD))
    assert code == 0
    assert "0 errors, 0 warnings" in out
    assert "stands" not in out
    assert "wavelength" in out


def test_a_folder_and_a_file_are_the_same(run, save):
    file = save(GOOD)
    assert run(file)[1] == run(file.parent)[1]


def test_errors_are_status_1_and_come_with_a_change(run, save):
    code, out, _ = run(save({**GOOD, "rope_thetta": 1e6}))
    assert code == 1
    assert "error: the configuration has 'rope_thetta'" in out
    assert "change: Did you mean 'rope_theta'?" in out


def test_json_is_json_alone(run, save):
    code, out, err = run(save(GOOD), "--json", "--context", "16384", "--dtype", "bf16")
    read = json.loads(out)
    assert (code, err, read["context"], read["dtype"]) == (0, "", 16384, "bfloat16")
    assert read["counts"]["warning"] >= 2
    assert {"severity", "title", "number", "evidence", "fix"} == set(read["findings"][0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "fp8"], "fp8"),
        (["--context", "0"], "context"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_bad_options_are_status_2(run, save, arguments, message):
    code, out, err = run(save(GOOD), *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("content", ["{", "[1]", "null", "[" * 100_000, "\udcff"])
def test_bad_files_are_status_2(run, tmp_path, content):
    file = tmp_path / "config.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert run(file)[0] == 2


def test_nothing_there_is_status_2(run, tmp_path):
    assert "does not exist" in run(tmp_path / "no.json")[2]
    code, _, err = run(tmp_path)
    assert code == 2
    assert "no config.json and no .gguf" in err


def test_the_report_and_its_numbers(run, save, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "made" / "here"
    code, printed, _ = run(save({**GOOD, "partial_rotary_factor": 0.5}), "--out", out)
    assert code == 1
    assert f"wrote {out / 'report.html'}" in printed
    assert json.loads((out / "inspection.json").read_text())["counts"]["error"] == 1
    page = (out / "report.html").read_text()
    assert "Error: llama models do not know partial_rotary_factor" in page
    assert sorted(p.name for p in out.iterdir()) == ["inspection.json", "report.html"]


def test_out_is_no_file(run, save, tmp_path):
    file = save(GOOD)
    assert run(file, "--out", file)[0] == 2


def test_weights_and_text(run, tmp_path):
    pytest.importorskip("matplotlib")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [f"w{i}" for i in range(60)]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*words, "?"])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "model"
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    transformers.set_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(words[i * 7 % 60] for i in range(90)))
    out = tmp_path / "out"
    code, printed, err = run(folder, "--text", text, "--tokens", "24", "--texts", "2", "--out", out)
    assert code == 0, err
    sections = json.loads((out / "inspection.json").read_text())["sections"]
    assert len(sections) > 8
    assert any(s["heats"] for s in sections)
    assert (out / "report.html").read_text().count("<figure") >= 3
    assert "Configuration: understood" in printed
