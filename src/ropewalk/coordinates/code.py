"""Where tokens are in source code: in which function or class.

A *segment* is a function, a method, what a class says before its first method, or a run of other statements between
definitions. Segments are numbered from 0 in the order of the file. Python is read by its own parser, other languages by
tree-sitter (the extra ``ropewalk[code]``), and anything else by a function of yours that says where segments begin.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError, suggest
from ropewalk.core.positions import Positions

Level = Literal["function", "statement"]

Reader = Callable[[str], Sequence[int]]
"""Says where in a text segments begin, as indices of characters."""

Span = tuple[int, int]
"""Where a token starts and stops in the text: what a tokenizer calls its offsets."""


def code_segments(
    source: str, offsets: Sequence[Span], language: str | Reader = "python", *, level: Level = "function"
) -> Tensor:
    r"""Return the segment of each token, (n,) whole numbers that do not fall.

    A segment begins at the first statement of the file, at each top-level function or class (at its decorator), at each
    method of a top-level class, and at the first other statement after a definition beside it. Nested functions, blank lines and
    comments begin nothing. A token is in the segment of its first character that is not blank.

    Args:
        source: the text.
        offsets: (start, stop) of each token in it, in order; a token without text (start = stop) is where it stands.
        language: "python" (what does not parse is read line by line), a language of tree-sitter, or a `Reader`.
        level: "statement": a segment for each statement of Python, nested ones too, instead.

    Raises:
        ConfigError: a language that cannot be read, and what to install.
        ShapeError: offsets outside the text, or out of order.

    Example:
        >>> source = "import os\ndef f(x):\n    return x\n"
        >>> code_segments(source, [(0, 6), (7, 9), (10, 13), (20, 30)]).tolist()
        [0, 0, 1, 1]
    """
    begins = segment_starts(source, language, level=level)[1:]  # what stands before the first statement goes with it
    return torch.tensor([bisect_right(begins, _place(source, span)) for span in _checked(source, offsets)]).long()


def code_positions(
    source: str, offsets: Sequence[Span], language: str | Reader = "python", *, level: Level = "function"
) -> Positions:
    """Return the positions 0, 1, 2, … of the tokens with the columns "segment" and "intra", (1, n) each.

    "intra" counts tokens since the segment began. Arguments and errors are those of `code_segments`.
    """
    segment = code_segments(source, offsets, language, level=level)
    index = torch.arange(len(segment))
    columns = {"segment": segment[None], "intra": since_begun(segment[None])}
    return Positions(index, columns=columns, next=index.new_tensor([len(index)]))


def since_begun(segment: Tensor) -> Tensor:
    """Return how many tokens of its segment stand before each token, (b, n), of segments (b, n)."""
    index = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)
    fresh = torch.ones_like(segment, dtype=torch.bool)
    fresh[:, 1:] = segment[:, 1:] != segment[:, :-1]
    return index - torch.where(fresh, index, 0).cummax(1).values if segment.shape[1] else index


def segment_starts(source: str, language: str | Reader = "python", *, level: Level = "function") -> list[int]:
    """Return where segments begin, as rising indices of characters; see `code_segments`."""
    if level not in get_args(Level):
        raise ConfigError(f"level is 'function' or 'statement'; got {level!r}.{suggest(level, get_args(Level))}")
    if not isinstance(language, str):
        starts = list(language(source))
    elif language == "python":
        starts = _python(source, level)
    elif level == "statement":
        raise ConfigError(f"segments of single statements are read from Python only, and the language is {language!r}")
    else:
        starts = _tree_sitter(source, language)
    return sorted(set(starts))


def sample_code(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw code of functions about five tokens long, each row from another place on."""
    start = torch.randint(0, 9, (batch, 1), generator=generator)
    opens = torch.rand(batch, seq, generator=generator) < 0.2
    segment = opens.long().cumsum(-1)
    return Positions(start + torch.arange(seq), columns={"segment": segment, "intra": since_begun(segment)})


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _checked(source: str, offsets: Sequence[Span]) -> Iterator[Span]:
    last = 0
    for number, (start, stop) in enumerate(offsets):
        if not last <= start <= stop <= len(source):
            raise ShapeError(
                f"token {number} is said to span {start} … {stop} of a text of {len(source)} characters, after one that starts "
                f"at {last}; offsets are (start, stop) in characters, in the order of the text"
            )
        last = start
        yield start, stop


def _place(source: str, span: Span) -> int:
    start, stop = span
    text = source[start:stop]
    blank = len(text) - len(text.lstrip())
    return start if blank == len(text) else start + blank


# ---- Python ----------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_DEFINES = re.compile(r"(?:async\s+def|def)\b")
_CLASS = re.compile(r"class\b")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _python(source: str, level: Level) -> list[int]:
    try:
        with warnings.catch_warnings():  # of odd escapes and the like, which are not ours to report
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _line_by_line(source, level)
    lines = _lines(source)
    begins = [0, *accumulate(map(len, lines))]

    def place(node: ast.stmt) -> int:
        first: ast.AST = min([node, *getattr(node, "decorator_list", ())], key=lambda n: n.lineno)
        line = lines[first.lineno - 1]  # type: ignore[attr-defined]
        if first is not node:  # a decorator is known without its sign
            return begins[first.lineno - 1] + len(line) - len(line.lstrip())  # type: ignore[attr-defined]
        return begins[node.lineno - 1] + len(line.encode()[: node.col_offset].decode())  # columns are of UTF-8

    if level == "statement":
        return [place(node) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    starts = []
    for node, opens in _openings(tree.body, (*_FUNCTIONS, ast.ClassDef), first=True):
        if opens:
            starts.append(place(node))
        if isinstance(node, ast.ClassDef):
            starts += [place(inner) for inner, opens in _openings(node.body, _FUNCTIONS, first=False) if opens]
    return starts


def _openings(
    body: Sequence[ast.stmt], definitions: tuple[type[ast.stmt], ...], *, first: bool
) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements of a body, and whether each begins a segment."""
    after = first
    for node in body:
        defines = isinstance(node, definitions)
        yield node, defines or after
        after = defines


def _lines(source: str) -> list[str]:
    """Split where Python does; `str.splitlines` also splits at signs that may stand inside a line."""
    return _LINE.findall(source)


def _line_by_line(source: str, level: Level) -> list[int]:
    """Read what does not parse by how its lines begin."""
    starts: list[int] = []
    begin, inside, body = 0, False, 0  # inside a top-level class; how far its body is indented, 0: not seen yet
    outer, inner, decorated = True, False, False  # whether the next other statement begins a segment; after a decorator
    for line in _lines(source):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        place, begin = begin + indent, begin + len(line)
        if not text or text.startswith("#"):
            continue
        if level == "statement":
            starts.append(place)
            continue
        top = indent == 0
        if top:
            inside, body = bool(_CLASS.match(text)), 0
        elif not inside or body not in (0, indent):
            continue
        else:
            body = indent
        defines = bool(_DEFINES.match(text)) or (top and bool(_CLASS.match(text)))
        decorator = text.startswith("@")
        if (defines or decorator or (outer if top else inner)) and not decorated:
            starts.append(place)
        decorated = decorator
        if top:
            outer, inner = defines, False
        else:
            inner = defines
    return starts


# ---- other languages -------------------------------------------------------------------------------------------------

# What grammars call the things that make a segment; those of a class are looked into.
_METHODS = re.compile(
    r"(function|method|constructor|destructor|generator_function|procedure|subroutine)(_(definition|declaration|item))?"
)
_CLASSES = re.compile(
    r"(class|struct|interface|trait|enum|impl|record|object|module|protocol|extension|namespace|mod)"
    r"(_(definition|declaration|item|specifier|implementation|statement))?"
)
_WRAPPERS = re.compile(r"(decorated|export|template|ambient)(_(definition|declaration|statement))?")


def _tree_sitter(source: str, language: str) -> list[int]:
    data = source.encode()
    root = _parser(language).parse(data).root_node
    starts: list[int] = []
    _walk(root, starts, first=True, classes=True)
    return [len(data[:byte].decode()) for byte in starts]


def _parser(language: str) -> Any:
    name = f"tree_sitter_{language.replace('-', '_')}"
    try:
        core, grammar = import_module("tree_sitter"), import_module(name)
    except ImportError as problem:
        raise ConfigError(
            f"reading {language!r} needs tree-sitter and its grammar ({problem}): pip install 'ropewalk[code]' "
            f"{name.replace('_', '-')}. Python is read without; for another give a function that says where segments begin"
        ) from problem
    make = getattr(grammar, "language", None) or getattr(grammar, f"language_{language.replace('-', '_')}", None)
    if make is None:
        raise ConfigError(f"{name} does not say which of its grammars is {language!r}; give a function instead")
    return core.Parser(core.Language(make()))


def _walk(body: Any, starts: list[int], *, first: bool, classes: bool) -> None:
    """Collect where segments begin among the children of a file or of the body of a class."""
    after = first
    for node in body.named_children:
        if node.is_extra or "comment" in node.type:
            continue
        inner = node
        while _WRAPPERS.fullmatch(inner.type) and inner.named_children:
            inner = inner.child_by_field_name("declaration") or inner.named_children[-1]
        is_class = bool(_CLASSES.fullmatch(inner.type))
        defines = bool(_METHODS.fullmatch(inner.type)) or (classes and is_class)
        if defines or after:
            starts.append(node.start_byte)
        after = defines
        if classes and is_class and (block := inner.child_by_field_name("body")) is not None:
            _walk(block, starts, first=False, classes=False)
