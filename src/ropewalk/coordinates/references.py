"""Reference images of a video, in a part of its coordinates that the video never reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ropewalk.coordinates.blocks import Block, Image, Table, Video
from ropewalk.coordinates.layout import layout
from ropewalk.coordinates.scheme import Cells
from ropewalk.coordinates.whole_video import WholeVideo, demand, images, number_of, together, value_of, videos
from ropewalk.core.errors import ConfigError, PositionError, check_positive
from ropewalk.core.positions import Positions

REFERENCE = "reference"
"""Column of `reference_coords`: 0 for tokens of the video, n for those of reference image n, counted from 1."""

Time = Literal["index", "after"] | float


@dataclass(frozen=True)
class ReferenceIds(WholeVideo):
    """(t, h, w) = (f, y, x) for the video, T × H × W;  (i, o_h + y, o_w + x) for reference image i = 0, 1, …

    Args:
        max_h: o_h, at least the rows of any video; None: the rows of this one.
        max_w: o_w, at least the columns of any video; None: the columns of this one.
        time: t of reference i: "index": i. "after": T + i. A number: that, for all of them.
        stack_space: reference i lies at (i + 1)·o_h and (i + 1)·o_w, a staircase; else all begin at one corner.
        shift: whether there is o_h, and o_w; without them (0 instead) and "after" the references are further frames.
        rotate_refs: without, all tokens of references are at (0, 0, 0), where nothing turns.
        max_refs: reference images that a sample may have; None: any number.

    Raises:
        PositionError: no video or several, images without a number, or with the same, more than max_refs, a video that reaches
            into the part of the references.
    """

    max_h: int | None = 80
    max_w: int | None = 80
    time: Time = "index"
    stack_space: bool = False
    shift: tuple[bool, bool] = (True, True)
    rotate_refs: bool = True
    max_refs: int | None = 3

    def __post_init__(self) -> None:
        check_positive(max_h=self.max_h, max_w=self.max_w, max_refs=self.max_refs)
        number = isinstance(self.time, int | float) and not isinstance(self.time, bool) and math.isfinite(self.time)
        if not number and self.time not in ("index", "after"):
            raise ConfigError(f"time of references is 'index', 'after' or a number; got {self.time!r}")
        object.__setattr__(self, "shift", tuple(bool(s) for s in self.shift))
        if len(self.shift) != 2:
            raise ConfigError(f"shift says of height and of width whether they are shifted; got {self.shift!r}")

    def check(self, table: Table) -> None:
        video, image, number = videos(table), images(table), table["reference"]
        demand(
            ((number_of(video, together(table)) == 1) | ~table.real).all(),
            "references are placed beside one video; give each sample exactly one Video",
        )
        demand(
            (~image | (number > 0)).all(), "an image without a number; write Image(rows, columns, reference=1), 2, …"
        )
        twice = (
            (number[..., :, None] == number[..., None, :]) & together(table) & image[..., None, :] & image[..., :, None]
        )
        demand(~(twice.sum(-1) > 1).any(), "two references of a sample have one number; count them: reference=1, 2, …")
        if self.max_refs is not None:
            demand(
                (number <= self.max_refs).all(),
                f"a reference is numbered from 1 to {self.max_refs}; raise max_refs= if the model was trained with more",
            )
        for axis, name, most, shifted in (
            ("h", "rows", self.max_h, self.shift[0]),
            ("w", "columns", self.max_w, self.shift[1]),
        ):
            if most is not None and shifted:
                demand(
                    (~video | (table[name] <= most)).all(),
                    f"a video has more than {most} {name}, where the references begin: raise max_{axis}=, or "
                    "give None for the size of the video",
                )

    def place(self, cells: Cells) -> Tensor:
        table, number = cells.table, cells["reference"] - 1

        def of_video(name: str) -> Tensor:
            return cells.take(value_of(table[name], videos(table), together(table)))

        plain = torch.stack([cells.frame, cells.row, cells.column], -1)
        if not self.rotate_refs:
            return torch.where((number >= 0)[..., None], 0.0, plain)
        if self.time == "index":
            time = number
        else:
            time = of_video("frames") + number if self.time == "after" else torch.full_like(number, float(self.time))
        steps = number + 1 if self.stack_space else torch.ones_like(number)
        corner = []
        for name, most, shifted in (("rows", self.max_h, self.shift[0]), ("columns", self.max_w, self.shift[1])):
            offset = of_video(name) if most is None else torch.full_like(number, float(most))
            corner.append(steps * offset if shifted else torch.zeros_like(number))
        placed = torch.stack([time, corner[0] + cells.row, corner[1] + cells.column], -1)
        return torch.where((number >= 0)[..., None], placed, plain)


def reference_layout(
    video_thw: Sequence[int], refs_hw: Sequence[Sequence[int]] = (), *, first: bool = True
) -> list[Block]:
    """Return the blocks of a video and of its reference images, numbered from 1.

    Args:
        video_thw: frames, rows and columns of the video, in tokens.
        refs_hw: rows and columns of each reference image, in tokens.
        first: the references come before the video, else after it.
    """
    if len(video_thw) != 3 or any(len(size) != 2 for size in refs_hw):
        raise PositionError(
            f"a video has three sizes (frames, rows, columns) and a reference image two; got {list(video_thw)} and "
            f"{[list(size) for size in refs_hw]}"
        )
    refs: list[Block] = [Image(h, w, reference=n) for n, (h, w) in enumerate(refs_hw, 1)]
    video = Video(*video_thw)
    return [*refs, video] if first else [video, *refs]


def reference_coords(
    video_thw: Sequence[int],
    refs_hw: Sequence[Sequence[int]] = (),
    max_h: int | None = 80,
    max_w: int | None = 80,
    time: Time = "index",
    stack_space: bool = False,
    *,
    shift: tuple[bool, bool] = (True, True),
    rotate_refs: bool = True,
    max_refs: int | None = 3,
    first: bool | None = None,
) -> Positions:
    """Return (t, h, w) of the tokens of a video and its reference images, for any encoding of three axes.

    Args:
        video_thw: frames, rows and columns of the video, in tokens.
        refs_hw: rows and columns of each reference image, in tokens.
        max_h: see `ReferenceIds`, as for all that is not said here.
        max_w: likewise.
        time: likewise.
        stack_space: likewise.
        shift: likewise.
        rotate_refs: likewise.
        max_refs: likewise.
        first: the references come before the video in the sequence; None: unless time is "after", as released.

    Returns:
        Positions (1, tokens, 3), whole numbers unless ``time`` is none, with the column "reference": 0 for the video, n for
        reference n. Tokens to be turned back into a video are ``positions.query.column("reference") == 0``.

    Example:
        >>> where = reference_coords((1, 1, 2), [(1, 1)], max_h=4, max_w=5)
        >>> where.query.position.tolist()
        [[[0, 4, 5], [0, 0, 0], [0, 0, 1]]]
    """
    scheme = ReferenceIds(max_h, max_w, time, stack_space, shift, rotate_refs, max_refs)
    blocks = reference_layout(video_thw, refs_hw, first=time != "after" if first is None else first)
    tokens = layout(blocks).query
    made = scheme.coordinates(tokens)
    whole = made.long() if bool((made == made.round()).all()) else made
    kinds = Cells.of(tokens, tokens.position.double())["reference"].long()
    return Positions(whole, columns={REFERENCE: kinds})


def sample_references(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw samples of two reference images of six cells together and a video of six cells a frame, cut off at ``seq`` tokens."""
    shapes, frames = (
        (((1, 2), (2, 2), (2, 3)), ((2, 2), (1, 2), (3, 2)), ((4, 1), (2, 1), (1, 6))),
        max(1, -(-seq // 6)),
    )
    rows = []
    for pick in torch.randint(0, len(shapes), (batch,), generator=generator).tolist():
        first, second, cells = shapes[pick]
        rows.append(reference_layout((frames, *cells), [first, second]))
    return layout(rows).slice(0, seq)
