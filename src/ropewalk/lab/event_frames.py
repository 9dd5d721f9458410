"""What does someone do in a frame? Captions of events say it, spread over the time of their event.

who   0     1     2     3     4     5     6     7
1     a a   a a   a a   a a   a a   b b   c c   c c      frame 5, who 1  →  b
2     d d   b b   b b   b b   a a   a a   a a   a a      frame 5, who 2  →  a
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.events import interval_times
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.filled import Filled
from ropewalk.lab.tasks.examples import distinct, letters, uniform

MIDDLE = "middle"
"""Column: the middle of the event of a caption, and the time of a frame."""


class EventFrames(Filled):
    """Entities that act all the time, events of random lengths, captions that name what is done, and frames that ask for it.

    Positions are (time, entity): of a caption as `ropewalk.event_layout` places it, the entities numbered from 1, and of a
    question (frame, 0), whose token says of whom it is. For encodings of plain grids a caption is in the middle of its event.
    Drawn: "start", "end" in frames and "word" of each event, (B, entities, events).

    Args:
        train_size: frames, at least as many as there are events.
        eval_sizes: likewise.
        examples: see `Filled`.
        encoder: likewise.
        entities: number of them.
        events: of each.
        words: that a caption may say; it says one of them in all of its tokens.
        caption: tokens of a caption.
    """

    name = "event_frames"
    domain = "events"
    summary = "what an entity does in a frame, read from captions of its events"
    source = "made for this library, after the records of CineOrchestra (arXiv 2606.13768)"
    size_name = "frames"
    train_size = 8
    eval_sizes = (8, 32)

    def __init__(
        self,
        train_size: int,
        eval_sizes: Sequence[int],
        examples: int = 128,
        encoder: bool = False,
        *,
        entities: int = 2,
        events: int = 3,
        words: int = 6,
        caption: int = 3,
    ) -> None:
        check_positive(entities=entities, events=events, caption=caption)
        self.entities, self.events, self.words, self.caption = entities, events, words, caption
        self.min_size = train_size  # in training all clips are of one length
        self.symbols = (*letters(words), *(f"{k}?" for k in range(1, entities + 1)))
        super().__init__(train_size, eval_sizes, examples, encoder)

    def check_size(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < self.events:
            raise ConfigError(f"{self.events} events need {self.events} frames or more; got {size!r}")

    def views(self) -> Mapping[str, Callable[[Batch], Batch]]:
        return {"grid": in_the_middle}

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Batch:
        rows = count * self.entities
        cuts = 1 + distinct(generator, rows, size - 1, self.events - 1).sort(1).values
        ends = torch.cat([cuts, torch.full((rows, 1), size)], 1)
        starts = torch.cat([torch.zeros(rows, 1, dtype=torch.long), cuts], 1)
        word = uniform(generator, self.words, rows, self.events)
        share = interval_times(0.0, 1.0, self.caption)[:, 0]  # times are affine in both ends
        at = starts[..., None] + (ends - starts)[..., None] * share
        middle = ((starts + ends) / 2)[..., None].double().expand_as(at)
        frame = torch.arange(size)
        going_on = (frame[:, None] >= ends[:, None]).sum(-1)  # (rows, frames): events that are over
        answer = word.gather(1, going_on).reshape(count, -1)
        who = torch.arange(self.entities)
        of_captions = (1 + who).repeat_interleave(self.events * self.caption).expand(count, -1)
        said = word[..., None].expand_as(at).reshape(count, -1)
        asked = (self.words + who).repeat_interleave(size).expand(count, -1)
        times = frame.repeat(self.entities).double().expand(count, -1)
        entity = torch.cat([of_captions, torch.zeros_like(asked)], 1)
        when, centre = (torch.cat([t.reshape(count, -1), times], 1) for t in (at, middle))
        return Batch(
            torch.cat([said, asked], 1),
            torch.cat([torch.full_like(said, IGNORE), answer], 1),
            positions=torch.stack([when, entity.double()], -1),
            columns={MIDDLE: centre},
            drawn={
                name: t.reshape(count, self.entities, self.events)
                for name, t in (("start", starts), ("end", ends), ("word", word))
            },
        )

    def of_frames(self, values: Tensor) -> Tensor:
        """Return values of tokens (count, S), such as targets or answers, of the frames: (count, entities, frames).

        `ropewalk.analysis.events` reads these.
        """
        captions = self.entities * self.events * self.caption
        return values[:, captions:].unflatten(1, (self.entities, -1))


def in_the_middle(batch: Batch) -> Batch:
    """Return the batch with all tokens of a caption in the middle of its event."""
    assert batch.positions is not None and batch.columns is not None
    return replace(batch, positions=torch.stack([batch.columns[MIDDLE], batch.positions[..., 1]], -1))
