"""Videos of a dot that moves at one speed, and how many of those that a denoiser makes show one.

# . . .    . . . .    . . . .
. . . .    . # . .    . . . .      one cell down and one to the right a frame
. . . .    . . . .    . . # .
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.denoising import PROGRESS
from ropewalk.coordinates.grid import grid_positions
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.place import Forward
from ropewalk.lab.results import Record
from ropewalk.lab.rounds import UNKNOWN, named_in_rounds
from ropewalk.lab.tasks.task import stream
from ropewalk.lab.workloads import Measure, Workload

EMPTY, DOT = 1, 2


class MovingDot(Workload):
    """Frames of side × side cells with a dot that goes the same way from each frame to the next; some cells are unknown.

    Scored are videos that are made from unknown cells alone, step by step: one counts if every frame has one dot and all steps
    between frames are equal. Positions are (frame, row, column), at the share of denoising that the known cells stand for.

    Args:
        train_size: side.
        eval_sizes: sides of the videos that are made.
        examples: how many are made, of each size.
        encoder: has to be True, since a cell is named by what is on both sides of it.
        frames: of a video, 2 or more.
        rounds: in which a video is made.
    """

    name = "moving_dot"
    domain = "denoising"
    train_size = 5
    eval_sizes = (5,)

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        frames: int = 3,
        rounds: int = 40,
    ) -> None:
        if not encoder:
            raise ConfigError(f"{self.name} needs bidirectional attention: ask for --encoder")
        check_positive(train_size=train_size, examples=examples, frames=frames, rounds=rounds)
        if frames < 2:
            raise ConfigError(f"frames are 2 or more, since a dot moves from one to the next; got {frames}")
        for size in (train_size, *eval_sizes):
            if size < frames:
                raise ConfigError(
                    f"the side of a {self.name} is at least {frames}, so that it can move in all frames; got {size!r}"
                )
        self.side, self.sizes, self.examples = train_size, tuple(eval_sizes), examples
        self.frames, self.rounds = frames, rounds
        self.vocab_size = 1 + DOT
        self.train_length = frames * train_size**2
        self.lengths = tuple(sorted({frames * size**2 for size in (*eval_sizes, train_size)}))
        self.max_position = self.lengths[-1]

    # ---- videos -----------------------------------------------------------------------------------------------

    def videos(self, generator: Generator, count: int, side: int | None = None) -> Tensor:
        """Draw videos, (count, frames, side, side) of `EMPTY` and `DOT`.

        Along either axis all pairs of a first and a last cell from which the steps are whole are alike.

        Args:
            generator: of everything random.
            count: how many.
            side: None: as in training.
        """
        side = self.side if side is None else side
        steps, cell = self.frames - 1, torch.arange(side)
        first, last = torch.cartesian_prod(cell, cell).T
        whole = (last - first) % steps == 0
        ends = torch.stack([first[whole], last[whole]], -1)
        chosen = ends[torch.randint(len(ends), (count, 2), generator=generator)]  # (count, axes, ends)
        step = (chosen[..., 1] - chosen[..., 0]) // steps
        frame = torch.arange(self.frames)
        row, column = (chosen[:, a, :1] + step[:, a, None] * frame for a in range(2))
        cells = torch.full((count, self.frames, side * side), EMPTY)
        return cells.scatter(2, (row * side + column)[..., None], DOT).unflatten(2, (side, side))

    def located(self, tokens: Tensor, targets: Tensor, progress: Tensor) -> Batch:
        """Return a batch of videos (B, frames, side, side), each at a share (B,) of denoising."""
        where = grid_positions(*tokens.shape[1:]).query.position
        return Batch(
            tokens.flatten(1),
            targets.flatten(1),
            positions=where.expand(len(tokens), -1, -1),
            sequence={PROGRESS: progress.double()},
        )

    # ---- training ---------------------------------------------------------------------------------------------

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return self._hidden(stream("train", self.name, seed, step), size)

    def validation(self) -> Iterator[Batch]:
        yield self._hidden(stream("validation", self.name), 64)

    def _hidden(self, generator: Generator, count: int) -> Batch:
        cells = self.videos(generator, count)
        progress = torch.rand(count, generator=generator)
        # As many as `named_in_rounds` leaves unknown when this share of the rounds is over.
        hidden = torch.rand(cells.shape, generator=generator) >= progress[:, None, None, None] ** 2
        hidden[:, 0, 0, 0] |= ~hidden.flatten(1).any(1)
        targets = torch.where(hidden, cells, IGNORE)
        return self.located(torch.where(hidden, UNKNOWN, cells), targets, progress)

    # ---- videos that are made ---------------------------------------------------------------------------------

    def sample(self, forward: Forward, side: int, count: int, seed: int) -> Tensor:
        """Make videos from unknown cells alone, (count, frames, side, side); see `named_in_rounds`.

        Args:
            forward: logits of a batch.
            side: of the frames.
            count: how many.
            seed: of order and names.
        """
        shape = (self.frames, side, side)
        ignored = torch.full((count, *shape), IGNORE)

        def locate(tokens: Tensor, progress: float) -> Batch:
            return self.located(tokens.unflatten(1, shape), ignored, torch.full((count,), progress))

        generator = stream("sample", self.name, seed, side)
        made = named_in_rounds(forward, locate, count, self.frames * side**2, self.rounds, generator)
        return made.unflatten(1, shape)

    def measures(self) -> list[Measure]:
        return [Measure(f"exact/{n}", partial(self._moves, side=n)) for n in self.sizes]

    def _moves(self, forward: Forward, side: int) -> list[Record]:
        made = self.sample(forward, side, self.examples, seed=0)
        items = [int(one) for one in moves_evenly(made)]
        single = float(((made == DOT).flatten(2).sum(-1) == 1).double().mean())
        share, trained = sum(items) / len(items), side == self.side
        return [{"kind": "exact", "size": side, "trained": trained, "exact": share, "token": single, "items": items}]

    def describe(self) -> dict[str, Any]:
        shown = self.videos(stream("shown", self.name), 4)
        paths = [[divmod(int(frame.flatten().argmax()), self.side) for frame in video] for video in shown]
        return {
            "task": self.name,
            "summary": "videos of a dot that moves at one speed, made by a denoiser of masked cells",
            "source": "made for this library, after the motions of arXiv 2609.23658",
            "size_name": "rows and columns",
            "train_size": self.side,
            "eval_sizes": list(self.sizes),
            "train_tokens": self.train_length,
            "examples": [" → ".join(map(str, path)) for path in paths],
        }


def moves_evenly(videos: Tensor) -> Tensor:
    """Return of each video (B, frames, rows, columns) whether every frame has one dot and all its steps are equal."""
    there = videos == DOT
    one = (there.flatten(2).sum(-1) == 1).all(1)
    cell = there.flatten(2).long().argmax(-1)
    path = torch.stack([cell // videos.shape[3], cell % videos.shape[3]], -1)
    step = path.diff(dim=1)
    return one & (step == step[:, :1]).flatten(1).all(1)
