"""Pictures that wrap around, a denoiser that has seen windows of them alone, and the seams of the pictures that it makes.

    made = Panoramas(26, (26,), encoder=True)
    model = Decoder(ModelConfig(made.vocab_size, ("r_rope(base=16)",), hidden_size=48, causal=False))
    ...                                                     # trained on made.batch(step, 32, seed)
    pictures = made.sample(model, columns=26, count=64, seed=0)

The denoiser is one of masked cells: it is told some cells of a picture and names the others, and a picture is made from nothing
but unknown cells, a few more each round. After the models of `ropewalk.rotary.spherope.SpheRoPE`, which were trained on flat
pictures and make panoramas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.blocks import Video
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.filled import laid_out
from ropewalk.lab.panorama import seam_score
from ropewalk.lab.place import Forward
from ropewalk.lab.results import Record
from ropewalk.lab.rounds import UNKNOWN, named_in_rounds
from ropewalk.lab.tasks.task import stream
from ropewalk.lab.workloads import Measure, Workload


class Panoramas(Workload):
    """Windows of pictures that wrap around, with unknown cells; scored by the seams of pictures that are made whole.

    A picture is a sum of waves that fit whole times into its ring of twice as many columns as a window has. What a model makes is
    as wide as a window: it has a seam where the first and the last column do not go together. A picture counts as seamless if
    these two differ by no more than neighbours in real pictures do, all but one in twenty of them; noise has a seam.

    Args:
        train_size: columns of a window.
        eval_sizes: columns of the pictures that are made.
        examples: how many are made, of each size.
        encoder: has to be True, since a cell is named by what is on both sides of it.
        rows: of a picture. The first and the last are poles to `ropewalk.SpheRoPE`.
        levels: of brightness.
        waves: periods of the fastest wave around a ring.
        rounds: in which a picture is made.
    """

    name = "panorama"
    domain = "panorama"
    train_size = 26
    eval_sizes = (26,)

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        rows: int = 3,
        levels: int = 8,
        waves: int = 4,
        rounds: int = 24,
    ) -> None:
        if not encoder:
            raise ConfigError(f"{self.name} needs bidirectional attention: ask for --encoder")
        check_positive(train_size=train_size, examples=examples, rows=rows, levels=levels, waves=waves, rounds=rounds)
        for size in (train_size, *eval_sizes):
            if size < 4:
                raise ConfigError(f"the size of {self.name} is a number of columns from 4 on; got {size!r}")
        self.columns, self.sizes, self.examples = train_size, tuple(eval_sizes), examples
        self.rows, self.levels, self.waves, self.rounds = rows, levels, waves, rounds
        self.vocab_size = 1 + levels
        self.train_length = rows * train_size
        self.lengths = tuple(sorted({rows * size for size in (*eval_sizes, train_size)}))
        self.max_position = self.lengths[-1]
        self.smooth = self._largest_step()

    @property
    def domains(self) -> tuple[str, ...]:
        """Return also the domain of `ropewalk.ReferenceRoPE`, which without a reference is the rotation of flat pictures."""
        return (*super().domains, "references")

    # ---- pictures ---------------------------------------------------------------------------------------------

    def pictures(self, generator: Generator, count: int, columns: int | None = None) -> Tensor:
        """Draw windows of pictures that wrap around, (count, rows, columns), levels from 0.

        Args:
            generator: of everything random.
            count: how many.
            columns: of the window; None: as many as in training. Twice as many are the whole ring.
        """
        columns = self.columns if columns is None else columns
        ring = 2 * self.columns

        def draw(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(count, self.waves, 1, 1, dtype=torch.float64, generator=generator)

        amplitude, phase, tilt = draw(0.3, 1.0), draw(0.0, 2 * math.pi), draw(-0.5, 0.5)
        periods = torch.arange(1, self.waves + 1, dtype=torch.float64)[:, None, None]
        row, column = torch.meshgrid(torch.arange(self.rows), torch.arange(columns), indexing="ij")
        light = (amplitude * (2 * math.pi / ring * periods * column + tilt * row + phase).sin()).sum(1)
        light = light / amplitude.square().sum(1).sqrt()  # waves of random phases rarely add up
        return ((light / 2 + 0.5) * self.levels).floor().long().clamp(0, self.levels - 1)

    def _largest_step(self) -> float:
        steps = self.pictures(stream("steps", self.name), 1000).diff(dim=-1).abs().double().mean(1)
        return float(steps.flatten().quantile(0.95))

    def located(self, cells: Tensor, targets: Tensor) -> Batch:
        """Return a batch of pictures (B, rows, columns) that are placed as one frame of a video each."""
        return laid_out([Video(1, *cells.shape[1:])], cells.flatten(1), targets.flatten(1))

    # ---- training ---------------------------------------------------------------------------------------------

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return self._hidden(stream("train", self.name, seed, step), size)

    def validation(self) -> Iterator[Batch]:
        yield self._hidden(stream("validation", self.name), 64)

    def _hidden(self, generator: Generator, count: int) -> Batch:
        cells = 1 + self.pictures(generator, count)
        share = torch.rand(count, 1, 1, generator=generator)
        hidden = torch.rand(cells.shape, generator=generator) <= share
        return self.located(torch.where(hidden, UNKNOWN, cells), torch.where(hidden, cells, IGNORE))

    # ---- pictures that are made -------------------------------------------------------------------------------

    def sample(self, forward: Forward, columns: int, count: int, seed: int) -> Tensor:
        """Make pictures from unknown cells alone, (count, rows, columns), levels from 0; see `named_in_rounds`.

        Args:
            forward: logits of a batch.
            columns: of the pictures.
            count: how many.
            seed: of order and levels.
        """
        ignored = torch.full((count, self.rows, columns), IGNORE)

        def locate(tokens: Tensor, progress: float) -> Batch:
            return self.located(tokens.unflatten(1, (self.rows, columns)), ignored)

        generator = stream("sample", self.name, seed, columns)
        made = named_in_rounds(forward, locate, count, self.rows * columns, self.rounds, generator)
        return made.unflatten(1, (self.rows, columns)) - 1

    def measures(self) -> list[Measure]:
        return [Measure(f"exact/{n}", partial(self._seams, columns=n)) for n in self.sizes]

    def _seams(self, forward: Forward, columns: int) -> list[Record]:
        made = self.sample(forward, columns, self.examples, seed=0).double()
        seam = (made[..., 0] - made[..., -1]).abs()
        items = [int(one) for one in seam.mean(1) <= self.smooth]
        share, rows = sum(items) / len(items), float((seam <= self.smooth).double().mean())
        trained = columns <= self.columns
        measured = {"seam": seam_score(made), "inside": float(made.diff(dim=-1).abs().mean())}
        return [
            {"kind": "exact", "size": columns, "trained": trained, "exact": share, "token": rows, "items": items},
            {"kind": "seam", "size": columns, **measured},
        ]

    def describe(self) -> dict[str, Any]:
        shown = self.pictures(stream("shown", self.name), 4)[:, self.rows // 2]
        return {
            "task": self.name,
            "summary": "pictures that wrap around, made by a denoiser of windows of them",
            "source": "made for this library, after the panoramas of SpheRoPE (arXiv 2606.32033)",
            "size_name": "columns",
            "train_size": self.columns,
            "eval_sizes": list(self.sizes),
            "train_tokens": self.train_length,
            "examples": [" ".join(map(str, row)) for row in shown.tolist()],
        }
