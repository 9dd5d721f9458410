"""One trial across processes: the gradients of a whole batch, positions of each row its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from small import texts

from ropewalk.lab.runs import read_results

pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

SMALL = ["--train-length", "32", "--eval-lengths", "32,64", "--hidden-size", "16", "--num-heads", "2"]
SMALL += ["--batch-size", "8", "--windows", "8", "--tokens", "8000", "--checkpoint-every", "10", "--quiet"]


DDP = ["--cpu"]
FSDP = ["--use_fsdp", "--fsdp_version", "2"]


def start(processes, how, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = [*how, "--num_processes", str(processes), "--num_machines", "1", "--main_process_port", port]
    where += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return subprocess.Popen(
        [sys.executable, "-m", "accelerate.commands.launch", *where, "-m", "ropewalk.lab.train", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        start_new_session=True,
    )


def launch(processes, how, *arguments):
    process = start(processes, how, *arguments)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said[-3000:]


def results(folder):
    return {(r["kind"], r.get("length")): r for r in read_results(folder)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return texts(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    launch(1, DDP, "fox", "--data", data, *SMALL, "--out", str(folder))
    return results(folder)


@pytest.mark.parametrize("how", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_two_processes_train_what_one_does(alone, data, tmp_path, how):
    given = ["fox", "--data", data, *SMALL, "--out"]
    launch(2, how, *given, str(tmp_path / "both"))
    both = results(tmp_path / "both")
    assert alone.keys() == both.keys()
    assert both["curve", None]["loss"] == pytest.approx(alone["curve", None]["loss"], abs=1e-4)
    for length in (32, 64):
        assert both["loss", length]["mean"] == pytest.approx(alone["loss", length]["mean"], abs=2e-3)
    config = json.loads((tmp_path / "both" / "models" / "fox-s0" / "config.json").read_text())
    assert config["encodings"] == ["fox"]

    # killed after its first checkpoint, it goes on with the same numbers
    process = start(2, how, *given, str(tmp_path / "killed"))
    checkpoint = tmp_path / "killed" / "trials" / "fox-s0" / "checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None, process.stderr.read()[-3000:]
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    launch(2, how, *given, str(tmp_path / "killed"))
    again = results(tmp_path / "killed")
    assert again["curve", None]["loss"] == both["curve", None]["loss"]
    assert again["loss", 64]["documents"] == both["loss", 64]["documents"]
