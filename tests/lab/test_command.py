"""`ropewalk compare` and `ropewalk report` as commands."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from small import texts

from ropewalk.cli import main, spread
from ropewalk.core.errors import ConfigError
from ropewalk.lab.command import merged, numbers, read_config
from ropewalk.lab.settings import Settings

SMALL = ["--train-length", "12", "--eval-lengths", "8,24", "--hidden-size", "16", "--num-heads", "2"]
SMALL += ["--seeds", "1", "--batch-size", "8", "--windows", "8", "--device", "cpu"]


def ropewalk(capsys, *arguments):
    """Run a command in this process: exit status, standard output, standard error."""
    try:
        main([str(a) for a in arguments])
        status = 0
    except SystemExit as left:
        status = left.code or 0
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_comparison_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "run"
    given = [
        "compare",
        "rope",
        "--layers",
        "rope:1,nope:1",
        "--task",
        "needle",
        "--tokens",
        "2000",
        *SMALL,
        "--out",
        out,
    ]
    status, table, progress = ropewalk(capsys, *given)
    assert status == 0
    assert "rope:1,nope:1" in table and f"report: {out}" in table.replace("\n", "")
    assert "rope-s0: done" in progress and "done" not in table
    assert "<html" in (out / "report.html").read_text()
    # the same again: nothing to train
    status, summary, progress = ropewalk(capsys, *given, "--json")
    assert status == 0 and progress == ""
    found = json.loads(summary)
    assert {row["encoding"] for row in found["encodings"]} == {"rope", "rope:1,nope:1"}
    (out / "report.html").unlink()
    status, again, _ = ropewalk(capsys, "report", out)
    assert status == 0 and again == table and (out / "report.html").exists()


def test_a_configuration_file(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'encodings = ["rope", "alibi"]\ntokens = 5000\ntrain-length = 32\nhidden_size = 16\n'
        'lr-sweep = [0.001, 0.01]\nlayers = "rope:3,nope:1"\n[shape]\nnum_heads = 2\n'
    )
    said = {"tokens": 7000, "task": None, "data": None}
    settings = Settings.from_dict(merged(read_config(file), said, {"num_layers": 3, "head_dim": None}))
    assert settings.encodings == ("rope", "alibi", "rope:3,nope:1")
    assert settings.tokens == 7000 and settings.train_length == 32 and settings.lr_sweep == (0.001, 0.01)
    assert dict(settings.shape) == {"hidden_size": 16, "num_heads": 2, "num_layers": 3}
    file.write_text("tokens = = 3")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_config(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    assert numbers("--eval-lengths", "1_024, 512", int) == [1024, 512]
    with pytest.raises(ConfigError, match="whole numbers"):
        numbers("--eval-lengths", "1k", int)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["rpoe"], "Did you mean"),
        (["hope"], "several methods"),
        (["rope", "--task", "nedle"], "no task is called"),
        (["rope", "--data", "/no/such/place"], "/no/such/place"),
        (["rope", "--size", "giant"], "tiny, small, medium"),
        (["rope", "--tokens", "0"], "tokens is a whole number"),
        (["rope", "--eval-lengths", "a"], "whole numbers between commas"),
        (["rope", "--device", "nonsense"], "device"),
        (["rope", "--task", "copy", "--data", "x"], "--task text"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys, arguments, said):
    status, out, error = ropewalk(capsys, "compare", *arguments, "--out", tmp_path / "run")
    assert status == 2 and out == ""
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "run" / "results.jsonl").exists()


def test_report_of_nothing(tmp_path, capsys):
    status, _, error = ropewalk(capsys, "report", tmp_path)
    assert status == 2 and "no folder of a run" in error


def test_a_failed_trial_sets_the_status(tmp_path, capsys):
    given = [
        "compare",
        "rope",
        "nope",
        "--task",
        "needle",
        "--tokens",
        "2000",
        *SMALL,
        "--lr",
        "1e30",
        "--out",
        tmp_path / "r",
    ]
    status, table, progress = ropewalk(capsys, *given)
    assert status == 1
    assert "smaller --lr may help" in " ".join(table.split()) and "rope-s0: failed" in progress


def test_text_of_ones_own(tmp_path, capsys):
    data = [texts(tmp_path / "a"), texts(tmp_path / "b", documents=20, words=200)]
    small = [*SMALL[:2], "--eval-lengths", "12,48", *SMALL[4:]]
    given = ["compare", "rope", "--data", data[0], data[1], "--tokens", "4000", *small]
    status, table, _ = ropewalk(capsys, *given, "--out", tmp_path / "run", "--track", "tensorboard")
    assert status == 0 and "@48" in table
    asked = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert sum(asked["workload"]["documents"].values()) == 60 - asked["workload"]["repeated"]
    pytest.importorskip("tensorboard")
    assert list((tmp_path / "run" / "tracking").rglob("events.out.*"))


def test_data_takes_several_values():
    assert spread(["rope", "--data", "a", "b", "--seeds", "2"]) == [
        "rope",
        "--data",
        "a",
        "--data",
        "b",
        "--seeds",
        "2",
    ]
    assert spread(["--data=a", "rope", "--data"]) == ["--data=a", "rope", "--data"]


def test_help_needs_no_torch():
    code = (
        "import sys\nfrom ropewalk.cli import main\ntry: main(['compare', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_help_tells_the_true_defaults(capsys):
    _, text, _ = ropewalk(capsys, "compare", "--help")
    text = " ".join(text.replace("│", " ").split())
    default = Settings()
    for name, shown in (
        ("tokens", f"{default.tokens:,}"),
        ("batch-size", default.batch_size),
        ("lr", default.lr),
        ("weight-decay", default.weight_decay),
        ("seeds", default.seeds),
        ("windows", default.windows),
        ("checkpoint-every", default.checkpoint_every),
        ("size", default.size),
    ):
        assert f"Default: {shown}." in text.split(f"--{name} ")[1].split(" --")[0], name
    assert "Default: " + " ".join(default.encodings) in text
