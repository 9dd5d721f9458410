"""With which word did its paragraph begin? Texts of paragraphs and sentences.

a , c . d ¶ b . f , g ¶ ? g → b
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.coordinates.hierarchy import hierarchical_positions
from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import FIRST, Examples, ask, distinct, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed

GOES_ON, STOP, END = range(FIRST, FIRST + 3)
"""What follows a word: no end, the end of a sentence, that of a paragraph. It belongs to what it ends."""


class ParagraphStart(Placed):
    """word mark … word mark ? word = the first word of its paragraph; each word stands once.

    Positions are (paragraph, sentence, token), all counted through the text.

    Args:
        words: different words, which limits the size.
        stop: how likely a word ends its sentence.
        end: how likely a sentence that ends is the last of its paragraph.
    """

    name = "paragraph_start"
    summary = "the first word of the paragraph that a word is in"
    source = "made for this library, after the paragraphs of hRoPE (arXiv 2609.23551)"
    size_name = "words"
    train_size = 16
    eval_sizes = (8, 16, 24, 32)
    min_size = 2
    encoder_ready = True
    domain = "hierarchy"

    def __init__(self, words: int = 40, stop: float = 0.4, end: float = 0.5) -> None:
        for name, value in (("stop", stop), ("end", end)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is a probability; got {value!r}")
        self.symbols = ("|", "?", ",", ".", "¶", *letters(words))
        self.largest = self.words = words
        self.stop, self.end, self.word = stop, end, END + 1

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        word = self.word + distinct(generator, count, self.words, size)
        stops = torch.rand(count, size, generator=generator) < self.stop
        ends = stops & (torch.rand(count, size, generator=generator) < self.end)
        mark = torch.where(ends, END, torch.where(stops, STOP, GOES_ON))
        tokens = torch.stack([word, mark], 2).flatten(1)
        which = uniform(generator, size, count, 1)
        begins = torch.ones_like(ends)
        begins[:, 1:] = ends[:, :-1]
        first = torch.where(begins, torch.arange(size), 0).cummax(1).values.gather(1, which)
        prompt = torch.cat([tokens, ask(count), word.gather(1, which)], 1)
        return written(prompt, word.gather(1, first), end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        *text, _, asked = prompt
        paragraph: list[int] = []
        for token in text:
            if token >= self.word:
                paragraph.append(token)
            if token == asked:
                return paragraph[:1]
            if token == END:
                paragraph = []
        raise ConfigError("the text does not hold the word that is asked for")

    def length(self, size: int) -> int:
        return 2 * size + 3

    def space(self, size: int) -> int:
        return math.perm(self.words, size)

    def place(self, batch: Batch) -> Batch:
        where, _ = hierarchical_positions(batch.tokens == END, batch.tokens == STOP)
        return replace(batch, positions=where.query.position)
