"""Find a needle in a video, with a frame beside it that looks like it (V-NIAH-D).

    c a f   c K f   a b b   c Q f
    b d a   b 7 a   d c f   b 2 a   ?  K  → 7      (four frames of 2 x 3; Q 2 is the distractor, two frames after K 7)

Source: Xilin Wei et al., VideoRoPE, arXiv 2502.05173: there the frames are pictures, the distractor is 200 frames away, and the
frames are 9 x 16 tokens.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.blocks import Text, Video
from ropewalk.coordinates.layout import layout
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import (
    ASK,
    DIGITS,
    FIRST,
    Examples,
    ask,
    check_fraction,
    distinct,
    letters,
    uniform,
    written,
)
from ropewalk.lab.tasks.placed import Placed

KEYS = tuple(string.ascii_uppercase)


class VideoNeedle(Placed):
    """A video, and the value that stands below a key in one of its frames.

    The frames are rows x columns cells of random colours. In the needle, a cell is a key and the one below it a value. The
    distractor is the same frame with another key and another value; it is ``gap`` frames before or after the needle, on a random
    side (the possible one near the ends, and as far as there is room in a short video). Who looks for any value is right half
    of the time, and who guesses one time in ten.

    Blocks: a text of one token, the video, a text with the question.

    Args:
        depth: where the needle is, from 0, the first frame, to 1, the last; None: anywhere.
        gap: frames between the needle and the distractor.
        distractor: whether there is one; without it the task is V-NIAH.
        rows: cells from top to bottom.
        columns: cells from left to right.
        colours: number of them, drawn uniformly and independently.
        keys: number of different keys.
    """

    name = "video_needle"
    summary = "the value below a key in a frame of a video, with a frame that looks like it nearby"
    source = "arXiv 2502.05173 (V-NIAH-D), with generated frames"
    size_name = "frames"
    train_size = 8
    eval_sizes = (4, 8, 16, 32)
    min_size = 2
    encoder_ready = True
    domain = "layout"

    def __init__(
        self,
        depth: float | None = None,
        gap: int = 5,
        distractor: bool = True,
        rows: int = 2,
        columns: int = 3,
        colours: int = 8,
        keys: int = 8,
    ) -> None:
        check_positive(gap=gap, rows=rows, columns=columns, keys=keys)
        check_fraction(depth=depth)
        if not isinstance(distractor, bool):
            raise ConfigError(f"distractor is True or False; got {distractor!r}")
        if rows < 2:
            raise ConfigError("a value stands below its key, so that frames have at least 2 rows; got rows=1")
        if not 2 <= keys <= len(KEYS):
            raise ConfigError(f"keys is a whole number from 2 to {len(KEYS)}; got {keys!r}")
        self.depth, self.gap, self.distractor = depth, gap, distractor
        self.rows, self.columns, self.colours, self.keys = rows, columns, colours, keys
        self.symbols = ("|", "?", *letters(colours), *DIGITS, *KEYS[:keys])
        self.value = FIRST + colours
        self.key = self.value + len(DIGITS)

    @property
    def cells(self) -> int:
        """Tokens of a frame."""
        return self.rows * self.columns

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        frames = FIRST + uniform(generator, self.colours, count, size, self.cells)
        anywhere = uniform(generator, size, count)
        needle = anywhere if self.depth is None else torch.full_like(anywhere, round(self.depth * (size - 1)))
        cell = uniform(generator, self.cells - self.columns, count)
        key, value = (
            first + distinct(generator, count, n, 2) for first, n in ((self.key, self.keys), (self.value, len(DIGITS)))
        )
        other = self._beside(generator, needle, size)
        row = torch.arange(count)
        picture = frames[row, needle]
        for which, frame in ((1, other), (0, needle)) if self.distractor else ((0, needle),):
            shown = picture.clone()
            shown[row, cell], shown[row, cell + self.columns] = key[:, which], value[:, which]
            frames[row, frame] = shown
        return written(torch.cat([frames.flatten(1), ask(count), key[:, :1]], 1), value[:, :1], end=False)

    def _beside(self, generator: Generator, needle: Tensor, size: int) -> Tensor:
        """(N,) frames of the distractors."""
        far = torch.maximum(needle, size - 1 - needle).clamp(max=self.gap)
        before, after = needle - far, needle + far
        left = uniform(generator, 2, len(needle)).bool()
        return torch.where((left & (before >= 0)) | (after >= size), before, after)

    def at_depth(self, size: int, depth: float, count: int, seed: int) -> Batch:
        """Examples to score on with the needle at one depth: a function of the arguments alone."""
        options = (self.gap, self.distractor, self.rows, self.columns, self.colours, self.keys)
        return VideoNeedle(depth, *options).eval_batch(size, count, seed)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        return [prompt[list(prompt).index(prompt[-1]) + self.columns]]

    def length(self, size: int) -> int:
        return size * self.cells + 3

    def space(self, size: int) -> int:
        return self.keys * len(DIGITS) * self.colours ** (self.cells * (size - 1) - 2)

    def place(self, batch: Batch) -> Batch:
        asked = (batch.tokens == ASK).long().argmax(1)
        length = batch.tokens.shape[1]
        samples = []
        for frames in ((asked - 1) // self.cells).tolist():
            video = Video(frames, self.rows, self.columns)
            samples.append([Text(1), video, Text(length - 1 - video.length)])
        where = layout(samples, device=batch.tokens.device).query
        return replace(
            batch,
            positions=where.position,
            columns={"block": where.column("block")},
            sequence=where.sequence,
        )
