"""The Triton kernel of rotations, run by Triton's interpreter on the CPU, and what happens where Triton does not run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ropewalk.core import rotation

CASES = Path(__file__).with_name("triton_rotary_cases.py")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton cannot be imported")


@needs_triton
def test_every_case_through_the_interpreter():
    """In a process of its own: Triton decides when it is imported how kernels run."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    for name in [n for n in environment if n.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(command, env=environment, cwd=CASES.parents[2], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "failed" not in done.stdout


def test_without_triton_rotations_are_pure(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert rotation._kernel.__wrapped__(torch.device("cpu")) is None


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels run everywhere")
def test_where_the_kernel_does_not_run_one_warning_says_why():
    with pytest.warns(UserWarning, match=r"does not run on cpu \(.*C compiler"):
        assert rotation._kernel.__wrapped__(torch.device("cpu")) is None


def test_the_cpu_needs_no_triton():
    code = (
        "import sys, torch\nfrom ropewalk.functional import apply_rotary, rotary_tables\n"
        "apply_rotary(torch.ones(1, 1, 2, 4), *rotary_tables(torch.arange(2), head_dim=4))\n"
        "assert 'ropewalk.core.rotation' in sys.modules\n"
        "assert not {'triton', 'ropewalk.core.rotation_triton'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
