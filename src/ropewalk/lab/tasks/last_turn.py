"""What did a speaker say first in his last turn?

    A:x  A:y  B:z  A:w  A:x  B:y  ? A → w

Speakers take turns of random lengths, and may talk over each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.turns import turn_counts
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.tasks.examples import EDGE, FIRST, Examples, ask, letters, uniform, written
from ropewalk.lab.tasks.placed import Placed

SPEAKERS = 4
"""As many as `ropewalk.TimeSpeakerRoPE` knows by default."""


class LastTurn(Placed):
    """speaker:word … speaker:word ? speaker = word, the first one of the turn that the speaker had last.

    A frame has one word and the speaker who says it. Positions count frames, with the columns "activity" and "turns" (B, S, 4).

    Args:
        words: number of them.
        go_on: how likely a speaker goes on in the next frame.
    """

    name = "last_turn"
    summary = "the first word of a speaker's last turn"
    source = "made for this library, after the turns of TellWhisper (arXiv 2601.03712)"
    size_name = "frames"
    train_size = 16
    eval_sizes = (8, 16, 24, 32)
    min_size = SPEAKERS
    encoder_ready = True
    domain = "turns"

    def __init__(self, words: int = 6, go_on: float = 0.6) -> None:
        check_positive(words=words)
        if not 0 <= go_on < 1:
            raise ConfigError(f"go_on is a probability below 1; got {go_on!r}")
        named = letters(words)
        self.words, self.go_on = words, go_on
        who = "ABCD"
        self.symbols = ("|", "?", *named, *who, *(f"{s}:{w}" for s in who for w in named))
        self.speaker = FIRST + words
        self.frame = self.speaker + SPEAKERS

    def draw(self, generator: Generator, size: int, count: int, *, test: bool) -> Examples:
        word = uniform(generator, self.words, count, size)
        fresh = torch.rand(count, size, generator=generator) >= self.go_on
        # The next one who talks is another one.
        steps = torch.where(fresh, 1 + uniform(generator, SPEAKERS - 1, count, size), 0)
        speaker = steps.cumsum(1) % SPEAKERS
        asked = speaker.gather(1, uniform(generator, size, count, 1))  # who has talked at all
        first = torch.ones_like(fresh)
        first[:, 1:] = speaker[:, 1:] != speaker[:, :-1]
        begins = first & (speaker == asked)
        at = torch.where(begins, torch.arange(size), -1).amax(1, keepdim=True)
        seen = self.frame + speaker * self.words + word
        prompt = torch.cat([seen, ask(count), self.speaker + asked], 1)
        return written(prompt, FIRST + word.gather(1, at), end=False)

    def solve(self, prompt: Sequence[int]) -> list[int]:
        body = [token for token in prompt if token != EDGE]
        asked, found = body[-1] - self.speaker, None
        before = None
        for token in body[:-2]:
            speaker, word = divmod(token - self.frame, self.words)
            if speaker == asked and speaker != before:
                found = word
            before = speaker
        if found is None:
            raise ConfigError("the speaker who is asked for has said nothing")
        return [FIRST + found]

    def length(self, size: int) -> int:
        return size + 3

    def space(self, size: int) -> int:
        return self.words**size

    def place(self, batch: Batch) -> Batch:
        tokens = batch.tokens
        talks = tokens >= self.frame
        who = torch.where(talks, (tokens - self.frame) // self.words, -1)
        activity: Tensor = (who[..., None] == torch.arange(SPEAKERS, device=tokens.device)).double()
        position = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        columns = {"activity": activity, "turns": turn_counts(activity)}
        return replace(batch, positions=position, columns=columns)
