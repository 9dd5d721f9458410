"""One trial across processes: the gradients of a whole batch, positions of each row its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from small import texts

from ropewalk.lab.runs import read_results

pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

SMALL = ["--train-length", "32", "--eval-lengths", "32,64", "--hidden-size", "16", "--num-heads", "2"]
SMALL += ["--batch-size", "8", "--windows", "8", "--tokens", "8000", "--checkpoint-every", "10", "--quiet"]


def launch(processes, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = ["--cpu", "--num_processes", str(processes), "--num_machines", "1", "--main_process_port", port]
    where += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *where, "-m", "ropewalk.lab.train", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_two_processes_train_what_one_does(tmp_path):
    data = texts(tmp_path / "data")
    for processes in (1, 2):
        done = launch(processes, "fox", "--data", data, *SMALL, "--out", str(tmp_path / str(processes)))
        assert done.returncode == 0, done.stderr[-3000:]
    alone, both = ({(r["kind"], r.get("length")): r for r in read_results(tmp_path / n)} for n in ("1", "2"))
    assert alone.keys() == both.keys()
    assert both["curve", None]["loss"] == pytest.approx(alone["curve", None]["loss"], abs=1e-4)
    for length in (32, 64):
        assert both["loss", length]["mean"] == pytest.approx(alone["loss", length]["mean"], abs=2e-3)
    assert json.loads((tmp_path / "2" / "models" / "fox-s0" / "config.json").read_text())["encodings"] == ["fox"]
