"""What a video depends on, each kind at a time that says how it belongs to the video: references, empty slots, trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.coordinates.blocks import Block, Image, Table, Video
from ropewalk.coordinates.layout import layout
from ropewalk.coordinates.scheme import Cells
from ropewalk.coordinates.whole_video import WholeVideo, demand, images, number_of, together, value_of, videos
from ropewalk.core.errors import ConfigError, PositionError, check_positive
from ropewalk.core.positions import Positions

EMPTY, TRAJECTORY = 1, 2
"""Modalities of the blocks that are a slot without a reference, and a map of trajectories."""

KINDS = {"video": 0, "reference": 1, "empty": 2, "trajectory": 3}
"""What the column "condition" of `condition_coords` says of a token."""


@dataclass(frozen=True)
class ConditionIds(WholeVideo):
    """(t, h, w) = (f, y, x) for the video and for trajectories, (T_ref, y, x) for references, (T_inv, y, x) for empty slots.

    All grids have the rows and columns of the video. Blocks are those of `condition_blocks`.

    Args:
        t_ref: T_ref, a time that no frame has.
        t_invalid: T_inv, another one.
        special: without (an ablation), slot s is at the time F + s after the F frames, whether it is empty or not.

    Raises:
        ConfigError: times that are equal or no numbers.
        PositionError: T_ref or T_inv among the times of the frames, no video or several, grids of another size, images that are
            neither a reference nor an empty slot, trajectories without ``special``, which gives them no coordinates.
    """

    t_ref: float
    t_invalid: float
    special: bool = True

    def __post_init__(self) -> None:
        for name, time in (("t_ref", self.t_ref), ("t_invalid", self.t_invalid)):
            if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
                raise ConfigError(f"{name} is a number; got {time!r}")
        if self.t_ref == self.t_invalid:
            raise ConfigError(
                f"references and empty slots are at different times; t_ref and t_invalid are {self.t_ref}"
            )

    def check(self, table: Table) -> None:
        video, track, image = _videos(table), _tracks(table), images(table)
        same = together(table)
        demand(
            ((number_of(video, same) == 1) & (number_of(track, same) <= 1) | ~table.real).all(),
            "conditions are placed beside one video; give each sample one Video and at most one map of trajectories",
        )
        demand(
            (~image | ((table["reference"] > 0) != (table["modality"] == EMPTY))).all(),
            "an image is a reference, Image(rows, columns, reference=1), or a slot without one, "
            f"Image(rows, columns, modality=EMPTY), and EMPTY is {EMPTY}",
        )
        for name in ("rows", "columns", "frames"):
            mine = track if name == "frames" else track | image
            demand(
                (~mine | (table[name] == value_of(table[name], video, same))).all(),
                f"a reference, slot or map of trajectories has other {name} than the video; resize it to the grid of the video",
            )
        if not self.special:
            demand(~track.any(), "special=False gives trajectories no coordinates; leave them out of the sample")
            return
        for name, time in (("t_ref", self.t_ref), ("t_invalid", self.t_invalid)):
            demand(
                (~video | (table["frames"] <= time) | torch.full_like(video, time < 0)).all(),
                f"{name}={time} is the time of a frame of the video; choose one below 0, or beyond the longest video",
            )

    def place(self, cells: Cells) -> Tensor:
        table = cells.table
        if self.special:
            of_slot = torch.where(table["reference"] > 0, self.t_ref, self.t_invalid)
        else:
            same, index = together(table), torch.arange(table.numbers.shape[1], device=table.numbers.device)
            before = (same & images(table)[..., None, :] & (index < index[:, None])).sum(-1)
            of_slot = value_of(table["frames"], _videos(table), same) + before
        time = torch.where(cells.take(images(table)), cells.take(of_slot), cells.frame)
        return torch.stack([time, cells.row, cells.column], -1)


def _videos(table: Table) -> Tensor:
    return videos(table) & (table["modality"] != TRAJECTORY)


def _tracks(table: Table) -> Tensor:
    return videos(table) & (table["modality"] == TRAJECTORY)


def condition_blocks(
    video_thw: Sequence[int], n_ref: int = 0, max_ref: int = 10, with_traj: bool = False
) -> list[Block]:
    """Return the blocks of a video, of its references and the slots without one, and of its map of trajectories, in this order.

    Args:
        video_thw: frames, rows and columns of the video, in tokens.
        n_ref: reference images.
        max_ref: slots.
        with_traj: whether there is a map of trajectories.
    """
    if len(video_thw) != 3:
        raise PositionError(f"a video has three sizes (frames, rows, columns); got {list(video_thw)}")
    for name, count in (("n_ref", n_ref), ("max_ref", max_ref)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(f"{name} is a whole number from 0; got {count!r}")
    if n_ref > max_ref:
        raise PositionError(f"{n_ref} references and {max_ref} slots; raise max_ref= or leave some references out")
    video = Video(*video_thw)
    cells = video.rows, video.columns
    blocks: list[Block] = [video]
    blocks += [Image(*cells, reference=n + 1) for n in range(n_ref)]
    blocks += [Image(*cells, modality=EMPTY)] * (max_ref - n_ref)
    return [*blocks, replace(video, modality=TRAJECTORY)] if with_traj else blocks


def condition_coords(
    video_thw: Sequence[int],
    n_ref: int,
    max_ref: int,
    t_ref: float,
    t_invalid: float,
    with_traj: bool = False,
    *,
    special: bool = True,
    mask_empty: bool = False,
) -> Positions:
    """Return (t, h, w) of the tokens of a video and its conditions, for any encoding of three axes.

    Args:
        video_thw: see `condition_blocks`.
        n_ref: likewise.
        max_ref: likewise.
        t_ref: see `ConditionIds`.
        t_invalid: likewise.
        with_traj: see `condition_blocks`.
        special: see `ConditionIds`.
        mask_empty: nobody attends to empty slots; the released code lets them be seen.

    Returns:
        Positions (1, tokens, 3) with the columns "condition" (`KINDS`) and "reference" (n for reference n, else 0). Tokens to be
        turned back into a video are those of condition 0.

    Example:
        >>> where = condition_coords((2, 1, 1), 1, 2, t_ref=40, t_invalid=60)
        >>> where.query.position.tolist()
        [[[0, 0, 0], [1, 0, 0], [40, 0, 0], [60, 0, 0]]]
    """
    scheme = ConditionIds(t_ref, t_invalid, special)
    tokens = layout(condition_blocks(video_thw, n_ref, max_ref, with_traj)).query
    made = scheme.coordinates(tokens)
    cells = Cells.of(tokens, tokens.position.double())
    table, number = cells.table, cells["reference"].long()
    kind = torch.where(_tracks(table), KINDS["trajectory"], KINDS["video"])
    kind = torch.where(images(table), torch.where(table["reference"] > 0, KINDS["reference"], KINDS["empty"]), kind)
    kinds = cells.take(kind)
    valid = kinds != KINDS["empty"] if mask_empty else None
    whole = made.long() if bool((made == made.round()).all()) else made
    return Positions(whole, valid=valid, columns={"condition": kinds, "reference": number})


def pooled_boxes(masks: Tensor, rows: int, columns: int, *, stride: int = 4) -> Tensor:
    """Return box masks on the grid of a video's latents, (..., F, H, W) → (..., 1 + ⌈(F − 1)/4⌉, rows, columns).

    Each frame is resized to its nearest pixels; the first frame is a latent frame, and each 4 after it are averaged to one. A
    short last group is averaged over what it has.

    Args:
        masks: 1 inside the box of an object and 0 outside, frame by frame.
        rows: of the latents.
        columns: of the latents.
        stride: frames that become one latent frame.
    """
    check_positive(rows=rows, columns=columns, stride=stride)
    if masks.ndim < 3 or not all(masks.shape[-3:]):
        raise PositionError(f"masks have shape {tuple(masks.shape)}; expected (..., frames, height, width)")
    small = masks.to(masks.dtype if masks.is_floating_point() else torch.float32)
    height, width = small.shape[-2:]
    for axis, (have, want) in ((-2, (height, rows)), (-1, (width, columns))):
        index = (torch.arange(want, device=masks.device) * have).div(want, rounding_mode="floor")
        small = small.index_select(axis, index)
    first, rest = small[..., :1, :, :], small[..., 1:, :, :]
    return torch.cat(
        [first, *(group.mean(-3, keepdim=True) for group in rest.split(stride, -3) if group.shape[-3])], -3
    )


def sample_conditions(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw videos of 2 frames with one or two references, three slots and a map of trajectories, cut off at ``seq`` tokens."""
    columns = max(2, -(-seq // 14))
    drawn = torch.randint(1, 3, (batch,), generator=generator).tolist()
    return layout([condition_blocks((2, 2, columns), n, 3, with_traj=True) for n in drawn]).slice(0, seq)
