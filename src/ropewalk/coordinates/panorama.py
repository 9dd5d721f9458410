"""Pictures that go all the way around, for encodings that know it."""

from __future__ import annotations

import torch

from ropewalk.coordinates.blocks import Block, Image, Text, Video
from ropewalk.coordinates.layout import layout
from ropewalk.core.positions import Positions


def sample_panorama(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw samples of a panorama, text, a flat reference image, a video and text, cut off at ``seq`` tokens."""
    samples: list[list[Block]] = []
    for _ in range(batch):
        width = int(torch.randint(2, 5, (), generator=generator))
        # Text makes up for the width of the reference, so that rows are of one length.
        reference, film = Image(2, width, reference=1), Video(2, 1, 2, seconds=1.5)
        samples.append([Image(3, 8), Text(9 - 2 * width), reference, film, Text(max(seq, 1))])
    return layout(samples).slice(0, seq)
