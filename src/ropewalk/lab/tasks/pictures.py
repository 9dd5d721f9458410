"""Pictures with a label, at any resolution: shapes that are drawn anew at each, and digits that are scaled."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache

import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from ropewalk.core.errors import ConfigError, check_positive, suggest
from ropewalk.lab.data.extras import need
from ropewalk.lab.tasks.examples import uniform
from ropewalk.lab.tasks.task import HELD_OUT


class Pictures(ABC):
    """Scenes, and what they look like at a resolution.

    A scene is a row of numbers that know nothing of resolutions, so that a picture of twice the size is the same scene.

    Attributes:
        classes: names of the labels.
        smallest: cells a side below which labels cannot be told.
        levels: grey levels that tell them.
    """

    classes: tuple[str, ...]
    smallest: int
    levels: int

    @abstractmethod
    def scenes(self, generator: Generator, count: int, *, test: bool) -> Tensor:
        """Draw scenes, (count, numbers) float64; ``test``: for scoring, where data have a side that is kept for it."""

    @abstractmethod
    def labels(self, scenes: Tensor) -> Tensor:
        """(count,) int64: what they show."""

    @abstractmethod
    def render(self, scenes: Tensor, size: int) -> Tensor:
        """(count, size, size) float64 from 0, dark, to 1, row by row from the top."""

    @abstractmethod
    def recognise(self, levels: Tensor, number: int) -> int:
        """Label of one picture (n, n) in so many grey levels (`quantised`), from the picture alone."""


def quantised(pictures: Tensor, levels: int) -> Tensor:
    """Return round((levels − 1) · grey), int64: 0 is dark."""
    return (pictures * (levels - 1)).round().long()


class Shapes(Pictures):
    """A bar in one of four directions, or a ring: anywhere, 0.56 to 0.8 of the picture long and about a sixth of that thick.

    A cell is as bright as its centre lies inside the outline, from one cell's half outside to half inside. All bars are alike
    but for how they are turned: who only counts bright cells tells a ring from a bar and no bar from another.
    """

    classes = ("row", "column", "falling", "rising", "ring")
    smallest = 6  # a bar is at least as thick as a cell of a sixth, and so meets a centre
    levels = 2

    _TURN = (0.0, math.pi / 2, math.pi / 4, -math.pi / 4)
    _RING = len(_TURN)
    _REACH, _THICK = (0.28, 0.40), (0.085, 0.10)  # half of the length and of the thickness, in pictures

    def scenes(self, generator: Generator, count: int, *, test: bool) -> Tensor:
        """(kind, row, column, half length, half thickness)."""
        kind = uniform(generator, len(self.classes), count).double()
        drawn = torch.rand(count, 4, dtype=torch.float64, generator=generator)
        long, thick = (low + (high - low) * drawn[:, n] for n, (low, high) in enumerate((self._REACH, self._THICK)))
        cos, sin = self._direction(kind)
        ring = kind == self._RING
        down, across = (torch.where(ring, long, long * a.abs() + thick * b.abs()) for a, b in ((sin, cos), (cos, sin)))
        row, column = (reach + (1 - 2 * reach) * drawn[:, n] for n, reach in ((2, down), (3, across)))
        return torch.stack([kind, row, column, long, thick], 1)

    def labels(self, scenes: Tensor) -> Tensor:
        return scenes[:, 0].long()

    def render(self, scenes: Tensor, size: int) -> Tensor:
        check_positive(size=size)
        kind, row, column, long, thick = scenes[:, :, None, None].unbind(1)
        centre = (torch.arange(size, dtype=torch.float64) + 0.5) / size
        down, across = centre[:, None] - row, centre - column
        cos, sin = self._direction(kind)
        along, aside = cos * across + sin * down, cos * down - sin * across
        bar = torch.minimum(long - along.abs(), thick - aside.abs())
        ring = thick - ((down.square() + across.square()).sqrt() - (long - thick)).abs()
        inside = torch.where(kind == self._RING, ring, bar)
        return (0.5 + size * inside).clamp(0, 1)

    def recognise(self, levels: Tensor, number: int) -> int:
        """Tell by the moments of the bright cells: a ring spreads alike in all directions, a bar along one."""
        weight = levels.double()
        at = torch.arange(len(weight), dtype=torch.float64)
        places = torch.stack(torch.meshgrid(at, at, indexing="ij"))
        centred = places - (places * weight).sum((1, 2), keepdim=True) / weight.sum()
        down, across = (centred.square() * weight).sum((1, 2)).tolist()
        both = float((centred[0] * centred[1] * weight).sum())
        if math.hypot(across - down, 2 * both) < 0.4 * (across + down):
            return self._RING
        turn = math.atan2(2 * both, across - down) / 2
        return min(range(len(self._TURN)), key=lambda n: 1 - math.cos(2 * (turn - self._TURN[n])))

    def _direction(self, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of where a bar points, from the columns towards the rows; of a ring it does not matter."""
        turn = torch.tensor((*self._TURN, 0.0), dtype=torch.float64)[kind.long()]
        return turn.cos(), turn.sin()


class Digits(Pictures):
    """The 1797 handwritten digits of scikit-learn, 8 × 8, scaled linearly; one in eight is kept for scoring.

    Raises:
        ConfigError: scikit-learn is not installed.

    Source: E. Alpaydin, C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998.
    """

    classes = tuple("0123456789")
    smallest = 6
    levels = 4  # with fewer, some digits look the same in 6 x 6 cells

    def __init__(self) -> None:
        self.pictures, self.targets = _digits()

    def scenes(self, generator: Generator, count: int, *, test: bool) -> Tensor:
        """(number of the digit,)."""
        kept = torch.arange(len(self.targets)) % HELD_OUT == 0
        side = (kept == test).nonzero()[:, 0]
        return side[uniform(generator, len(side), count)][:, None].double()

    def labels(self, scenes: Tensor) -> Tensor:
        return self.targets[scenes[:, 0].long()]

    def render(self, scenes: Tensor, size: int) -> Tensor:
        check_positive(size=size)
        return self._scaled(self.pictures[scenes[:, 0].long()], size)

    def recognise(self, levels: Tensor, number: int) -> int:
        """Look it up."""
        known = quantised(self._scaled(self.pictures, len(levels)), number)
        return int(self.targets[(known - levels).abs().sum((1, 2)).argmin()])

    @staticmethod
    def _scaled(pictures: Tensor, size: int) -> Tensor:
        scaled = interpolate(pictures[:, None], (size, size), mode="bilinear", align_corners=False, antialias=True)
        return scaled[:, 0].clamp(0, 1)  # rounding may leave the range


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """Pictures (N, 8, 8) in [0, 1] and labels (N,), read once."""
    data = need("sklearn.datasets", "pictures of digits", extra="digits", package="scikit-learn").load_digits()
    return torch.as_tensor(data.images, dtype=torch.float64) / 16, torch.as_tensor(data.target, dtype=torch.int64)


PICTURES: dict[str, type[Pictures]] = {"shapes": Shapes, "digits": Digits}


def pictures(data: str) -> Pictures:
    """Return the pictures of that name, "shapes" or "digits"."""
    if data not in PICTURES:
        raise ConfigError(f"data is one of {', '.join(PICTURES)}; got {data!r}.{suggest(data, PICTURES)}")
    return PICTURES[data]()
