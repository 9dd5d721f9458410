"""What a picture takes from a reference that it attends to: the colour of what is the same, or what is at the same place?

labels  1 1 1 2 2 2    reference  2 2 2 1 1 1    colours  b b b c c c    →  c c c b b b
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.grid import grid_positions
from ropewalk.coordinates.shared_grid import REFERENCE
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.filled import Filled
from ropewalk.lab.tasks.examples import distinct, letters


class SharedPicture(Filled):
    """Cells of labels and colours; some colours are to be named.

    In training a picture has small patches, each of one label and of a colour of its own. A label has several patches, so that a
    cell has the colour of cells that are both near it and of its label. In scoring a picture without colours lies on a grid with
    a reference, which has all of them: each is of two labels, one on the left and one on the right, and in the reference they
    have changed sides. A cell is to have the colour that its label has there; at its own place is the other one.
    Drawn: "label" and "colour" of each cell, (B, S), hidden ones too.

    Args:
        train_size: rows and columns.
        eval_sizes: likewise.
        examples: see `Filled`.
        encoder: likewise.
        labels: number of them, 2 or more.
        patches: of a picture of training, each of a colour.
        colours: number of them.
    """

    name = "shared_picture"
    domain = "shared_grid"
    summary = "colours of a picture, taken from a reference by what cells are and not by where"
    source = "made for this library, after the shared attention of Untwisting RoPE (arXiv 2602.05013)"
    size_name = "rows and columns"
    train_size = 6
    eval_sizes = (6,)
    min_size = 4

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        labels: int = 3,
        patches: int = 6,
        colours: int = 6,
    ) -> None:
        check_positive(labels=labels, patches=patches)
        named = letters(colours)
        most = min(colours, self.min_size**2)
        if not 2 <= labels <= patches <= most:
            raise ConfigError(
                f"labels are 2 or more, patches as many or more, and at most {most}, each of a colour; got {labels} labels and "
                f"{patches} patches"
            )
        self.labels, self.patches, self.colours = labels, patches, colours
        self.symbols = tuple(f"{label}{colour}" for label in range(labels) for colour in ("?", *named))
        super().__init__(train_size, eval_sizes, examples, encoder)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        place = grid_positions(size, size).query.position.double()
        colour = distinct(generator, count, self.colours, self.patches)
        if test:
            return self._beside_reference(place, size, colour, distinct(generator, count, self.labels, 2))
        centre = place[0][distinct(generator, count, size**2, self.patches)]
        patch = (place[0][:, None] - centre[:, None]).square().sum(-1).argmin(-1)
        label, own = patch % self.labels, colour.gather(1, patch)
        hidden = torch.rand(label.shape, generator=generator) < 0.5
        hidden[:, 0] |= ~hidden.any(1)
        return Batch(
            self._tokens(label, torch.where(hidden, -1, own)),
            torch.where(hidden, self._tokens(label, own), IGNORE),
            positions=place.expand(count, -1, -1),
            columns={REFERENCE: torch.zeros_like(label)},
            drawn={"label": label, "colour": own},
        )

    def _beside_reference(self, place: Tensor, size: int, colour: Tensor, sides: Tensor) -> Batch:
        """Return pictures without colours beside their references, whose left and right labels are (count, 2) ``sides``."""
        right = (place[0, :, 1] >= size // 2).long().expand(len(sides), -1)
        other = sides.gather(1, right)
        label = sides.gather(1, 1 - right)
        tokens = [self._tokens(label, torch.full_like(label, -1)), self._tokens(other, colour.gather(1, right))]
        targets = [self._tokens(label, colour.gather(1, 1 - right)), torch.full_like(other, IGNORE)]
        return Batch(
            torch.cat(tokens, 1),
            torch.cat(targets, 1),
            positions=torch.cat([place, place], 1).expand(len(sides), -1, -1),
            columns={REFERENCE: torch.cat([torch.zeros_like(label), torch.ones_like(label)], 1)},
            drawn={"label": torch.cat([label, other], 1), "colour": colour.gather(1, torch.cat([1 - right, right], 1))},
        )

    def _tokens(self, label: Tensor, colour: Tensor) -> Tensor:
        """Return tokens of labels and colours; −1 is a colour that is not known."""
        return label * (self.colours + 1) + colour + 1
