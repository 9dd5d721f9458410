"""What a sample is made of: text, images, videos. A list of blocks says where every token is, before any scheme counts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError

TEXT, IMAGE, VIDEO, SHARED, SIGNAL = 1, 2, 3, 4, 5

FIELDS = (
    "kind",  # TEXT (only where something is said of it), IMAGE, VIDEO, SHARED, SIGNAL; 0: no block, the row has fewer
    "start",  # position of its first token, counted in its document
    "tokens",
    "first",  # number of the first block of its document
    "frames", "rows", "columns", "depth",  # sizes of a grid, 1 where it has none
    "modality",
    "group",  # blocks of one image: tiles, or the grids of several encoders; 0: none
    "last",  # 1: the last grid of its group
    "down", "across", "tile",  # tiles of an image, and which one this is, row by row; 0, 0, 0: no tile
    "times",  # where the times of its frames begin; -1: they have none
    "reference",  # number of the reference image that it is, from 1; 0: none
    "numbers",  # where the numbers of its tokens begin, under every name; -1: they have none
)  # fmt: skip
"""What is known of a block, each a number."""

Entry = dict[str, float]

Numbers = Mapping[str, Sequence[float]]

NUMBER = "number "
"""Before a name, in the facts of a sequence: the numbers of that name of all tokens that have any; NaN where not this one."""


class Table:
    """Blocks of a batch, by field: (b, N) each."""

    __slots__ = ("facts", "numbers")

    def __init__(self, numbers: Tensor, facts: Mapping[str, Tensor]) -> None:
        self.numbers, self.facts = numbers, facts

    def __getitem__(self, name: str) -> Tensor:
        return self.numbers[..., FIELDS.index(name)]

    @property
    def real(self) -> Tensor:
        """Whether there is a block; rows have different numbers of them."""
        return self["kind"] > 0

    @property
    def visual(self) -> Tensor:
        """Whether it is an image or a video."""
        return (self["kind"] == IMAGE) | (self["kind"] == VIDEO)

    def seconds(self, frame: Tensor, offset: Tensor) -> Tensor:
        """Return when frames are shown whose times begin at an offset; without times they are a second apart."""
        times = self.facts.get("times")
        if times is None or not times.shape[-1]:
            return frame
        index = (offset + frame).long().clamp(0, times.shape[-1] - 1)
        rows = max(times.shape[0], index.shape[0])
        return torch.where(offset < 0, frame, times.expand(rows, -1).gather(1, index.expand(rows, -1)))


class Block(ABC):
    """A stretch of tokens of one kind. Immutable, equal by what it says."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Entry, Sequence[float] | None]]:
        """Yield what the table says of it, without start, and the times of its frames."""

    def numbers(self) -> Numbers:
        """Return the numbers that each of its tokens has by name, for schemes that read them."""
        return {}


@dataclass(frozen=True)
class Text(Block):
    """Tokens in a row.

    Args:
        tokens: how many.
        modality: a number for schemes that tell kinds of tokens apart.
        group: a number above 0 that it has in common with the grid whose marker it is.
        shared: the text after it begins where it does: one of several suffixes (`ropewalk.coordinates.layout.suffix_mask` hides
            them from each other).
    """

    tokens: int
    modality: int = 0
    group: int = 0
    shared: bool = False

    def __post_init__(self) -> None:
        _sizes(tokens=self.tokens)

    @property
    def length(self) -> int:
        return self.tokens

    def entries(self) -> Iterator[tuple[Entry, None]]:
        if self.shared or self.modality or self.group:
            kind = SHARED if self.shared else TEXT
            yield {"kind": kind, "tokens": self.tokens, "modality": self.modality, "group": self.group}, None


@dataclass(frozen=True)
class Image(Block):
    """A grid of tokens, row by row.

    Args:
        rows: tokens from top to bottom, after any merging of patches.
        columns: tokens from left to right.
        modality: a number for schemes that tell kinds of tokens apart.
        group: a number above 0 that the grids of one image have in common, where several encoders see it.
        reference: number of the reference image that it is, from 1; 0: it is none.
    """

    rows: int
    columns: int
    modality: int = 0
    group: int = 0
    reference: int = 0

    def __post_init__(self) -> None:
        _sizes(rows=self.rows, columns=self.columns)
        if isinstance(self.reference, bool) or not isinstance(self.reference, int) or self.reference < 0:
            raise ConfigError(f"reference images are numbered from 1, and 0 is none; got {self.reference!r}")

    @property
    def length(self) -> int:
        return self.rows * self.columns

    def entries(self) -> Iterator[tuple[Entry, None]]:
        yield {**_grid(self, IMAGE), "group": self.group, "reference": self.reference}, None


@dataclass(frozen=True)
class Video(Block):
    """Frames of the same grid, one after the other, each row by row.

    Args:
        frames: groups of frames that became tokens.
        rows: tokens from top to bottom.
        columns: tokens from left to right.
        seconds: between frames, or the time of each frame; None: not known. Times never run backwards.
        modality: a number for schemes that tell kinds of tokens apart.
        group: a number above 0 that blocks of one video have in common.
        depth: tokens of a third axis of space, innermost.
    """

    frames: int
    rows: int
    columns: int
    seconds: float | tuple[float, ...] | None = None
    modality: int = 0
    group: int = 0
    depth: int = 1

    def __post_init__(self) -> None:
        _sizes(frames=self.frames, rows=self.rows, columns=self.columns, depth=self.depth)
        given = self.seconds
        if given is None:
            return
        if isinstance(given, Sequence):
            object.__setattr__(self, "seconds", tuple(float(t) for t in given))
            if len(given) != self.frames:
                raise PositionError(f"{len(given)} times for {self.frames} frames; give one for each")
        times = self.times() or ()
        wrong = [t for t in times if not math.isfinite(t) or t < 0]
        if wrong or any(b < a for a, b in pairwise(times)):
            said = f"{wrong[0]!r}" if wrong else f"{list(times)}"
            raise PositionError(f"times of frames are seconds from 0 on that never run backwards; got {said}")

    @property
    def length(self) -> int:
        return self.frames * self.rows * self.columns * self.depth

    def times(self) -> tuple[float, ...] | None:
        """Return the time of each frame."""
        if isinstance(self.seconds, tuple):
            return self.seconds
        return None if self.seconds is None else tuple(f * float(self.seconds) for f in range(self.frames))

    def entries(self) -> Iterator[tuple[Entry, Sequence[float] | None]]:
        sizes = {"frames": self.frames, "depth": self.depth, "group": self.group}
        yield {**_grid(self, VIDEO), **sizes}, self.times()


@dataclass(frozen=True)
class Tiles(Block):
    """A large image cut into tiles, row by row of tiles, and then the whole of it once more as a thumbnail.

    Args:
        down: tiles from top to bottom.
        across: tiles from left to right.
        rows: tokens of a tile, and of the thumbnail, from top to bottom.
        columns: from left to right.
        modality: a number for schemes that tell kinds of tokens apart.

    An image of one tile has no thumbnail: it is an `Image`.
    """

    down: int
    across: int
    rows: int
    columns: int
    modality: int = 0

    def __post_init__(self) -> None:
        _sizes(down=self.down, across=self.across, rows=self.rows, columns=self.columns)

    @property
    def grids(self) -> int:
        """Tiles and thumbnail."""
        tiles = self.down * self.across
        return tiles + 1 if tiles > 1 else 1

    @property
    def length(self) -> int:
        return self.grids * self.rows * self.columns

    def entries(self) -> Iterator[tuple[Entry, None]]:
        for tile in range(self.grids - 1):
            yield {**_grid(self, IMAGE), "group": -1, "down": self.down, "across": self.across, "tile": tile}, None
        yield {**_grid(self, IMAGE), "group": -1 if self.grids > 1 else 0}, None


def _grid(block: Image | Video | Tiles, kind: int) -> Entry:
    depth = block.depth if isinstance(block, Video) else 1
    tokens = block.rows * block.columns * depth * (block.frames if isinstance(block, Video) else 1)
    sizes = {"rows": block.rows, "columns": block.columns, "tokens": tokens}
    return {"kind": kind, **sizes, "modality": block.modality}


def _sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"{name} of a block is a whole number, at least 1; got {size!r}")
