"""Which pair of channels turns by which axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError, check_positive
from ropewalk.frequencies.spectrum import check_base

Row = tuple[int | None, ...]


@dataclass(frozen=True)
class Allocation:
    """Pair i of key head h turns by the coordinate of axis ``rows[h][i]``; None: it does not turn.

    The ways of dealing out pairs that are published are class methods; every one of them is this table, and can be written
    down as such. ``print`` draws it.

    Args:
        rows: the axis of each pair; one row for all heads, or one a key head.
        names: of the axes, for people.
        ladder: "shared": pair i has RoPE's frequency of pair i, base^(−i/P), whatever its axis. "own": the n-th of the N
            pairs of an axis has base^(−n/N), so that each axis has a whole ladder to itself.
        bases: of each axis, where they differ from the encoding's.

    Raises:
        ConfigError: no pairs, rows of different lengths, an axis that has no name, more axes than pairs.

    Example:
        >>> print(Allocation.interleaved((4, 2, 2)))
        t h w t h w t t
    """

    rows: tuple[Row, ...]
    names: tuple[str, ...] = ("t", "h", "w")
    ladder: Literal["shared", "own"] = "shared"
    bases: tuple[float, ...] | None = field(default=None)

    def __post_init__(self) -> None:
        if not self.rows or not self.rows[0] or len({len(row) for row in self.rows}) != 1:
            raise ConfigError("an allocation is a row of axes, one for each pair, or such a row for each key head")
        pairs = len(self.rows) * len(self.rows[0])
        if len(self.names) > pairs:
            raise ConfigError(
                f"{len(self.names)} axes ({', '.join(self.names)}) and only {pairs} pairs of channels; each axis needs one"
            )
        beyond = sorted({a for row in self.rows for a in row if a is not None and not 0 <= a < len(self.names)})
        if beyond:
            raise ConfigError(f"axes {beyond} of {len(self.names)} ({', '.join(self.names)}); they are counted from 0")
        if self.ladder not in ("shared", "own"):
            raise ConfigError(f"ladder is 'shared' or 'own'; got {self.ladder!r}")
        if self.bases is not None:
            if len(self.bases) != len(self.names):
                raise ConfigError(f"{len(self.bases)} bases for {len(self.names)} axes; give one for each")
            for base in self.bases:
                check_base(base)

    # ---- published ways ---------------------------------------------------------------------------------------

    @classmethod
    def contiguous(
        cls,
        sections: Sequence[int],
        names: Sequence[str] = ("t", "h", "w"),
        ladder: Literal["shared", "own"] = "shared",
    ) -> Allocation:
        """Runs of pairs in the order of the axes, the first run with the fastest frequencies (M-RoPE)."""
        sections = check_sections(sections, len(names))
        return cls((tuple(a for a, n in enumerate(sections) for _ in range(n)),), tuple(names), ladder)

    @classmethod
    def interleaved(cls, sections: Sequence[int], names: Sequence[str] = ("t", "h", "w")) -> Allocation:
        """Axis a takes every len(sections)-th pair from pair a on, as many as its section; what is left is the first axis's."""
        sections, n = check_sections(sections, len(names)), len(names)
        pairs = sum(sections)
        row = [0] * pairs
        for axis in range(1, n):
            if n * sections[axis] > pairs:
                raise ConfigError(
                    f"sections {list(sections)}: one pair in {n} of {pairs} makes {pairs // n}, and axis {names[axis]!r} "
                    f"asks for {sections[axis]}"
                )
            row[axis : n * sections[axis] : n] = [axis] * sections[axis]
        return cls((tuple(row),), tuple(names))

    @classmethod
    def time_last(cls, sections: Sequence[int], *, rotate_time: bool = True, row_first: bool = True) -> Allocation:
        """Height and width alternate over the fast pairs, and time has the slow ones at the end (VideoRoPE).

        Args:
            sections: pairs of (t, h, w); of h and w the sum alone matters.
            rotate_time: without it the pairs of time stand still (HoPE).
            row_first: height has the even pairs.
        """
        time, height, width = check_sections(sections, 3)
        space = tuple((1 if (i % 2 == 0) == row_first else 2) for i in range(height + width))
        return cls(((*space, *((0 if rotate_time else None),) * time),))

    @classmethod
    def cyclic(cls, pairs: int, names: Sequence[str]) -> Allocation:
        """Pair i turns by axis i mod A (VRoPE)."""
        check_positive(pairs=pairs, axes=len(names))
        if pairs < len(names):
            raise ConfigError(f"{len(names)} axes and only {pairs} pairs of channels; each axis needs one")
        return cls((tuple(i % len(names) for i in range(pairs)),), tuple(names))

    @classmethod
    def by_head(
        cls, heads: Sequence[int], pairs: int, num_heads: int, names: Sequence[str] = ("t", "h", "w")
    ) -> Allocation:
        """Whole key heads, in the order of the axes; heads that are left over do not turn (MHRoPE)."""
        check_positive(pairs=pairs, num_heads=num_heads)
        if len(heads) != len(names) or any(isinstance(h, bool) or not isinstance(h, int) or h < 0 for h in heads):
            raise ConfigError(f"heads {list(heads)}: give the number of key heads of each axis ({', '.join(names)})")
        if not 0 < sum(heads) <= num_heads:
            raise ConfigError(f"{list(heads)} are {sum(heads)} key heads, and the layer has {num_heads}")
        axes: list[int | None] = [a for a, n in enumerate(heads) for _ in range(n)]
        axes += [None] * (num_heads - len(axes))
        return cls(tuple((axis,) * pairs for axis in axes), tuple(names))

    @classmethod
    def one(cls, pairs: int, name: str = "p") -> Allocation:
        """All pairs turn by the only axis."""
        check_positive(pairs=pairs)
        return cls(((0,) * pairs,), (name,))

    @classmethod
    def each(cls, pairs: int) -> Allocation:
        """Positions give every pair a coordinate of its own."""
        check_positive(pairs=pairs)
        return cls((tuple(range(pairs)),), tuple(f"p{i}" for i in range(pairs)))

    # ---- reading ----------------------------------------------------------------------------------------------

    @property
    def pairs(self) -> int:
        """Pairs of channels of a head."""
        return len(self.rows[0])

    @property
    def axes(self) -> int:
        """Axes of a position."""
        return len(self.names)

    @property
    def heads(self) -> int | None:
        """Key heads, where they differ."""
        return None if len(self.rows) == 1 else len(self.rows)

    def of(self, axis: int, head: int = 0) -> tuple[int, ...]:
        """Pairs that turn by an axis."""
        return tuple(i for i, a in enumerate(self.rows[head]) if a == axis)

    def frequencies(self, base: float, shared: Sequence[float] | None = None) -> Tensor:
        """Inverse frequencies, 0 where a pair does not turn: (rows, P) float64 on the CPU.

        Args:
            base: of axes without one of their own.
            shared: frequencies to use instead of the geometric ones, one a pair.
        """
        made = torch.zeros(len(self.rows), self.pairs, dtype=torch.float64, device="cpu")
        for h in range(len(self.rows)):
            for axis in range(self.axes):
                mine = self.of(axis, h)
                own = base if self.bases is None else self.bases[axis]
                for n, i in enumerate(mine):
                    place = i / self.pairs if self.ladder == "shared" else n / len(mine)
                    made[h, i] = shared[i] if shared is not None else float(own) ** -place
        return made

    def spread(self, position: Tensor) -> Tensor:
        """Give each pair the coordinate of its axis: (b, S, axes) → (b, rows, S, P); 0 where a pair does not turn."""
        if position.ndim != 3 or position.shape[2] != self.axes:
            raise PositionError(
                f"positions have shape {tuple(position.shape)}; this allocation reads (batch, seq, {self.axes}): "
                f"{', '.join(self.names)}"
            )
        axis = [0 if a is None else a for row in self.rows for a in row]
        taken = position[..., axis].unflatten(-1, (len(self.rows), self.pairs)).movedim(2, 1)
        if any(a is None for row in self.rows for a in row):
            turns = [[a is not None for a in row] for row in self.rows]
            taken = taken * torch.tensor(turns, device=position.device)[:, None]
        return taken

    def __str__(self) -> str:
        letters = [" ".join("·" if a is None else self.names[a] for a in row) for row in self.rows]
        if len(letters) == 1:
            return letters[0]
        return "\n".join(f"key head {h}: {text}" for h, text in enumerate(letters))


def check_sections(sections: Sequence[int], axes: int, pairs: int | None = None) -> tuple[int, ...]:
    """Return the pairs of each axis, checked: one whole number of at least 1 an axis, ``pairs`` together."""
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in sections)
    if len(sections) != axes or not whole:
        raise ConfigError(f"sections {list(sections)}: give the number of pairs of each of {axes} axes, at least 1")
    if pairs is not None and sum(sections) != pairs:
        raise ConfigError(
            f"sections {list(sections)} are {sum(sections)} pairs together, and {2 * pairs} channels have {pairs}"
        )
    return tuple(sections)


def share_out(pairs: int, *, eighths: tuple[float, float] = (3, 3)) -> tuple[int, int, int]:
    """Return (t, h, w) pairs in the published proportion: h and w some eighths each, rounded down, and t the rest.

    (3, 3) makes (16, 24, 24) of 64; (2.5, 2.5) makes (24, 20, 20).
    """
    if pairs < 3:
        raise ConfigError(
            f"three axes (t, h, w) and only {pairs} pairs of channels; each axis needs one, so head_dim is at least 6"
        )
    height, width = (max(1, math.floor(pairs * n / 8)) for n in eighths)
    return pairs - height - width, height, width


def runs(row: Row, names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the runs of a row as (name, first pair, pairs), "·" where nothing turns."""
    made: list[list[int | None]] = []
    for axis in row:
        if made and made[-1][0] == axis:
            made[-1].append(axis)
        else:
            made.append([axis])
    starts = [0, *accumulate(len(run) for run in made)]
    return [("·" if run[0] is None else names[run[0]], s, len(run)) for run, s in zip(made, starts, strict=False)]
