"""Which letter is spoken in a frame? A text, and as many frames a letter as it happens to last.

a b c   _ _ _ _ _ _ _ _ _   →   a a b b b b c c c
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.filled import Filled
from ropewalk.lab.tasks.examples import letters, uniform
from ropewalk.rotary.larope import LENGTH

FRAME = 0


class Alignment(Filled):
    """Letters and frames, each counted from 0, with the column "length" that says how many there are of its kind.

    A letter lasts a number of frames, and as many letters last one frame longer as one shorter. Which these are is not said, so
    that the best answer is the letter whose share of the text is the frame's share of the time, and is not always right.

    Drawn: "frames" (B, letters) that each letter lasts, "letter" (B, frames), which one a frame is of, from 0.

    Args:
        train_size: letters of a text, at most.
        eval_sizes: likewise.
        examples: see `Filled`.
        encoder: likewise.
        alphabet: number of letters.
        frames: that a letter lasts, 2 or more.
    """

    name = "alignment"
    summary = "the letter of a frame, from a text and the number of frames"
    source = "made for this library, after the text and speech of LARoPE (arXiv 2509.11084)"
    size_name = "letters"
    train_size = 10
    eval_sizes = (5, 10, 20)
    min_size = 3

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        alphabet: int = 8,
        frames: int = 3,
    ) -> None:
        check_positive(frames=frames)
        if frames < 2:
            raise ConfigError("a letter that lasts 1 frame cannot last one less; frames is 2 or more")
        self.alphabet, self.frames = alphabet, frames
        self.symbols = ("_", *letters(alphabet))
        super().__init__(train_size, eval_sizes, examples, encoder)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        # Neighbours are different letters.
        steps = 1 + uniform(generator, self.alphabet - 1, count, size)
        text = 1 + steps.cumsum(1) % self.alphabet
        rank = torch.rand(count, size, generator=generator).argsort(1)
        third = size // 3
        lasts = self.frames + (rank < third).long() - ((rank >= third) & (rank < 2 * third)).long()
        spoken = size * self.frames
        index = torch.arange(spoken)
        which = (index[:, None] >= lasts.cumsum(1)[:, None]).sum(-1)
        blank = torch.full((count, spoken), FRAME)
        position = torch.cat([torch.arange(size), index]).expand(count, -1)
        length = torch.tensor([size] * size + [spoken] * spoken).expand(count, -1)
        return Batch(
            torch.cat([text, blank], 1),
            torch.cat([torch.full_like(text, IGNORE), text.gather(1, which)], 1),
            positions=position,
            columns={LENGTH: length},
            drawn={"frames": lasts, "letter": which},
        )
