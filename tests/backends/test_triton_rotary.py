"""The Triton kernel of rotations, run by Triton's interpreter on the CPU, and what happens where Triton does not run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interpreter import needs_triton, run_cases

from ropewalk.core import rotation

CASES = Path(__file__).with_name("triton_rotary_cases.py")


@needs_triton
def test_every_case_through_the_interpreter():
    run_cases(CASES)


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
