"""Whether a key that is alike stays preferred however far away it is, for rotations of several axes; and where it is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.waveform import extrema
from ropewalk.rotary.multi_axis import MultiAxisRoPE


def axis_similarity(encoding: MultiAxisRoPE, offsets: Tensor, axis: int | None = None, head: int = 0) -> Tensor:
    """Σ_i cos(δ_{a(i)} ω_i), float64: the expected lead of a key that is alike over one that is not, in units of 2σ².

    Pairs that do not turn add 1 each: they prefer what is alike at any distance. Below 0 a key that has nothing to do with the
    query is preferred.

    Args:
        encoding: an allocation and its frequencies.
        offsets: δ, (..., axes).
        axis: only the pairs of this one; None: all pairs, those that stand still too.
        head: key head, where they differ.

    Returns:
        (...).

    Source: Haoran Li et al. HoPE: Hybrid of Position Embedding for Long Context Vision-Language Models. arXiv 2505.20444, 2025.
    """
    allocation = encoding.allocation
    if offsets.ndim < 1 or offsets.shape[-1] != allocation.axes:
        raise ConfigError(
            f"offsets are (..., {allocation.axes}) along {', '.join(allocation.names)}; got {tuple(offsets.shape)}"
        )
    if not 0 <= head < len(allocation.rows):
        raise ConfigError(f"key head {head} of {len(allocation.rows)}")
    flat = allocation.spread(offsets.double().reshape(1, -1, allocation.axes))[0, head]
    waves = (flat * encoding.inv_freq[head].to(flat)).cos()
    if axis is not None:
        waves = waves[:, list(allocation.of(axis, head))]
    return waves.sum(-1).reshape(offsets.shape[:-1])


def collisions(encoding: MultiAxisRoPE, within: int, share: float = 0.4, *, axis: int = 0, head: int = 0) -> list[int]:
    """Return the offsets 1 … ``within`` along an axis at which its pairs come round: peaks of their similarity above a share.

    A frame there looks as near as the one that is meant (a distractor).

    Args:
        encoding: an allocation and its frequencies.
        within: largest offset.
        share: of the similarity at offset 0.
        axis: 0 is time in the schemes of this library.
        head: key head, where they differ.

    Source: Xilin Wei et al. VideoRoPE: What Makes for Good Video Rotary Position Embedding? arXiv 2502.05173, 2025.
    """
    check_positive(within=within)
    if not 0 < share < 1:
        raise ConfigError(f"share is between 0 and 1; got {share!r}")
    pairs = len(encoding.allocation.of(axis, head))
    offsets = torch.zeros(within + 2, encoding.allocation.axes, dtype=torch.float64)
    offsets[:, axis] = torch.arange(within + 2)
    wave = axis_similarity(encoding, offsets, axis, head)
    peaks, _ = extrema(wave)
    return [int(p) for p in peaks if wave[p] >= share * pairs]


def critical_length(
    encoding: MultiAxisRoPE, within: int, direction: Sequence[float] = (1, 1, 1), head: int = 0
) -> int | None:
    """Return the first distance n ≤ ``within`` at which what is alike is not preferred any more; None: it is at all of them.

    Args:
        encoding: an allocation and its frequencies.
        within: largest distance.
        direction: offset on each axis of one step: (1, 1, 1) where space is laid out around time (VideoRoPE, HoPE), (1, 0, 0)
            between cells of two frames of M-RoPE.
        head: key head, where they differ.

    Source: see `axis_similarity`.
    """
    check_positive(within=within)
    if not all(math.isfinite(d) for d in direction):
        raise ConfigError(f"direction is a finite number an axis; got {list(direction)}")
    offsets = torch.arange(1, within + 1, dtype=torch.float64)[:, None] * torch.tensor(direction, dtype=torch.float64)
    below = (axis_similarity(encoding, offsets, head=head) < 0).nonzero()
    return int(below[0, 0]) + 1 if len(below) else None
