"""Look an account up in a ledger of lines, as many of them as the size says.

    K c a 7 ; B f 3 ; ? B → 3

A line is an account, some small letters, an amount, and the sign that closes it. However long the ledger, lines stay short:
a place inside a line is never a new one.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, DIGITS, EDGE, FIRST, Examples, distinct, uniform
from ropewalk.lab.tasks.placed import Placed

CLOSE = FIRST
WORDS = tuple(string.ascii_lowercase)
WORD = CLOSE + 1
AMOUNT = WORD + len(WORDS)
ACCOUNT = AMOUNT + len(DIGITS)


class Ledger(Placed):
    """account word … word amount ; … ? account = amount, with positions (line, place in the line).

    All lines of a ledger are equally long, and different ledgers have lines of different lengths.

    Args:
        accounts: number of different accounts, which limits the size.
        words: most small letters in a line; the least is one.
    """

    name = "ledger"
    summary = "the amount of an account, in a ledger of short lines"
    source = "made for this library, after the lines that BiPE (arXiv 2401.16421) counts"
    size_name = "lines"
    train_size = 12
    eval_sizes = (6, 12, 24, 48)
    min_size = 2
    domain = "segments"

    def __init__(self, accounts: int = 64, words: int = 4) -> None:
        check_positive(accounts=accounts, words=words)
        if accounts < self.min_size:
            raise ConfigError(f"accounts is a whole number, at least {self.min_size}; got {accounts}")
        self.accounts, self.words, self.largest = accounts, words, accounts
        self.symbols = ("|", "?", ";", *WORDS, *DIGITS, *(f"A{n}" for n in range(accounts)))

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        account = ACCOUNT + distinct(generator, count, self.accounts, size)
        amount = AMOUNT + uniform(generator, len(DIGITS), count, size)
        line = torch.cat(
            [
                account[..., None],
                WORD + uniform(generator, len(WORDS), count, size, self.words),
                amount[..., None],
                torch.full((count, size, 1), CLOSE),
            ],
            2,
        )
        kept = 1 + uniform(generator, self.words, count, 1)  # words of a line
        column = torch.arange(self.words + 3)
        keep = ((column <= kept) | (column > self.words))[:, None].expand(-1, size, -1).flatten(1)
        asked = uniform(generator, size, count, 1)
        tail = torch.cat([torch.full((count, 1), ASK), account.gather(1, asked), amount.gather(1, asked)], 1)
        tokens = torch.cat([torch.full((count, 1), EDGE), line.flatten(1), tail], 1)
        keep = torch.cat([torch.ones(count, 1, dtype=torch.bool), keep, torch.ones(count, 3, dtype=torch.bool)], 1)
        # What is left out goes to the end, where it is nobody's.
        order = (~keep).long().sort(dim=1, stable=True).indices
        length = keep.sum(1, keepdim=True)
        index = torch.arange(tokens.shape[1])
        tokens = torch.where(index < length, tokens.gather(1, order), EDGE)
        return Examples(tokens, index == length - 1)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        lines: dict[int, int] = {}
        line: list[int] = []
        for token in prompt[1 : prompt.index(ASK)]:
            if token == CLOSE:
                lines[line[0]] = line[-1]
                line = []
            else:
                line.append(token)
        return [lines[prompt[-1]]]

    def length(self, size: int) -> int:
        return size * (self.words + 3) + 3

    def space(self, size: int) -> int:
        return self.accounts * len(WORDS) ** size * len(DIGITS) ** size

    def place(self, batch: Batch) -> Batch:
        from ropewalk.coordinates.segments import segment_positions

        where, _ = segment_positions(batch.tokens, {CLOSE})
        return replace(batch, positions=where.query.position)
