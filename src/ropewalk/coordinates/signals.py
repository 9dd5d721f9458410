"""Blocks whose tokens know more than a cell of a grid: boxes, tracks, sound, hierarchies, trees, agents, spectra.

Each of their tokens has numbers by name. A published scheme reads those it is made for and refuses the others;
`ropewalk.coordinates.column_ids.ColumnIds` makes axes of any of them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ropewalk.coordinates.blocks import SIGNAL, Block, Entry, Numbers
from ropewalk.core.errors import ConfigError, PositionError

Rows = tuple[tuple[float, ...], ...]


class Signal(Block):
    """Tokens in a row that have numbers by name, and whose place is what a scheme makes of these."""

    @abstractmethod
    def numbers(self) -> Numbers:
        """Return the numbers of each token, by name."""

    def entries(self) -> Iterator[tuple[Entry, None]]:
        yield {"kind": SIGNAL, "tokens": self.length}, None


@dataclass(frozen=True)
class Boxes(Signal):
    """Boxes in an image, a token each; with times the trajectory of one box.

    Numbers: row and column of the centre, height, width; seconds.

    Args:
        corners: (top, left, bottom, right) of each, in cells of the grid that they lie on.
        seconds: when each is there, rising; None: they are in one image.
    """

    corners: Rows
    seconds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _table(self, "corners", 4)
        for top, left, bottom, right in self.corners:
            if bottom < top or right < left:
                raise PositionError(
                    "a box is (top, left, bottom, right), and does not end before it begins; got "
                    f"{(top, left, bottom, right)}"
                )
        _times(self, "corners")

    @property
    def length(self) -> int:
        return len(self.corners)

    def numbers(self) -> Numbers:
        top, left, bottom, right = zip(*self.corners, strict=True)
        made: dict[str, Sequence[float]] = {
            "row": [(a + b) / 2 for a, b in zip(top, bottom, strict=True)],
            "column": [(a + b) / 2 for a, b in zip(left, right, strict=True)],
            "height": [b - a for a, b in zip(top, bottom, strict=True)],
            "width": [b - a for a, b in zip(left, right, strict=True)],
        }
        return made if self.seconds is None else {**made, "seconds": self.seconds}


@dataclass(frozen=True)
class Track(Signal):
    """The trajectory of a point, a token each time it is seen.

    Numbers: row, column, seconds.

    Args:
        points: (row, column) of each, in cells of the grid that they lie on.
        seconds: when each is there, rising.
    """

    points: Rows
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _table(self, "points", 2)
        _times(self, "points")

    @property
    def length(self) -> int:
        return len(self.points)

    def numbers(self) -> Numbers:
        row, column = zip(*self.points, strict=True)
        return {"row": row, "column": column, "seconds": self.seconds}


@dataclass(frozen=True)
class Audio(Signal):
    """Frames of sound, a token each.

    Numbers: seconds; speaker_0, speaker_1, …

    Args:
        frames: how many.
        seconds: from one to the next.
        speakers: how active each speaker is in each frame, from 0 to 1, (frames, speakers); None: nobody is told apart.
    """

    frames: int
    seconds: float
    speakers: Rows | None = None

    def __post_init__(self) -> None:
        _whole(frames=self.frames)
        if not 0 < self.seconds < math.inf:
            raise PositionError(f"frames of sound are some seconds apart, more than 0; got {self.seconds!r}")
        if self.speakers is None:
            return
        _table(self, "speakers", None)
        _as_many(len(self.speakers), self.frames, "rows of speakers", "frames")
        wrong = [a for row in self.speakers for a in row if not 0 <= a <= 1]
        if wrong:
            raise PositionError(f"a speaker is active from 0 to 1; got {wrong[0]!r}")

    @property
    def length(self) -> int:
        return self.frames

    def numbers(self) -> Numbers:
        made: dict[str, Sequence[float]] = {"seconds": [f * self.seconds for f in range(self.frames)]}
        if self.speakers is not None:
            made |= {f"speaker_{s}": active for s, active in enumerate(zip(*self.speakers, strict=True))}
        return made


@dataclass(frozen=True)
class Levels(Signal):
    """Text or code in a hierarchy: which paragraph, sentence, function, statement, … each token is of.

    Numbers: the names.

    Args:
        places: the number at each level of each token, (tokens, levels), from 0.
        names: of the levels.
    """

    places: Rows
    names: tuple[str, ...] = ("paragraph", "sentence")

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise ConfigError(f"levels have different names, at least one; got {list(self.names)}")
        object.__setattr__(self, "names", tuple(self.names))
        _table(self, "places", len(self.names))
        _counted(self.places, "a level")

    @property
    def length(self) -> int:
        return len(self.places)

    def numbers(self) -> Numbers:
        return dict(zip(self.names, zip(*self.places, strict=True), strict=True))


@dataclass(frozen=True)
class Tree(Signal):
    """Tokens on nodes of a tree.

    Numbers: depth; branch_0, branch_1, …: 1 + the number of the branch taken at each level, 0 below the node.

    Args:
        paths: for each token the branches from the root to its node, counted from 0; (): the root.
        levels: of the tree, at least as many as the longest path has branches.
    """

    paths: tuple[tuple[int, ...], ...]
    levels: int

    def __post_init__(self) -> None:
        _whole(levels=self.levels)
        object.__setattr__(self, "paths", tuple(tuple(path) for path in self.paths))
        _some(self.paths, "paths")
        _counted(self.paths, "a branch")
        deepest = max(self.paths, key=len)
        if len(deepest) > self.levels:
            raise PositionError(
                f"a path of {len(deepest)} branches in a tree of {self.levels} levels: {deepest}; raise levels="
            )

    @property
    def length(self) -> int:
        return len(self.paths)

    def numbers(self) -> Numbers:
        made: dict[str, Sequence[float]] = {"depth": [len(path) for path in self.paths]}
        for level in range(self.levels):
            made[f"branch_{level}"] = [path[level] + 1 if level < len(path) else 0 for path in self.paths]
        return made


@dataclass(frozen=True)
class Agents(Signal):
    """Agents on a plane, a token each, in no order but that of the sequence.

    Numbers: x, y, heading.

    Args:
        places: (x, y) of each, in metres.
        headings: of each, in radians; None: of none.
    """

    places: Rows
    headings: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _table(self, "places", 2)
        if self.headings is not None:
            object.__setattr__(self, "headings", _numbers(self.headings, "headings"))
            _as_many(len(self.headings), len(self.places), "headings", "agents")

    @property
    def length(self) -> int:
        return len(self.places)

    def numbers(self) -> Numbers:
        x, y = zip(*self.places, strict=True)
        return {"x": x, "y": y} if self.headings is None else {"x": x, "y": y, "heading": self.headings}


@dataclass(frozen=True)
class Bands(Signal):
    """Samples of a spectrum, or an image in many bands: band by band, each row by row.

    Numbers: wavelength, log_wavelength (natural, so that a redshift is a shift); row, column.

    Args:
        wavelengths: of the bands, in any one unit.
        rows: cells of each band from top to bottom; 1 for a spectrum.
        across: cells from left to right.
    """

    wavelengths: tuple[float, ...]
    rows: int = 1
    across: int = 1

    def __post_init__(self) -> None:
        _whole(rows=self.rows, across=self.across)
        object.__setattr__(self, "wavelengths", _numbers(self.wavelengths, "wavelengths"))
        wrong = [w for w in self.wavelengths if w <= 0]
        if wrong:
            raise PositionError(f"wavelengths are more than 0; got {wrong[0]!r}")

    @property
    def length(self) -> int:
        return len(self.wavelengths) * self.rows * self.across

    def numbers(self) -> Numbers:
        cells = [(w, r, c) for w in self.wavelengths for r in range(self.rows) for c in range(self.across)]
        wavelength, row, column = zip(*cells, strict=True)
        logs = [math.log(w) for w in wavelength]
        return {"wavelength": wavelength, "log_wavelength": logs, "row": row, "column": column}


# ---- checks ----------------------------------------------------------------------------------------------------------


def _whole(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"{name} of a block is a whole number, at least 1; got {size!r}")


def _some(values: Sequence[object], name: str) -> None:
    if not len(values):
        raise ConfigError(f"{name} of a block has at least one token; got none")


def _numbers(values: Sequence[float], name: str) -> tuple[float, ...]:
    _some(values, name)
    made = tuple(float(v) for v in values)
    wrong = [v for v in made if not math.isfinite(v)]
    if wrong:
        raise PositionError(f"{name} are finite numbers; got {wrong[0]!r}")
    return made


def _table(block: Signal, name: str, width: int | None) -> None:
    """Check a table of numbers, (tokens, width), and make it one of tuples."""
    given: Sequence[Sequence[float]] = getattr(block, name)
    _some(given, name)
    made = tuple(_numbers(row, name) for row in given)
    width = len(made[0]) if width is None else width
    wrong = [row for row in made if len(row) != width]
    if wrong:
        raise PositionError(f"{name} has {width} numbers for each token; got {wrong[0]}")
    object.__setattr__(block, name, made)


def _times(block: Boxes | Track, of: str) -> None:
    if block.seconds is None:
        return
    made = _numbers(block.seconds, "seconds")
    object.__setattr__(block, "seconds", made)
    _as_many(len(made), len(getattr(block, of)), "times", of)
    if made[0] < 0 or any(b < a for a, b in pairwise(made)):
        raise PositionError(f"times are seconds from 0 on that never run backwards; got {list(made)}")


def _as_many(have: int, want: int, what: str, of: str) -> None:
    if have != want:
        raise PositionError(f"{have} {what} for {want} {of}; give one for each")


def _counted(rows: Sequence[Sequence[float]], what: str) -> None:
    wrong = [n for row in rows for n in row if n != int(n) or n < 0]
    if wrong:
        raise PositionError(f"{what} is a whole number from 0; got {wrong[0]!r}")
