"""Runs the cases of a Triton kernel on the CPU, by Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton cannot be imported")


def run_cases(file, timeout=1200):
    """In a process of its own: Triton decides when it is imported how kernels run."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    for name in [n for n in environment if n.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(
        command, env=environment, cwd=file.parents[2], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "failed" not in done.stdout
