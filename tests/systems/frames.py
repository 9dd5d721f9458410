"""Prompts of golden files as blocks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import ropewalk as rw
from ropewalk.coordinates.scheme import Scheme


def blocks_of(prompt: list[Any]) -> list[Any]:
    """Return the blocks of a prompt in which an image or a video stands between two marker tokens."""
    blocks: list[Any] = []
    for part in prompt:
        if isinstance(part, int):
            blocks.append(rw.Text(part))
            continue
        t, h, w = (part[name] for name in "thw")
        blocks += [rw.Text(1), rw.Image(h, w) if part["kind"] == "i" else rw.Video(t, h, w), rw.Text(1)]
    return blocks


def axes_first(positions: rw.Positions, scheme: Scheme) -> Tensor:
    """Return coordinates as the golden files have them, (axes, batch, S)."""
    return scheme.coordinates(positions.query).movedim(-1, 0)
