"""EndPrompt samples: a short text, a terminal prompt, and positions that reach to the end of the wanted context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.skipped import endprompt_positions, endprompt_random_positions, endprompt_tokens
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE

TERMINAL_PROMPT = "\n\nThis is the end of the text. Answer from what was read above:"
"""A short instruction; the paper's own was not released."""


@dataclass(frozen=True)
class Sample:
    """One training text, (n,) each: tokens, what they are trained to be (unshifted), and where they stand."""

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor


def endprompt_sample(ids: Sequence[int] | Tensor, terminal: int, final: int, max_length: int) -> Sample:
    """Make a sample whose last tokens stand at the end of the context.

    A text that is too long loses its end first; the last tokens that are kept are the terminal stretch. Append the prompt
    (`with_prompt`) before, if it is to be there.

    Args:
        ids: of the text.
        terminal: tokens that stand at the end.
        final: last position of the wanted context.
        max_length: tokens of a sample.

    Source: see `ropewalk.coordinates.skipped.endprompt_positions`.
    """
    check_positive(max_length=max_length)
    kept = _ids(ids)[:max_length]
    return Sample(kept, kept.clone(), endprompt_positions(len(kept), terminal, final))


def endprompt_random_sample(
    ids: Sequence[int] | Tensor, terminal: int, context: int, physical: int, generator: Generator | None = None
) -> Sample:
    """Make a sample of the first P − c and the last c tokens, the latter anywhere in the context."""
    whole = _ids(ids)
    kept = whole[endprompt_tokens(len(whole), terminal, physical)]
    positions = endprompt_random_positions(len(whole), terminal, context, generator, physical=physical)
    return Sample(kept, kept.clone(), positions)


def with_prompt(ids: Sequence[int] | Tensor, prompt: Sequence[int] | Tensor, max_length: int) -> Tensor:
    """Return a text cut so that the prompt fits behind it, and the prompt."""
    if not 0 < len(prompt) < max_length:
        raise ConfigError(
            f"a prompt of {len(prompt)} tokens in a sample of {max_length}; leave room for a text before it"
        )
    text, end = _ids(ids), _ids(prompt)
    return torch.cat([text[: max_length - len(end)], end])


def collate(samples: Sequence[Sample], pad: int = 0) -> dict[str, Tensor]:
    """Pad samples on the right to one length, as a model of transformers takes them: labels −100, position 0, mask 0."""
    if not samples:
        raise ConfigError("no samples to collate")
    length = max(len(s.input_ids) for s in samples)
    fill = {"input_ids": pad, "labels": IGNORE, "position_ids": 0}
    batch = {name: torch.full((len(samples), length), value) for name, value in fill.items()}
    batch["attention_mask"] = torch.zeros(len(samples), length, dtype=torch.long)
    for row, sample in enumerate(samples):
        n = len(sample.input_ids)
        for name in fill:
            batch[name][row, :n] = getattr(sample, name)
        batch["attention_mask"][row, :n] = 1
    return batch


def _ids(ids: Sequence[int] | Tensor) -> Tensor:
    made = torch.as_tensor(ids).long()
    if made.ndim != 1 or not len(made):
        raise ConfigError(f"ids of one text have shape (n,), n at least 1; got {tuple(made.shape)}")
    return made
