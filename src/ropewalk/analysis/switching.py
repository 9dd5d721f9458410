"""How mixed a text of several languages is, and how much attention goes to where they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.coordinates.switching import NEUTRAL, Tag, switching_points
from ropewalk.core.errors import ShapeError


class CodeMixing(NamedTuple):
    """Statistics of one text.

    Attributes:
        mixing: 1 − max_l n_l / (n − n_o), n_l tokens of language l and n_o neutral ones: 0 for one language, higher the more
            evenly several are mixed (Das and Gambäck's code-mixing index, over 100). None: no token has a language.
        switches: of neighbouring tokens, the share at which the language changes. None: fewer than two tokens.
        languages: tokens of each.
    """

    mixing: float | None
    switches: float | None
    languages: dict[str, int]


def code_mixing(tags: Sequence[Tag]) -> CodeMixing:
    """Return statistics of a text by the languages of its tokens.

    Example:
        >>> code_mixing(["hi", "hi", "en", "o", "hi"]).mixing
        0.25
    """
    count = Counter(tag for tag in tags if tag is not None and tag != NEUTRAL)
    total = sum(count.values())
    mixing = 1 - max(count.values()) / total if total else None
    switches = sum(switching_points(tags)) / (len(tags) - 1) if len(tags) > 1 else None
    return CodeMixing(mixing, switches, dict(count))


class SwitchAttention(NamedTuple):
    """Share of attention that switches receive, a number a head, and their share of the keys that could have had it."""

    share: Tensor
    expected: float


def attention_on_switches(weights: Tensor, switch: Tensor, valid: Tensor | None = None) -> SwitchAttention:
    """Return how much attention goes to tokens at which the language changes; means over queries and rows.

    Args:
        weights: (B, H, Q, K), after the softmax.
        switch: (B, K), 1 where a key is a switch.
        valid: (B, Q), False for queries that are padding.

    Returns:
        The share (H,), and what even attention to all keys with any weight would give.
    """
    if weights.ndim != 4 or switch.shape != (len(weights), weights.shape[-1]):
        raise ShapeError(
            f"weights {tuple(weights.shape)} and switches {tuple(switch.shape)}; expected (B, H, Q, K) and (B, K)"
        )
    real = (
        torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool, device=weights.device)
        if valid is None
        else valid
    )
    at = switch.to(weights.dtype)[:, None, None]
    share = (weights * at).sum(-1).transpose(0, 1)[:, real].mean(-1)
    seen = (weights > 0).any(1).to(weights.dtype)
    even = ((seen * at[:, 0]).sum(-1) / seen.sum(-1).clamp(min=1))[real].mean()
    return SwitchAttention(share, float(even))
