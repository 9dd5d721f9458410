"""Which function each token of a text is in, for encodings that count functions."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ropewalk.coordinates.code import code_segments, since_begun
from ropewalk.integrations.transformers.bridge import bridge_of
from ropewalk.lab.data.tokens import Tokenizer
from ropewalk.rotary.hirope import HiRoPE

PLAIN = 128
"""Tokens of a segment of plain text."""


def reads_structure(model: Any) -> bool:
    """Whether what was applied to a model asks which function a token is in."""
    bridge = bridge_of(model)
    if bridge is None or bridge.encodings is None:
        return False
    return any(isinstance(m, HiRoPE) and m.segment_length is None for m in bridge.encodings.modules())


def structure(tokenizer: Tokenizer, tokens: Tensor) -> dict[str, Tensor]:
    """Return the columns "segment" and "intra" of tokens (B, S), read as Python; what does not parse is read line by line.

    A text without functions and classes has a segment every 128 tokens, as plain text in the paper. Where a token is in the text
    is known to a character, but for letters that are cut in several tokens.
    """
    segment = torch.stack([_segments(tokenizer, row) for row in tokens.cpu()])
    return {"segment": segment, "intra": since_begun(segment)}


def _segments(tokenizer: Tokenizer, row: Tensor) -> Tensor:
    text = tokenizer.decode(row)
    ends = accumulate((len(tokenizer.decode([int(token)])) for token in row), initial=0)
    spans = [(min(a, len(text)), min(b, len(text))) for a, b in pairwise(ends)]
    segment = code_segments(text, spans)
    return segment if bool(segment.any()) else torch.arange(len(row)) // PLAIN
