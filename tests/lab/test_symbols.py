"""Files of code, and what they define."""

from __future__ import annotations

import ast
import itertools

import pytest
import torch

import ropewalk as rw
from ropewalk.coordinates.code import since_begun
from ropewalk.core.errors import ConfigError
from ropewalk.lab.symbols import ASKED, code_symbols, symbol_question, symbol_recall, synthetic_code

SOURCE = '''import os
class Box(dict):
    """def not_me(): pass"""
    def size(self):
        async def inner(): pass
        return 1
def size(): return lambda: 0
'''


def test_names():
    assert code_symbols(SOURCE) == ["Box", "size", "inner"]
    assert code_symbols("x = 1") == []


def test_questions_and_recall():
    question, answer = symbol_question(SOURCE)
    assert question.endswith(f"return lambda: 0\n\n{ASKED}")
    assert answer == " Box, size, inner\n"
    assert symbol_recall(SOURCE, answer) == 1
    assert symbol_recall(SOURCE, "Boxes and size") == pytest.approx(1 / 3)
    assert symbol_recall(SOURCE, "") == 0
    assert symbol_recall("x = 1", "x") is None


def test_made_up_files():
    source = synthetic_code(12, torch.Generator().manual_seed(0))
    assert source == synthetic_code(12, torch.Generator().manual_seed(0))
    tree = ast.parse(source)
    assert len(tree.body) == len(code_symbols(source)) == 12
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assert len(calls) > 5
    segments = rw.code_segments(source, [(i, i + 1) for i in range(len(source))])
    assert segments.max() == 11


def test_tokens_since_a_segment_began():
    segment = torch.tensor([[0, 0, 1, 1, 1, 4], [2, 3, 3, 3, 4, 4]])
    assert since_begun(segment).tolist() == [[0, 1, 0, 1, 2, 0], [0, 0, 1, 2, 0, 1]]
    assert since_begun(segment[:, :0]).shape == (2, 0)
    for row in segment:
        counted = [i for _, group in itertools.groupby(row.tolist()) for i, _ in enumerate(group)]
        assert since_begun(row[None])[0].tolist() == counted


def test_bad_input():
    with pytest.raises(ConfigError, match="does not parse"):
        code_symbols("def f(:")
    with pytest.raises(ConfigError, match="nothing to ask"):
        symbol_question("x = 1")
    with pytest.raises(ConfigError, match="the fewest"):
        synthetic_code(1, torch.Generator(), lines=(3, 2))
