"""Functions and classes of source code as segments."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk.coordinates.code import code_positions, code_segments, sample_code, segment_starts

SNIPPET = (
    "# head|import os||def f(x):|_return x||# note|y = 1|z = 2|@dec|class A:|_z = 2|_def g(self):|__return 3|_w = 4||def h():|"
    "_def inner():|__pass"
)
BY_LINE = [0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 6, 6]


def snippet(indent="    ", newline="\n"):
    return SNIPPET.replace("|", newline).replace("_", indent) + newline


def lines(source):
    """The spans of the lines, with what ends them."""
    spans, begin = [], 0
    for line in source.splitlines(keepends=True):
        spans.append((begin, begin + len(line)))
        begin += len(line)
    return spans


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("indent", ["    ", "\t", " "])
def test_segments_of_the_paper_by_line(indent, newline):
    source = snippet(indent, newline)
    assert code_segments(source, lines(source)).tolist() == BY_LINE


@pytest.mark.parametrize("broken", ["def f(:\n", "x = (\n", "\0"])
def test_what_does_not_parse_is_read_line_by_line(broken):
    source = snippet() + broken
    assert code_segments(source, lines(source)).tolist()[:19] == BY_LINE


def test_both_ways_of_reading_python_agree():
    for body in (
        "x = 1\n",
        "class A:\n    x = 1\n    def f(self): pass\n    async def g(self): pass\n    y = 2\n    z = 3\nq = 1\n",
        "@a\n@b\nasync def f():\n    pass\n@c\ndef g():\n    pass\nclass B: pass\nclass C: pass\n",
        "if x:\n    def f():\n        pass\ny = 1\ndef g(): pass\ny = 2\n",
        "class A:\n    @p\n    @q\n    def f(self):\n        def inner(): pass\n        return inner\n"
        "    @p\n    def g(self): pass\n",
    ):
        spans = lines(body)
        assert code_segments(body, spans).tolist() == code_segments(body + "x = (\n", spans).tolist(), body


def test_a_token_is_where_its_first_sign_is():
    source = "x = 1\n\ndef f():\n    pass\n"
    spans = [(0, 5), (5, 6), (6, 7), (6, 10), (10, 13), (14, 23), (24, 24)]
    assert code_segments(source, spans).tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert code_segments("é = 'ü'; ß = 2\ndef f(): pass\n", [(0, 7), (9, 14), (15, 18)]).tolist() == [0, 0, 1]


def test_text_that_is_odd():
    assert code_segments("", []).tolist() == []
    assert code_segments("", [(0, 0)]).tolist() == [0]
    assert code_segments("# nothing\n", [(0, 9)]).tolist() == [0]
    assert code_segments('"""\x0c\u2028"""\nx = "\\d"\ndef f(): pass\n', [(0, 3), (23, 26)]).tolist() == [0, 1]


def test_numbers_never_fall_on_real_code():
    import argparse
    import inspect

    source = inspect.getsource(argparse)
    spans = lines(source)
    found = code_segments(source, spans)
    assert bool((found.diff() >= 0).all()) and int(found[-1]) > 100
    assert torch.equal(code_segments(source, spans, segment_starts), found)  # a function of one's own


def test_statements():
    source = "x = 1\nif x:\n    y = 2\n    z = 3\n"
    assert code_segments(source, lines(source), level="statement").tolist() == [0, 1, 2, 3]
    assert code_segments(source + "(", lines(source), level="statement").tolist() == [0, 1, 2, 3]


def test_positions_carry_both_counts():
    source = snippet()
    positions = code_positions(source, lines(source))
    tokens = positions.query
    assert tokens.position.tolist() == [list(range(19))]
    assert tokens.column("segment").tolist() == [BY_LINE]
    assert tokens.column("intra").tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 0, 1, 0, 1, 2]]
    assert tokens.next.tolist() == [19]
    assert code_positions("", []).query.length == 0


def test_sample():
    positions = sample_code(3, 11, torch.Generator().manual_seed(0))
    segment, intra = (positions.query.column(n) for n in ("segment", "intra"))
    assert bool((segment.diff() >= 0).all()) and int(segment.max()) > 0
    assert torch.equal(intra == 0, torch.cat([torch.ones(3, 1, dtype=torch.bool), segment.diff() > 0], 1))


def test_errors():
    with pytest.raises(rw.ShapeError, match="offsets"):
        code_segments("x", [(0, 2)])
    with pytest.raises(rw.ShapeError, match="in the order"):
        code_segments("x = 1", [(4, 5), (0, 1)])
    with pytest.raises(rw.ConfigError, match="Did you mean 'function'"):
        code_segments("x", [], level="functions")
    with pytest.raises(rw.ConfigError, match="pip install"):
        code_segments("x", [], "no-such-language")
    with pytest.raises(rw.ConfigError, match="Python only"):
        code_segments("x", [], "java", level="statement")


def test_tree_sitter_reads_python_as_python_does():
    pytest.importorskip("tree_sitter")
    pytest.importorskip("tree_sitter_python")
    source = snippet()
    from ropewalk.coordinates.code import _tree_sitter

    starts = _tree_sitter(source, "python")
    assert sorted(set(starts)) == segment_starts(source)


def test_tree_sitter_reads_javascript():
    pytest.importorskip("tree_sitter")
    pytest.importorskip("tree_sitter_javascript")
    source = (
        "// head\nimport a from 'ä';\nexport function f() {\n  return 1;\n}\nlet y = 1;\n"
        "class A {\n  x = 1;\n  g() {}\n  z = 2;\n}\n"
    )
    assert code_segments(source, lines(source), "javascript").tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 4, 5, 5]
