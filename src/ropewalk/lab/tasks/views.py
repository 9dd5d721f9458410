"""Say in which direction a camera sees a landmark that another camera saw.

    n2 K@1  n5 B@0  n7 ? K → 4      (of 8 directions; K is 1 step to the left of where n2 looks, and 4 of where n7 does)

Cameras turn about the vertical. What a camera saw is worth nothing without how it was turned, and the answer depends on how
one camera is turned against the other alone. Training always asks for the camera that is not turned; scoring turns the
whole world, which changes nothing for who thinks in differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import ASK, EDGE, FIRST, Examples, distinct, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed, latest


class Views(Placed):
    """turn sight … turn sight, turn ? landmark = direction, each token with the camera of its view.

    Direction + turn is the same for all cameras, modulo their number. The turn of a camera is a token too, so that encodings
    that know nothing of cameras can work it out. Positions are (0, 0), with a column ``extrinsics`` (B, S, 4, 4), world to
    camera.

    Args:
        landmarks: number of different landmarks, which limits the size; each is seen by one camera.
        directions: number of them, all around.
        turned: scoring turns the world by a random angle; training never does.
    """

    name = "views"
    summary = "where a camera sees what another camera saw"
    source = "made for this library, after the posed views of GTA (arXiv 2310.10375)"
    size_name = "views"
    train_size = 6
    eval_sizes = (2, 4, 6)
    encoder_ready = True
    domain = "views"

    def __init__(self, landmarks: int = 8, directions: int = 8, turned: bool = True) -> None:
        if not isinstance(turned, bool):
            raise ConfigError(f"turned is True or False; got {turned!r}")
        check_positive(directions=directions)
        named = letters(landmarks)
        self.landmarks, self.directions, self.turned, self.largest = landmarks, directions, turned, landmarks
        sights = (f"{mark}@{direction}" for mark in named for direction in range(directions))
        self.symbols = (
            "|",
            "?",
            *(f"n{turn}" for turn in range(directions)),
            *map(str, range(directions)),
            *named,
            *sights,
        )
        self.turn, self.direction = FIRST, FIRST + directions
        self.landmark = self.direction + directions
        self.sight = self.landmark + landmarks

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        world = (
            uniform(generator, self.directions, count, 1)
            if test and self.turned
            else torch.zeros(count, 1, dtype=torch.long)
        )
        turn = (uniform(generator, self.directions, count, size) + world) % self.directions
        direction = uniform(generator, self.directions, count, size)
        landmark = distinct(generator, count, self.landmarks, size)
        seen = torch.stack([self.turn + turn, self.sight + landmark * self.directions + direction], 2).flatten(1)
        which = uniform(generator, size, count, 1)
        answer = (direction.gather(1, which) + turn.gather(1, which) - world) % self.directions
        asked = torch.cat(
            [self.turn + world, torch.full((count, 1), ASK), self.landmark + landmark.gather(1, which)], 1
        )
        return written(torch.cat([seen, asked], 1), self.direction + answer, end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        body = [token for token in prompt if token != EDGE]
        *seen, mine, _, landmark = body
        for turn, sight in zip(seen[::2], seen[1::2], strict=True):
            mark, direction = divmod(sight - self.sight, self.directions)
            if mark == landmark - self.landmark:
                return [self.direction + (direction + turn - mine) % self.directions]
        raise ConfigError("no camera has seen the landmark that is asked for")

    def length(self, size: int) -> int:
        return 2 * size + 4

    def space(self, size: int) -> int:
        return self.landmarks * self.directions ** (2 * size) * size

    def place(self, batch: Batch) -> Batch:
        tokens = batch.tokens
        turn = latest((tokens >= self.turn) & (tokens < self.turn + self.directions), tokens - self.turn)
        angle = -turn.double() * (2 * math.pi / self.directions)  # world to camera turns back
        camera = torch.eye(4, dtype=torch.float64, device=tokens.device).repeat(*tokens.shape, 1, 1)
        camera[..., 0, 0] = camera[..., 1, 1] = angle.cos()
        camera[..., 1, 0], camera[..., 0, 1] = angle.sin(), -angle.sin()
        places = torch.zeros(*tokens.shape, 2, dtype=torch.float64, device=tokens.device)
        return replace(batch, positions=places, columns={"extrinsics": camera})
