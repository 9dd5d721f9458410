"""The Triton kernel of two scores, run by Triton's interpreter on the CPU, and what is said where Triton does not run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from interpreter import needs_triton, run_cases

import ropewalk as rw
from ropewalk.backends import two_scores
from ropewalk.core import rotation
from ropewalk.core.attention import AtLeast

CASES = Path(__file__).with_name("triton_two_scores_cases.py")


@needs_triton
def test_every_case_through_the_interpreter():
    run_cases(CASES)


def test_on_a_cpu_another_takes_it_and_it_says_why():
    q = torch.randn(1, 2, 40, 8)
    p = rw.ReRoPE(8, window=4)(rw.Attention(q, q, q))
    assert "triton cannot: it runs on CUDA devices with Triton, not on cpu" in rw.explain(p)
    assert "triton cannot: it is for two scores" in rw.explain(rw.RoPE(8)(rw.Attention(q, q, q)))
    with pytest.raises(rw.BackendError, match="Able to: sdpa, blocks, dense"):
        rw.attend(p, "triton")


def test_a_device_without_triton(monkeypatch):
    monkeypatch.setattr(rotation, "_kernel", lambda device: None)
    assert not two_scores.runs_on(torch.device("cuda"))
    monkeypatch.setattr(rotation, "_kernel", lambda device: rotation)
    assert two_scores.runs_on(torch.device("cuda"))
    assert not two_scores.runs_on(torch.device("cpu"))


def test_at_least():
    i, j = torch.arange(5)[:, None], torch.arange(5)[None]
    assert torch.equal(AtLeast(2)(i, j), i - j >= 2)
    assert AtLeast(2) == AtLeast(2) != AtLeast(3)
