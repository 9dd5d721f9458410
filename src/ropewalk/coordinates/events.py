"""Events of entities in a video: captions spread over their time, on a plane of time and entity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.core.errors import ConfigError, PositionError, check_positive, suggest
from ropewalk.core.positions import Positions, Tokens

Sampling = Literal["midpoint", "linspace", "repeat", "center", "native"]
GlobalTime = Literal["clip", "presence", "slot"]

OUTSIDE = -1.0
"""Time of reference images, and of global descriptions with ``global_time="slot"``: before every clip."""


@dataclass(frozen=True)
class Event:
    """A caption that holds from start to end.

    Args:
        start: in seconds from the beginning of the clip.
        end: in seconds, not before the start; equal to it for an instant, such as a cut.
        tokens: of the caption; 0: it is left out.
    """

    start: float
    end: float
    tokens: int

    def __post_init__(self) -> None:
        _interval(self.start, self.end)
        _count("tokens of an event", self.tokens)


@dataclass(frozen=True)
class Entity:
    """Who or what acts: a subject, the camera, the transitions.

    Args:
        events: its captions, in the order of the text tokens; they may overlap.
        global_tokens: of its description, which holds for no interval and comes first.
        presence: (start, end) in seconds, where it is seen; (): not known.
        reference_tokens: of its reference image, 0 if there is none.
        name: for people.
    """

    events: tuple[Event, ...] = ()
    global_tokens: int = 0
    presence: tuple[tuple[float, float], ...] = ()
    reference_tokens: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        object.__setattr__(self, "presence", tuple((float(s), float(e)) for s, e in self.presence))
        for start, end in self.presence:
            _interval(start, end)
        _count("global_tokens", self.global_tokens)
        _count("reference_tokens", self.reference_tokens)


def read_entities(records: Sequence[Mapping[str, Any]]) -> tuple[Entity, ...]:
    """Read entities from plain data, such as JSON gives; they are numbered in the order in which they are listed.

    Args:
        records: mappings with any of "name", "global_tokens", "events", "presence", "reference_tokens". An event is a mapping of
            "start", "end" and "tokens", or the three of them in a row.

    Raises:
        PositionError: a key that is not known, an event that says less or more, an interval that ends before it begins.

    Example:
        >>> read_entities([{"name": "camera", "events": [[0.0, 2.5, 4]]}])[0].events
        (Event(start=0.0, end=2.5, tokens=4),)
    """
    return tuple(_entity(record) for record in records)


def _entity(record: Mapping[str, Any]) -> Entity:
    known = ("name", "global_tokens", "events", "presence", "reference_tokens")
    for key in record:
        if key not in known:
            raise PositionError(f"a record has {', '.join(known)}; got {key!r}.{suggest(key, known)}")
    events = []
    for event in record.get("events", ()):
        values: list[Any] = (
            [event.get(k) for k in ("start", "end", "tokens")] if isinstance(event, Mapping) else list(event)
        )
        if len(values) != 3 or any(v is None for v in values) or (isinstance(event, Mapping) and len(event) != 3):
            raise PositionError(f"an event says its start, its end and its tokens; got {event!r}")
        start, end, tokens = values
        events.append(Event(start, end, tokens))
    return Entity(**{**record, "events": tuple(events), "presence": tuple(record.get("presence", ()))})


def interval_times(
    start: float,
    end: float,
    tokens: int,
    mode: Sampling = "midpoint",
    *,
    frames_per_second: float = 1.0,
    samples: int = 8,
) -> Tensor:
    """Return the times of the tokens of an event, (tokens, 1) float64 in latent frames; (tokens, samples) if "repeat".

    Of token l of L, from s to e in latent frames: "midpoint": s + (e − s)(l + ½)/L. "linspace": both ends included,
    s + (e − s)l/(L − 1), and the middle if L = 1. "repeat": each of them at all K midpoints s + (e − s)(c + ½)/K. "center": all
    in the middle. "native": s + l, whatever the end is.

    Args:
        start: in seconds.
        end: in seconds.
        tokens: L.
        mode: see above.
        frames_per_second: latent frames in a second.
        samples: K.

    Raises:
        PositionError: an end before the start.
        ConfigError: another mode, a frame rate that is not positive.
    """
    _interval(start, end)
    _count("tokens", tokens)
    _rate(frames_per_second)
    check_positive(samples=samples)
    s, e = start * frames_per_second, end * frames_per_second
    if mode == "repeat":
        return _midpoints(s, e, samples).expand(tokens, samples)
    if mode == "midpoint":
        made = _midpoints(s, e, tokens)
    elif mode == "native":
        made = s + torch.arange(tokens, dtype=torch.float64)
    elif mode == "linspace" and tokens > 1:
        made = s + (e - s) * (torch.arange(tokens, dtype=torch.float64) / (tokens - 1))
    elif mode in ("center", "linspace"):
        made = torch.full((tokens,), (s + e) / 2, dtype=torch.float64)
    else:
        modes = get_args(Sampling)
        raise ConfigError(f"mode is one of {', '.join(modes)}; got {mode!r}.{suggest(mode, modes)}")
    return made[:, None]


class EventLayout(NamedTuple):
    """Where the tokens of cross-attention are, from a video and its reference images to the captions of its events."""

    positions: Positions
    """Queries: the video frame by frame, then reference images; keys: of each entity its description, then its events. Axes: time
    (as often as it is sampled), entity. Queries have the column "reference": 0 for the video, 1 + k for the image of entity k."""

    gate: Tensor
    """(b, 1, Q, K) False where an event misses the frame of the query: for ``Attention(..., mask=)``, if wanted."""

    video: int
    """Tokens of the video, the first queries: all that is left after the last block, ``x[:, :video]``."""


def event_layout(
    samples: Sequence[Entity] | Sequence[Sequence[Entity]],
    frames: int,
    tokens_per_frame: int,
    frames_per_second: float,
    *,
    mode: Sampling = "midpoint",
    repeats: int = 8,
    global_time: GlobalTime = "clip",
    clip_seconds: float | None = None,
    entity_offset: int = 0,
) -> EventLayout:
    """Place a video, its reference images and the captions of its events on the plane of time and entity.

    A token of the video in latent frame f is at (f, 0), one of the reference image of entity k at (−1, k), and token l of a
    caption of entity k at (p_l, k), p_l as `interval_times` says.

    Args:
        samples: the entities of a video, or of each video of a batch; shorter rows are filled up, and what fills up is not valid.
        frames: latent frames.
        tokens_per_frame: of the video.
        frames_per_second: latent frames in a second.
        mode: of the captions of events, see `interval_times`.
        repeats: K of "repeat".
        global_time: of descriptions: "clip": midpoints of the whole clip. "presence": midpoints of the intervals in which the
            entity is seen, joined; of the clip if none is given. "slot": −1, as reference images.
        clip_seconds: length of the clip; None: frames / frames_per_second.
        entity_offset: of captions and reference images, whose entities are then numbered from there; 1 sets them apart from the
            video, which is at 0.

    Raises:
        PositionError: intervals that end before they begin, videos without any caption.
        ConfigError: sizes, rates and modes that are none.
    """
    check_positive(frames=frames, tokens_per_frame=tokens_per_frame, repeats=repeats)
    _rate(frames_per_second)
    if global_time not in get_args(GlobalTime):
        raise ConfigError(f"global_time is one of {', '.join(get_args(GlobalTime))}; got {global_time!r}")
    if clip_seconds is not None and not 0 < clip_seconds < math.inf:
        raise ConfigError(f"clip_seconds is a positive number; got {clip_seconds!r}")
    if isinstance(entity_offset, bool) or not isinstance(entity_offset, int) or entity_offset < 0:
        raise ConfigError(f"entity_offset is a whole number from 0; got {entity_offset!r}")
    rows = _samples(samples)
    seconds = frames / frames_per_second if clip_seconds is None else clip_seconds
    times = repeats if mode == "repeat" else 1
    queries, keys, spans = [], [], []
    for entities in rows:
        key, span = [], []
        for k, entity in enumerate(entities, entity_offset):
            share = _global_times(entity, global_time, seconds) * (1.0 if global_time == "slot" else frames_per_second)
            key.append(_at(share[:, None].expand(-1, times), k))
            span.append(torch.tensor([[-math.inf, math.inf]], dtype=torch.float64).expand(entity.global_tokens, 2))
            for e in entity.events:
                at = interval_times(
                    e.start, e.end, e.tokens, mode, frames_per_second=frames_per_second, samples=repeats
                )
                key.append(_at(at, k))
                ends = torch.tensor([[e.start, e.end]], dtype=torch.float64) * frames_per_second
                span.append(ends.expand(e.tokens, 2))
        keys.append(torch.cat(key))
        spans.append(torch.cat(span))
        if not len(keys[-1]):
            raise PositionError(
                "none of the entities of a video has a caption or a description; there is nothing to read"
            )
        frame = torch.arange(frames, dtype=torch.float64).repeat_interleave(tokens_per_frame)
        query = [functional.pad(_at(frame[:, None].expand(-1, times), 0), (0, 1))]
        for k, entity in enumerate(entities):
            outside = torch.full((entity.reference_tokens, times), OUTSIDE, dtype=torch.float64)
            query.append(functional.pad(_at(outside, k + entity_offset), (0, 1), value=k + 1))
        queries.append(torch.cat(query))
    asks, real = _padded(queries)
    tells, there = _padded(keys)
    which = asks[..., -1].long()
    queries_at = Tokens.of(asks[..., :-1], valid=None if bool(real.all()) else real, columns={"reference": which})
    keys_at = Tokens.of(tells, valid=None if bool(there.all()) else there)
    return EventLayout(
        Positions(q=queries_at, k=keys_at), _gate(asks[..., 0], which, _padded(spans)[0]), frames * tokens_per_frame
    )


def _gate(time: Tensor, reference: Tensor, span: Tensor) -> Tensor:
    """Frame f lasts from f to f + 1; an instant is in one frame. Reference images see everything."""
    f, begins, ends = time[:, :, None], span[:, None, :, 0], span[:, None, :, 1]
    meets = (begins < f + 1) & ((ends > f) | (begins >= f))
    return (meets | (reference > 0)[:, :, None])[:, None]


def _samples(samples: Sequence[Entity] | Sequence[Sequence[Entity]]) -> list[list[Entity]]:
    if samples and all(isinstance(s, Entity) for s in samples):
        return [list(samples)]  # type: ignore[arg-type]
    rows = [list(s) if isinstance(s, Sequence) else [s] for s in samples]
    wrong = [e for row in rows for e in row if not isinstance(e, Entity)]
    if not rows or wrong:
        got = f"a {type(wrong[0]).__name__}" if wrong else "nothing"
        raise PositionError(f"a video has a list of entities (read_entities makes them of plain data); got {got}")
    return rows


def _global_times(entity: Entity, rule: str, clip: float) -> Tensor:
    """Return the times of a description, in seconds; −1 for its own slot."""
    n = entity.global_tokens
    if rule == "slot":
        return torch.full((n,), OUTSIDE, dtype=torch.float64)
    if rule == "clip" or not entity.presence:
        return _midpoints(0.0, clip, n)
    joined: list[list[float]] = []
    for start, end in sorted(entity.presence):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    share = _midpoints(0.0, sum(end - start for start, end in joined), n)
    made, before = torch.full_like(share, joined[0][0]), 0.0
    for start, end in joined:
        made = torch.where(share >= before, (start + share - before).clamp(max=end), made)
        before += end - start
    return made


def _midpoints(start: float, end: float, n: int) -> Tensor:
    return start + (end - start) * ((torch.arange(n, dtype=torch.float64) + 0.5) / max(n, 1))


def _at(times: Tensor, entity: int) -> Tensor:
    """(n, times) → (n, times + 1), with the entity."""
    return functional.pad(times, (0, 1), value=float(entity))


def _padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows filled up to one length, and where they are real."""
    most = max(len(row) for row in rows)
    real = torch.stack([torch.arange(most) < len(row) for row in rows])
    return torch.stack([functional.pad(row, (0, 0, 0, most - len(row))) for row in rows]), real


def _interval(start: float, end: float) -> None:
    if not (math.isfinite(start) and math.isfinite(end) and start >= 0):
        raise PositionError(f"an interval is in seconds from 0 on; got {start!r} to {end!r}")
    if end < start:
        raise PositionError(f"an interval ends before it begins: from {start!r} to {end!r} seconds; are they swapped?")


def _count(name: str, tokens: int) -> None:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise PositionError(f"{name} are a whole number from 0; got {tokens!r}")


def _rate(frames_per_second: float) -> None:
    if not 0 < frames_per_second < math.inf:
        raise ConfigError(f"frames_per_second is a positive number; got {frames_per_second!r}")


def sample_events(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw captions of three tokens, of events of one and of three frames in turn, of four entities; rows begin anywhere."""
    captions = []
    for n in range(max(1, -(-seq // 3))):
        start = 2.5 * (n // 4) + 0.7 * (n % 4)
        captions.append(_at(interval_times(start, start + 1 + 2 * (n % 2), 3), n % 4))
    corner = torch.randint(0, 9, (batch, 1, 2), generator=generator)
    return Positions(corner + torch.cat(captions)[:seq])
