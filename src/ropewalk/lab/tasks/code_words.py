"""Do words right after a change of language mean high numbers? Texts of two made-up languages.

h7 h1 e9 e2 o e3 h8 ?  →  high      (after changes: 9 and 8, of 12)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.switching import NEUTRAL, switching_points, switching_positions
from ropewalk.lab.batch import Batch
from ropewalk.lab.code_mixed import TEXT_TOKENS, WORDS, mixed_texts
from ropewalk.lab.tasks.examples import FIRST, Examples, ask, written
from ropewalk.lab.tasks.placed import Placed

LANGUAGES = ("hi", "en")
LOW, HIGH = FIRST, FIRST + 1
WORD = FIRST + 2
"""The first word; `ropewalk.lab.code_mixed.mixed_texts` says what follows."""


class CodeWords(Placed):
    """word … word ? = high or low, of `ropewalk.lab.code_mixed.mixed_texts`.

    Positions count tokens, with the columns of `ropewalk.switching_positions`. What is no word has no language.
    """

    name = "code_words"
    summary = "whether words right after a change of language mean high numbers"
    source = "made for this library, after the switching points of CONFLATOR (arXiv 2309.05270)"
    size_name = "words"
    train_size = 12
    eval_sizes = (8, 12, 16)
    min_size = 4
    encoder_ready = True
    domain = "switching"
    symbols = (
        "|",
        "?",
        "low",
        "high",
        *(f"{language[0]}{n}" for language in LANGUAGES for n in range(WORDS)),
        NEUTRAL,
    )

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        made = mixed_texts(count, size, generator)
        return written(torch.cat([WORD + made.tokens, ask(count)], 1), LOW + made.label[:, None], end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        words = [token for token in prompt if token >= WORD]
        score = 0
        for token, switch in zip(words, switching_points([_tag(token) for token in words]), strict=True):
            if switch:
                score += 1 if (token - WORD) % WORDS >= WORDS // 2 else -1
        return [HIGH if score > 0 else LOW]

    def length(self, size: int) -> int:
        return size + 2

    def space(self, size: int) -> int:
        return int(WORDS**size)

    def place(self, batch: Batch) -> Batch:
        tags = [[_tag(token) for token in row] for row in batch.tokens.tolist()]
        tokens = switching_positions(tags, device=batch.tokens.device)[0].query
        columns = {name: tokens.column(name) for name in ("switch", "switches", "since", "walk")}
        return replace(batch, positions=tokens.position, columns=columns)


def _tag(token: int) -> str:
    word = token - WORD
    return LANGUAGES[word // WORDS] if 0 <= word < TEXT_TOKENS - 1 else NEUTRAL
