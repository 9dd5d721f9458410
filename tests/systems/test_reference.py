"""The reader of golden values."""

from __future__ import annotations

import math

import pytest
import torch
from reference import FOLDER, close, golden, parse


def test_formulas_and_infinities():
    want = torch.tensor([math.sin(0.5 * n + 0.1) for n in range(6)], dtype=torch.float64)
    close(parse("sin(0.5 n + 0.1) (2,3)"), want.reshape(2, 3))
    assert parse("cos(2 n) (1,4)").shape == (1, 4)
    assert parse("1/sqrt(head_dim)") == "1/sqrt(head_dim)"
    assert parse(["-inf", 0.0]).isneginf().tolist() == [True, False]


def test_every_file_is_read_in_full_precision():
    for path in FOLDER.glob("*.json"):
        assert golden(path.stem)
    q = golden("066")["rope_interleaved_N6_d8_b10000"].inputs["q"]
    assert q.dtype == torch.float64
    assert q[0, 0, 0, 1].item() == 0.361615432


def test_a_comparison_can_fail():
    a = torch.tensor([1.0, 2.0])
    with pytest.raises(AssertionError, match="of the scale"):
        close(a, a + 1e-3, 1e-5)
    with pytest.raises(AssertionError):
        close(a, torch.tensor([1.0, -torch.inf]))
    close(a, torch.tensor([1.0, -torch.inf]), where=torch.tensor([True, False]))
