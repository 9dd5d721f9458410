"""What a picture takes from a reference that it attends to: the colour of what is the same, or what is at the same place?

labels  1 1 2    known  a ? b    reference  2 2 1    known  d d c      → of a cell 1: c
        1 2 2           ? b ?               2 1 1           d c c
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
    """Patches of labels, each label of one colour in a picture; the colours of some cells are to be named.

    In training there is one picture: some colours are missing, and some labels with them, so that neighbours are asked as well as
    cells of the same label. In scoring no colour of the picture is known, and it shares a grid with a reference of other patches
    and all colours: a cell is to have the colour that its label has there. Only cells are scored at whose place the reference
    has another label.

    Args:
        train_size: rows and columns.
        eval_sizes: likewise.
        examples: see `Filled`.
        encoder: likewise.
        labels: patches of a picture.
        colours: number of them.
    """

    name = "shared_picture"
    domain = "shared_grid"
    summary = "colours of a picture, taken from a reference by what cells are and not by where"
    source = "made for this library, after the shared attention of Untwisting RoPE (arXiv 2602.05013)"
    size_name = "rows and columns"
    train_size = 5
    eval_sizes = (5,)
    min_size = 3

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        labels: int = 3,
        colours: int = 6,
    ) -> None:
        check_positive(labels=labels)
        named = letters(colours)
        if not 2 <= labels <= min(colours, self.min_size**2):
            raise ConfigError(f"labels are 2 to {min(colours, self.min_size**2)}, each of a colour; got {labels}")
        self.labels, self.colours = labels, colours
        self.symbols = tuple(f"{label or '?'}{colour}" for label in range(labels + 1) for colour in ("?", *named))
        super().__init__(train_size, eval_sizes, examples, encoder)

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        place = grid_positions(size, size).query.position.double()
        label = self._patches(place[0], count, generator)
        colour = distinct(generator, count, self.colours, self.labels)
        if not test:
            hidden = torch.rand(label.shape, generator=generator) < 0.5
            hidden[:, 0] |= ~hidden.any(1)
            nameless = hidden & (torch.rand(label.shape, generator=generator) < 0.5)
            own = colour.gather(1, label)
            tokens = self._tokens(torch.where(nameless, -1, label), torch.where(hidden, -1, own))
            targets = torch.where(hidden, self._tokens(label, own), IGNORE)
            number = torch.zeros_like(tokens)
        else:
            other = self._patches(place[0], count, generator)
            crossed = label != other
            # Where both pictures are alike by chance the first cell is scored for all the same.
            crossed[:, 0] |= ~crossed.any(1)
            own = colour.gather(1, label)
            tokens = torch.cat(
                [self._tokens(label, torch.full_like(label, -1)), self._tokens(other, colour.gather(1, other))], 1
            )
            asked = torch.where(crossed, self._tokens(label, own), IGNORE)
            targets = torch.cat([asked, torch.full_like(asked, IGNORE)], 1)
            number = torch.cat([torch.zeros_like(label), torch.ones_like(label)], 1)
            place = torch.cat([place, place], 1)
        return Batch(tokens, targets, positions=place.expand(count, -1, -1), columns={REFERENCE: number})

    def _patches(self, place: Tensor, count: int, generator: Generator) -> Tensor:
        """Draw the label of each cell, that of the nearest of as many random cells, (count, cells)."""
        centre = place[distinct(generator, count, len(place), self.labels)]
        return (place[:, None] - centre[:, None]).square().sum(-1).argmin(-1)

    def _tokens(self, label: Tensor, colour: Tensor) -> Tensor:
        """Return tokens of labels and colours; −1 is not known."""
        return (label + 1) * (self.colours + 1) + colour + 1
