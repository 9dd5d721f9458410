"""What of an image is attended to: cell by cell from the text after it, by its strongest tokens, and along the sequence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.coordinates.scheme import Cells
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Positions


def attention_to_cells(weights: Tensor, positions: Positions, block: int = 0) -> Tensor:
    """Return the mean weight that the text after an image or video gives each of its cells.

    Of `ropewalk.analysis.attention_map.attention_map(encoding, positions=layout)` it is what the encoding alone prefers; of the
    weights of a trained model, averaged over samples and heads, the flow of information into the text.

    Args:
        weights: (..., S, S) of one sample.
        positions: its layout, of one row.
        block: which image or video, from 0.

    Returns:
        (..., frames, rows, columns).

    Raises:
        PositionError: no such image, or no text after it.

    Source: Yun Xing et al. arXiv 2410.15926, 2024; Zikang Liu et al. arXiv 2502.11664, 2025.
    """
    cells = _cells(weights, positions)
    number, visual = cells.begun[0], cells.visual[0]
    found = number[visual].unique().tolist()
    if not 0 <= block < len(found):
        raise PositionError(f"image {block} of {len(found)}; they are counted from 0")
    inside = visual & (number == found[block])
    after = ~visual & (torch.arange(len(visual), device=visual.device) > inside.nonzero()[-1, 0])
    if not bool(after.any()):
        raise PositionError(f"no text comes after image {block}, so that nothing says what is attended to from it")
    sizes = [int(cells[name][0, inside][0]) for name in ("frames", "rows", "columns")]
    return weights[..., after, :][..., inside].mean(-2).unflatten(-1, sizes)


def anchor_share(weights: Tensor, positions: Positions, share: float = 0.01) -> Tensor:
    """Return how much of the attention of text to image tokens after which it comes goes to the strongest of these.

    Args:
        weights: (..., S, S) of one sample.
        positions: its layout, of one row.
        share: of the image tokens that count as anchors, rounded up.

    Returns:
        (...), from ``share`` (all are alike) to 1.

    Source: Zhanpeng Chen et al. arXiv 2501.10967, 2025.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share is more than 0 and at most 1; got {share!r}")
    visual = _cells(weights, positions).visual[0]
    text = ~visual & (visual.long().cumsum(0) > 0)
    if not bool(text.any()):
        raise PositionError("no text comes after an image token in this layout")
    received = weights[..., text, :][..., visual].sum(-2)
    count = math.ceil(share * received.shape[-1])
    return received.topk(count, -1).values.sum(-1) / received.sum(-1)


def mass_by_part(weights: Tensor, parts: int = 10) -> Tensor:
    """Return the mean weight that goes to each part of what a query sees, first tenth, second tenth, … of the keys up to it.

    Args:
        weights: (..., S, S), causal; queries that see fewer than ``parts`` keys are left out.
        parts: how many.

    Returns:
        (..., parts), together 1.

    Source: Shi Liu et al. CoMemo. arXiv 2506.06279, 2025.
    """
    check_positive(parts=parts)
    s = weights.shape[-1]
    if weights.ndim < 2 or weights.shape[-2] != s or s < parts:
        raise ShapeError(f"weights are (..., S, S) of at least {parts} tokens; got {tuple(weights.shape)}")
    index = torch.arange(s, device=weights.device)
    part = (parts * index / (index[:, None] + 1)).floor()
    seen = [(weights * (part == p)).sum(-1)[..., parts - 1 :].mean(-1) for p in range(parts)]
    return torch.stack(seen, -1)


def _cells(weights: Tensor, positions: Positions) -> Cells:
    tokens = positions.key
    if weights.shape[-2:] != (tokens.length, tokens.length) or tokens.batch != 1:
        raise ShapeError(
            f"weights {tuple(weights.shape)} and a layout of {tokens.batch} rows of {tokens.length} tokens; give (..., S, S) "
            "of one row"
        )
    return Cells.of(tokens, tokens.position.double())
