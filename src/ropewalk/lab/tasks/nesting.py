r"""How deep is it nested? Formulas of scripts, fractions and roots.

    \frac { a ^ { b } } { c } ? b → 2

Formulas that are scored may be nested deeper than those of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.formulas import SPECIAL, forest_tensor, latex_position_forest
from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, EDGE, FIRST, Examples, distinct, joined, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed

COMMANDS = ("{", "}", "^", "_", "\\frac", "\\sqrt")
DEPTH = 4
"""Deepest structure, as deep as paths of five numbers reach."""


class Nesting(Placed):
    """formula ? symbol = how many structures the symbol is in; each symbol stands once.

    Positions count tokens, with the column "path" (B, S, 5); what stands before the formula has the path of
    padding, and the question that of a start token.

    Args:
        variables: different symbols.
    """

    name = "nesting"
    summary = "how deep a symbol is nested in a formula"
    source = "made for this library, after the nesting that PosFormer learns beside (arXiv 2407.07764)"
    size_name = "symbols"
    train_size = 6
    eval_sizes = (3, 6, 9, 12)
    encoder_ready = True
    domain = "formulas"

    def __init__(self, variables: int = 16) -> None:
        self.variables = variables
        self.symbols = ("|", "?", *map(str, range(DEPTH + 1)), *COMMANDS, *letters(variables))
        self.digit, self.command = FIRST, FIRST + DEPTH + 1
        self.variable = self.command + len(COMMANDS)
        self.largest = variables

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        rows = [self._one(generator, size) for _ in range(count)]
        longest = self.length(size) - 3
        made = []
        for formula, asked, depth in rows:
            # Rows of one size have one length: edges before the formula say nothing.
            padded = [EDGE] * (longest - len(formula)) + formula
            prompt = torch.tensor([[*padded, ASK, asked]])
            made.append(written(prompt, torch.tensor([[self.digit + depth]]), end=False))
        return joined(made)

    def _one(self, generator: Generator, size: int) -> tuple[list[int], int, int]:
        """Return a formula, a symbol of it, and how deep that is."""
        names = (self.variable + distinct(generator, 1, self.variables, size)[0]).tolist()
        depths: dict[int, int] = {}

        def command(name: str) -> int:
            return self.command + COMMANDS.index(name)

        def group(inside: list[int]) -> list[int]:
            return [command("{"), *inside, command("}")]

        def line(mine: list[int], depth: int) -> list[int]:
            if not mine:
                return []
            kind = int(uniform(generator, 5, 1)) if depth < DEPTH and len(mine) > 1 else 4
            if kind == 4:
                depths[mine[0]] = depth
                return [mine[0], *line(mine[1:], depth)]
            inner = 1 + int(uniform(generator, len(mine) - 1, 1))
            if kind < 2:  # a script of the first symbol
                depths[mine[0]] = depth
                body = group(line(mine[1 : inner + 1], depth + 1))
                return [mine[0], command("^_"[kind]), *body, *line(mine[inner + 1 :], depth)]
            if kind == 2:
                return [command("\\sqrt"), *group(line(mine[:inner], depth + 1)), *line(mine[inner:], depth)]
            half = (inner + 1) // 2
            parts = [group(line(part, depth + 1)) for part in (mine[:half], mine[half : inner + 1])]
            return [command("\\frac"), *parts[0], *parts[1], *line(mine[inner + 1 :], depth)]

        formula = line(names, 0)
        asked = names[int(uniform(generator, size, 1))]
        return formula, asked, depths[asked]

    def solve(self, prompt: Sequence[int]) -> list[int]:
        *formula, _, asked = prompt
        depth = 0
        for token in formula:  # brackets are all that nests
            if token == asked:
                return [self.digit + depth]
            depth += (token == self.command) - (token == self.command + 1)
        raise ConfigError("the formula does not hold the symbol that is asked for")

    def length(self, size: int) -> int:
        return 6 * size + 3

    def space(self, size: int) -> int:
        return math.perm(self.variables, size)

    def place(self, batch: Batch) -> Batch:
        names = {EDGE: "<pad>", ASK: "<sos>", **{self.command + i: name for i, name in enumerate(COMMANDS)}}
        paths = []
        for row in batch.tokens.tolist():
            stop = row.index(ASK)
            inside = latex_position_forest([names.get(token, "x") for token in row[:stop]])
            paths.append([*inside, *[[SPECIAL["<sos>"]]] * (len(row) - stop)])
        position = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand(len(batch.tokens), -1)
        return replace(batch, positions=position, columns={"path": forest_tensor(paths).to(batch.tokens.device)})
