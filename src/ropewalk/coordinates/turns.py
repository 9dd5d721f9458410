"""Who speaks when: the frames of a recording, each speaker's activity in them, and how many turns each has had."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Positions

Interval = tuple[str, float, float]
"""A speaker, and when he begins and stops, in seconds."""


def speaker_activity(
    intervals: Iterable[Interval], speakers: Sequence[str], frames: int, *, seconds: float = 0.02
) -> Tensor:
    """Return 1 where a speaker talks in the middle of a frame and 0 elsewhere, (frames, speakers).

    Args:
        intervals: (speaker, start, stop) each, in seconds; they may overlap.
        speakers: their names, in the order of the columns.
        frames: number of frames.
        seconds: of a frame; 0.02 in Whisper's encoder.

    Raises:
        ConfigError: an unknown speaker, a name given twice.
        PositionError: an interval that ends before it begins, or lies outside the recording.

    Example:
        >>> speaker_activity([("a", 0.0, 0.04), ("b", 0.02, 0.06)], ["a", "b"], 4).T.tolist()
        [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]]
    """
    check_positive(frames=frames)
    if not 0 < seconds < math.inf:
        raise ConfigError(f"a frame lasts a positive number of seconds; got {seconds!r}")
    if len(set(speakers)) != len(speakers):
        raise ConfigError(f"speakers {list(speakers)}: a name stands for one speaker")
    made = torch.zeros(frames, len(speakers))
    middle = (torch.arange(frames, dtype=torch.float64) + 0.5) * seconds
    for name, start, stop in intervals:
        if name not in speakers:
            known = f"there are {', '.join(map(str, speakers)) or 'none'}"
            raise ConfigError(f"an unknown speaker {name!r}: {known}.{suggest(name, speakers)}")
        if not start < stop:  # NaN too
            raise PositionError(
                f"speaker {name!r} begins at {start} s and stops at {stop} s; an interval ends after it begins"
            )
        if start < 0 or start >= frames * seconds:
            raise PositionError(
                f"speaker {name!r} begins at {start} s, and the recording runs from 0 to {frames * seconds:g} s"
            )
        made[(middle >= start) & (middle < stop), list(speakers).index(name)] = 1
    return made


def turn_counts(
    activity: Tensor, threshold: float = 0.5, *, valid: Tensor | None = None, document_ids: Tensor | None = None
) -> Tensor:
    """Return how often each speaker has begun to talk, up to and including each frame: (b, T, S), whole numbers.

    A speaker begins in a frame where his activity is above the threshold and was not in the frame before; before the first
    frame there is silence. Padding neither counts nor interrupts; packed recordings start anew. The counts are constants: no
    gradient goes through them.

    Args:
        activity: (b, T, S) in [0, 1].
        threshold: above which a speaker talks.
        valid: (b, T), False for padding.
        document_ids: (b, T), the recording of each frame.

    Example:
        >>> turn_counts(torch.tensor([[[0.9], [0.8], [0.1], [0.6]]]))[0, :, 0].tolist()
        [1, 1, 1, 2]
    """
    if activity.ndim != 3:
        raise ShapeError(f"activity has shape {tuple(activity.shape)}; expected (batch, frames, speakers)")
    b, n, _ = activity.shape
    talks = activity > threshold
    real = torch.ones(b, n, dtype=torch.bool, device=activity.device) if valid is None else valid.expand(b, n)
    index = torch.arange(n, device=activity.device)
    # The real frame before each frame, −1 where there is none in its recording.
    latest = torch.where(real, index, -1).cummax(-1).values if n else index.expand(b, n)
    before = torch.nn.functional.pad(latest, (1, 0), value=-1)[:, :n]
    first = torch.zeros_like(before)
    if document_ids is not None and n:
        ids = document_ids.expand(b, n)
        fresh = torch.ones_like(ids, dtype=torch.bool)
        fresh[:, 1:] = ids[:, 1:] != ids[:, :-1]
        first = torch.where(fresh, index, 0).cummax(-1).values
    silent = before < first
    talked = talks.gather(1, before.clamp(min=0)[..., None].expand_as(talks)) & ~silent[..., None]
    count = (talks & ~talked & real[..., None]).long().cumsum(1)
    began = torch.nn.functional.pad(count, (0, 0, 1, 0))[:, :n]
    return count - began.gather(1, first[..., None].expand_as(count)) if n else count


def speaker_positions(
    activity: Tensor, threshold: float = 0.5, *, valid: Tensor | None = None, document_ids: Tensor | None = None
) -> Positions:
    """Count the frames of recordings, with the columns "activity" (b, T, S) and "turns" (b, T, S), which counts turns.

    Args:
        activity: (T, S) or (b, T, S), the probability in [0, 1] that each speaker talks.
        threshold: see `turn_counts`.
        valid: (T,) or (b, T), False for padding.
        document_ids: (T,) or (b, T), where recordings are packed.

    Raises:
        PositionError: activity that is no probability.
    """
    activity = activity if activity.ndim == 3 else activity[None]
    if activity.ndim != 3 or not activity.is_floating_point():
        raise ShapeError(
            f"activity has shape {tuple(activity.shape)} and dtype {activity.dtype}; expected real (batch, frames, speakers)"
        )
    if not is_compiling() and not activity.is_meta and not bool(((activity >= 0) & (activity <= 1)).all()):
        raise PositionError("activity is the probability that a speaker talks, from 0 to 1; some numbers are not")
    where = Positions.arange(
        activity.shape[1], batch=len(activity), valid=valid, document_ids=document_ids, device=activity.device
    )
    columns = where.key.columns
    turns = turn_counts(activity, threshold, valid=columns.get("valid"), document_ids=columns.get("document"))
    return where.map_sides(lambda t: t.with_columns(activity=activity.double(), turns=turns))


def ts_coordinates(activity: Tensor, threshold: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return the coordinates (time, speaker 1, ..., speaker S) of queries and of keys, (b, T, 1 + S) each.

    Keys are at C + π of a speaker, C his turns and π his activity; queries at C + 1, where he talks in his present turn.

    Args:
        activity: (T, S) or (b, T, S).
        threshold: see `turn_counts`.
    """
    tokens = speaker_positions(activity, threshold).key
    time, turns = tokens.coordinates().expand(tokens.batch, -1)[..., None], tokens.column("turns").double()
    return torch.cat([time, turns + 1], -1), torch.cat([time, turns + tokens.column("activity")], -1)


def sample_turns(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw recordings of four speakers who talk at random, each row from another frame on."""
    start = torch.randint(0, 9, (batch, 1), generator=generator)
    activity = torch.rand(batch, seq, 4, dtype=torch.float64, generator=generator)
    return speaker_positions(activity).map_sides(
        lambda t: t.with_columns(position=start + torch.arange(seq)).with_next(None)
    )
