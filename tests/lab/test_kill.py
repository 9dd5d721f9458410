"""A comparison that is killed again and again ends with the numbers of one that was left alone, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from small import comparable

from ropewalk.lab.runs import read_results

COMMAND = ["compare", "rope", "fox", "--task", "needle", "--train-length", "12", "--eval-lengths", "8,24"]
COMMAND += ["--hidden-size", "16", "--num-heads", "2", "--seeds", "1", "--batch-size", "32", "--tokens", "120000"]
COMMAND += ["--windows", "8", "--checkpoint-every", "20", "--device", "cpu", "--quiet"]


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *COMMAND, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_points(tmp_path, kills):
    began = time.monotonic()
    undisturbed = start(tmp_path / "undisturbed")
    _, said = undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 0, said.decode()
    whole = time.monotonic() - began

    chance = random.Random(kills)
    killed = finished = 0
    while killed < kills:
        process = start(tmp_path / "killed")
        # Killing the driver alone leaves its worker to find out by itself; killing both is what a power cut does.
        group = chance.random() < 0.5
        try:
            _, said = process.communicate(timeout=chance.uniform(0.2, 1.0) * whole)
        except subprocess.TimeoutExpired:
            (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
            process.stderr.close()
            killed += 1
            continue
        assert process.returncode == 0, said.decode()
        finished += 1  # the whole run was done before the kill: begin the next one from nothing
        check(tmp_path)
        (tmp_path / "killed").rename(tmp_path / f"done-{finished}")
    last = start(tmp_path / "killed")
    _, said = last.communicate(timeout=300)
    assert last.returncode == 0, said.decode()
    check(tmp_path)


def check(tmp_path):
    ours, theirs = tmp_path / "killed", tmp_path / "undisturbed"
    assert comparable(read_results(ours)) == comparable(read_results(theirs))
    for name in ("rope-s0", "fox-s0"):
        model = f"models/{name}/model.safetensors"
        assert (ours / model).read_bytes() == (theirs / model).read_bytes()
    assert not [p for p in ours.rglob(".*") if p.name != ".lock"]
