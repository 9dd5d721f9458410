r"""Formulas: the place of each LaTeX token in the forest of scripts, fractions and roots that the tokens make.

    paths = latex_position_forest(["\\frac", "{", "a", "}", "{", "b", "}"])     # a: [4, 3], b: [5, 3], all else: [3]
    positions = formula_positions([paths])

A path is the branch taken at each structure from the outermost one on, and then `BASE`.

After Tongkun Guan, Chengyu Lin, Wei Shen, Xiaokang Yang. PosFormer: Recognizing Complex Handwritten Mathematical Expression with
Position Forest Transformer. arXiv 2407.07764, 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError, check_positive
from ropewalk.core.positions import Positions, Tokens

PAD, START, END, BASE, UPPER, LOWER = range(6)
"""Codes: no token, the start and the end token, the same line; upper or left (a superscript, numerator, index of a root), lower
or right (a subscript, denominator, what is under a root)."""

SPECIAL = {"<pad>": PAD, "<sos>": START, "<eos>": END}

STRUCTURE = ("{", "^", "_")
"""Tokens that have no ink."""

Direction = Literal["l2r", "r2l"]
Path = list[int]

_GROUPS: dict[str, tuple[tuple[str, str, int], ...]] = {
    "^": (("{", "}", UPPER),),
    "_": (("{", "}", LOWER),),
    "\\frac": (("{", "}", UPPER), ("{", "}", LOWER)),
    "\\sqrt": (("[", "]", UPPER), ("{", "}", LOWER)),
}
"""What follows a structure: how each group opens and closes, and its branch. The index of a root may be missing."""


def latex_position_forest(tokens: Sequence[str], direction: Direction = "l2r") -> list[Path]:
    r"""Return the path of each token, whatever the tokens are.

    A structure and the brackets of its groups are on the line of what stands around them. One that no group follows is an
    ordinary token, and so is a bracket that closes nothing; a group that never closes runs to the end of its line.

    Args:
        tokens: of LaTeX, with "<sos>", "<eos>" and "<pad>" among them or not.
        direction: "l2r", or "r2l" for tokens from the last to the first, whose paths are in their order.

    Example:
        >>> latex_position_forest(["x", "^", "{", "2", "}"])
        [[3], [3], [3], [4, 3], [3]]
    """
    if direction not in ("l2r", "r2l"):
        raise ConfigError(f"direction is 'l2r' or 'r2l'; got {direction!r}")
    paths: list[Path] = [[SPECIAL.get(token, BASE)] for token in tokens]
    order = [i for i, token in enumerate(tokens) if token not in SPECIAL]
    if direction == "r2l":
        order.reverse()
    line = [tokens[i] for i in order]
    waiting: list[tuple[int, int, Path]] = [(0, len(line), [])]  # lines: where they start and stop, and the way to them
    while waiting:
        start, stop, way = waiting.pop()
        for i in range(start, stop):
            paths[order[i]] = [*way, BASE]
        waiting += [(a, b, [*way, branch]) for a, b, branch in _groups(line, start, stop)]
    return paths


def _groups(line: Sequence[str], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Return where the groups of a line's structures start and stop, without their brackets, and their branches."""
    i = start
    while i < stop:
        kinds = _GROUPS.get(line[i], ())
        i += 1
        for opens, closes, branch in kinds:
            if i < stop and line[i] == opens:
                end = _closing(line, i, stop, opens, closes)
                yield i + 1, end, branch
                i = end + 1
            elif opens == "{":  # no group, or no more of them
                break


def _closing(line: Sequence[str], start: int, stop: int, opens: str, closes: str) -> int:
    depth = 0
    for i in range(start, stop):
        depth += (line[i] == opens) - (line[i] == closes)
        if depth == 0:
            return i
    return stop


def forest_tensor(
    paths: Sequence[Sequence[Path]], depth: int = 5, *, deeper: Literal["error", "cut"] = "error"
) -> Tensor:
    """Return the paths of several formulas, (b, n, depth), 0 where a path or a formula has ended.

    Args:
        paths: of each formula, from `latex_position_forest`.
        depth: numbers of a path.
        deeper: what becomes of longer ones. "cut": their first numbers are kept, as published, so that they lose their end.

    Raises:
        PositionError: a path longer than that.
    """
    check_positive(depth=depth)
    if deeper not in ("error", "cut"):
        raise ConfigError(f"deeper is 'error' or 'cut'; got {deeper!r}")
    made = torch.zeros(len(paths), max(map(len, paths), default=0), depth, dtype=torch.int64)
    for row, formula in enumerate(paths):
        for i, path in enumerate(formula):
            if len(path) > depth and deeper == "error":
                raise PositionError(
                    f"token {i} of formula {row} is {len(path) - 1} structures deep, and paths of {depth} numbers end at "
                    f"{depth - 1}: give a larger depth, or deeper='cut' to keep the first {depth}"
                )
            kept = path[:depth]
            made[row, i, : len(kept)] = torch.tensor(kept)
    return made


def forest_labels(paths: Sequence[Path], depth: int = 5) -> tuple[list[int], list[int]]:
    """Return how deep each token is nested and its last branch; of a path that is cut, what is left of it says so."""
    check_positive(depth=depth)
    cut = [path[:depth] for path in paths]
    return [len(path) - 1 for path in cut], [path[-2] if len(path) > 1 else path[0] for path in cut]


def forest_targets(paths: Sequence[Sequence[Path]], depth: int = 5) -> tuple[Tensor, Tensor]:
    """Return the labels of the token after each, nesting and branch, (b, n) each; the last token has those of the first.

    Rows are shifted before they are padded with 0.
    """
    size = max(map(len, paths), default=0)
    made = torch.zeros(2, len(paths), size, dtype=torch.int64)
    for row, formula in enumerate(paths):
        for kind, labels in enumerate(forest_labels(formula, depth)):
            made[kind, row, : len(labels)] = torch.tensor([*labels[1:], *labels[:1]], dtype=torch.int64)
    return made[0], made[1]


def formula_positions(
    paths: Sequence[Sequence[Path]], depth: int = 5, *, deeper: Literal["error", "cut"] = "error"
) -> Positions:
    """Count the tokens of formulas, with the column "path" (b, n, depth); shorter formulas are padded on the right.

    Arguments and errors are those of `forest_tensor`.
    """
    path = forest_tensor(paths, depth, deeper=deeper)
    valid = torch.arange(path.shape[1]) < torch.tensor([len(formula) for formula in paths])[:, None]
    tokens = Tokens.arange(path.shape[1], batch=len(paths), valid=None if bool(valid.all()) else valid)
    return Positions(tokens.with_columns(path=path))


def both_directions(formulas: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[list[Path]]]:
    """Return the formulas forwards after "<sos>" and then backwards after "<eos>", and the paths of both: 2b rows."""
    rows = [["<sos>", *f] for f in formulas] + [["<eos>", *reversed(f)] for f in formulas]
    paths = [latex_position_forest(row, "l2r" if i < len(formulas) else "r2l") for i, row in enumerate(rows)]
    return rows, paths


def sample_formulas(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw tokens somewhere in formulas, each row from another token on."""
    start = torch.randint(0, 9, (batch, 1), generator=generator)
    deep = torch.randint(0, 5, (batch, seq, 1), generator=generator)
    branch = torch.randint(UPPER, LOWER + 1, (batch, seq, 5), generator=generator)
    place = torch.arange(5)
    path = torch.where(place < deep, branch, torch.where(place == deep, BASE, PAD))
    return Positions(start + torch.arange(seq), columns={"path": path})
