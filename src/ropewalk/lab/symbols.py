"""What a file of code defines: a question about all of it, and files that are made up.

    question, answer = symbol_question(source)
    share = symbol_recall(source, what_the_model_wrote)

After HiRoPE's code symbol understanding (arXiv 2403.19115, 2024; see `ropewalk.rotary.hirope.HiRoPE`).
"""

from __future__ import annotations

import ast
import re
import warnings

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError, check_positive

ASKED = "# The functions and classes defined above are:"


def code_symbols(source: str) -> list[str]:
    r"""Return the names of all functions and classes of a Python file, nested ones too, each once, in their order.

    Raises:
        ConfigError: a file that does not parse.

    Example:
        >>> code_symbols("class A:\n    def f(self): pass\n\ndef g(): pass\n")
        ['A', 'f', 'g']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise ConfigError(f"the source does not parse as Python: {problem}") from problem
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = sorted((n.lineno, n.col_offset, n.name) for n in ast.walk(tree) if isinstance(n, kinds))
    return list(dict.fromkeys(name for _, _, name in found))


def symbol_question(source: str) -> tuple[str, str]:
    """Return a file with the question at its end, and the answer."""
    names = code_symbols(source)
    if not names:
        raise ConfigError("the source defines no function and no class, so there is nothing to ask")
    return f"{source.rstrip()}\n\n{ASKED}", f" {', '.join(names)}\n"


def symbol_recall(source: str, answer: str) -> float | None:
    """Return the share of the names of `code_symbols` that stand in an answer as whole words; None: there are no names."""
    names = code_symbols(source)
    written = set(re.findall(r"\w+", answer))
    return sum(name in written for name in names) / len(names) if names else None


def synthetic_code(functions: int, generator: Generator, *, lines: tuple[int, int] = (2, 6)) -> str:
    """Return a file of functions that use each other and their own names again and again.

    Args:
        functions: how many.
        generator: of everything random.
        lines: fewest and most lines of a body.
    """
    check_positive(functions=functions)
    if not 1 <= lines[0] <= lines[1]:
        raise ConfigError(f"lines {lines}: the fewest, at least 1, and the most")

    def draw(n: int) -> int:
        return int(torch.randint(n, (1,), generator=generator))

    def name(syllables: int) -> str:
        return "".join("bdfgklmnprstvz"[draw(14)] + "aeiou"[draw(5)] for _ in range(syllables))

    defined: list[str] = []
    text = []
    while len(defined) < functions:
        fresh = f"f_{name(3)}"
        if fresh in defined:
            continue
        own = [f"x_{name(2)}" for _ in range(2 + draw(2))]
        body = []
        for _ in range(lines[0] + draw(lines[1] - lines[0] + 1)):
            left, right = own[draw(len(own))], own[draw(len(own))]
            call = (
                f"{defined[draw(len(defined))]}({right})"
                if defined and draw(2)
                else f"{right} {'+-*'[draw(3)]} {draw(10)}"
            )
            body.append(f"    {left} = {call}\n")
        text.append(f"def {fresh}({', '.join(own)}):\n{''.join(body)}    return {own[draw(len(own))]}\n")
        defined.append(fresh)
    return "\n\n".join(text)
