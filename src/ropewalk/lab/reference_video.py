"""Of what colour is each half of a video? Two reference images say it, and all cells of the video are noise.

reference 1  a a    reference 2  c c    video  b c a d  →  a a c c
             a a                 c c           c a b b     a a c c
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from ropewalk.coordinates.blocks import Image, Video
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.filled import Filled, laid_out
from ropewalk.lab.tasks.examples import distinct, letters, uniform

REFERENCES = 2


class ReferenceVideo(Filled):
    """Two references of one colour each, and a video of random colours, each half of which is to have the colour of one of them.

    A cell of the video says by its token in which box it is, that of the first or of the second reference; which half that is
    is random. Grids of references have the rows and columns of the video, which `ropewalk.ConditionRoPE` demands.

    Drawn: "owner" (B, frames, rows, columns), the reference whose box a cell is in, from 0; "colour" (B, references).

    Args:
        train_size: columns of each half of the video.
        eval_sizes: likewise.
        examples: see `Filled`.
        encoder: likewise.
        frames: of the video.
        rows: of the video and of the references.
        colours: number of them.
        groups: the tokens of a reference say its number, as those of the video say that of their box. Without, they say any: all
            tokens are of one kind, as latents are, and places alone tell what is a reference, and which.
    """

    name = "reference_video"
    domain = "references"
    summary = "the colour that a reference image gives to its part of a video of noise"
    source = "made for this library, after the references of Kaleido (arXiv 2510.18573) and DreamVideo-Omni (arXiv 2603.12257)"
    size_name = "columns of a half"
    train_size = 2
    eval_sizes = (2,)

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        frames: int = 2,
        rows: int = 2,
        colours: int = 6,
        groups: bool = False,
    ) -> None:
        if not isinstance(groups, bool):
            raise ConfigError(f"groups is True or False; got {groups!r}")
        check_positive(frames=frames, rows=rows)
        self.frames, self.rows, self.groups = frames, rows, groups
        named = letters(colours)
        self.colours = colours
        marks = ("", *map(str, range(1, REFERENCES + 1)))
        self.symbols = tuple(f"{colour}{mark}" for mark in marks for colour in named)
        super().__init__(train_size, eval_sizes, examples, encoder)

    @property
    def domains(self) -> tuple[str, ...]:
        """Return also the domain of `ropewalk.ConditionRoPE`, whose blocks these are too."""
        return (*super().domains, "conditions")

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        colour = distinct(generator, count, self.colours, REFERENCES)
        columns = REFERENCES * size
        half = (torch.arange(columns) // size).expand(count, self.frames, self.rows, columns)
        owner = (half + uniform(generator, REFERENCES, count, 1, 1, 1)) % REFERENCES
        noise = uniform(generator, self.colours, *owner.shape) + self.colours * (1 + owner)
        shape = (count, REFERENCES, self.rows * columns)
        marks = (
            torch.arange(REFERENCES)[:, None].expand(shape) if self.groups else uniform(generator, REFERENCES, *shape)
        )
        shown = colour[..., None] + self.colours * (1 + marks)
        answers = colour.gather(1, owner.flatten(1))
        tokens = torch.cat([shown.flatten(1), noise.flatten(1)], 1)
        targets = torch.cat([torch.full_like(shown, IGNORE).flatten(1), answers], 1)
        images = [Image(self.rows, columns, reference=n) for n in range(1, REFERENCES + 1)]
        drawn = {"owner": owner, "colour": colour}
        return laid_out([*images, Video(self.frames, self.rows, columns)], tokens, targets, drawn)
