"""Where tokens are in a text of paragraphs and sentences."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.coordinates.segments import SegmentState, segment_positions
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, suggest
from ropewalk.core.positions import Positions

Counters = Literal["global", "local"]
Intervention = Literal["erase", "scale", "shift", "jump"]


class HierarchyState(NamedTuple):
    """Where the next token of each row is: what incremental decoding carries."""

    paragraph: SegmentState
    sentence: SegmentState
    token: SegmentState

    closed: Tensor
    """(B,) sentences of its paragraph that have ended."""

    def select(self, rows: Tensor) -> HierarchyState:
        """Return other rows of the batch, as `KVCache.select` does."""
        paragraph, sentence, token = (unit.select(rows) for unit in (self.paragraph, self.sentence, self.token))
        return HierarchyState(paragraph, sentence, token, self.closed[rows])


def hierarchical_positions(
    paragraph_ends: Tensor,
    sentence_ends: Tensor,
    counters: Counters = "global",
    state: HierarchyState | None = None,
    *,
    document_ids: Tensor | None = None,
    valid: Tensor | None = None,
) -> tuple[Positions, HierarchyState]:
    """Number paragraphs, sentences and tokens from 0: positions (B, S, 3) of (paragraph, sentence, token).

    A token that ends a unit belongs to it; one that ends a paragraph ends its sentence too. Rows are independent, packed
    documents start anew, padding is not counted.

    Args:
        paragraph_ends: (S,) or (B, S), True for the last token of a paragraph.
        sentence_ends: likewise of sentences.
        counters: "global": all three count through the document. "local": sentences are counted in their paragraph and tokens in
            their sentence.
        state: what the call for the tokens before these returned; None: a text begins.
        document_ids: (S,) or (B, S) of packed documents.
        valid: (S,) or (B, S), False for padding.

    Returns:
        The positions, and the state for the tokens that follow.

    Example:
        >>> ends = torch.tensor([0, 0, 1, 0]).bool()
        >>> positions, state = hierarchical_positions(ends, torch.tensor([0, 1, 0, 0]).bool())
        >>> positions.query.position.tolist()
        [[[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]]
    """
    if counters not in ("global", "local"):
        raise ConfigError(f"counters is 'global' or 'local'; got {counters!r}.{suggest(counters, ('global', 'local'))}")
    for name, ends in (("paragraph_ends", paragraph_ends), ("sentence_ends", sentence_ends)):
        if ends.dtype != torch.bool or ends.shape != paragraph_ends.shape or ends.ndim not in (1, 2):
            raise ShapeError(
                f"{name} has shape {tuple(ends.shape)} and dtype {ends.dtype}; expected True or False for each token, "
                "(S,) or (B, S), of both"
            )
    paragraph_ends, sentence_ends = (e if e.ndim == 2 else e[None] for e in (paragraph_ends, sentence_ends))
    sentence_ends = sentence_ends | paragraph_ends
    facts = {"document_ids": document_ids, "valid": valid}

    def numbered(ends: Tensor, before: SegmentState | None) -> tuple[Positions, SegmentState]:
        return segment_positions(ends.long(), {1}, state=before, **facts)  # type: ignore[arg-type]

    old = (None, None, None) if state is None else state[:3]
    (paragraphs, one), (sentences, two), (tokens, three) = (
        numbered(ends, before)
        for ends, before in zip((paragraph_ends, sentence_ends, torch.zeros_like(paragraph_ends)), old, strict=True)
    )
    p1, place = paragraphs.key.position.unbind(-1)
    p2, p3 = sentences.key.position[..., 0], tokens.key.position[..., 1]
    real = paragraphs.key.columns.get("valid")
    ends = sentence_ends if real is None else sentence_ends & real
    closed = ends.long().cumsum(-1) - ends.long()
    carried = closed.new_zeros(len(closed)) if state is None else state.closed
    # Sentences that had ended where the paragraph began; a paragraph from before these tokens began that many ago.
    began = torch.where(place == 0, closed, -carried[:, None]).cummax(-1).values if closed.shape[1] else closed
    after = closed[:, -1] + ends[:, -1].long() - began[:, -1] if closed.shape[1] else carried
    if counters == "local":
        p2, p3 = closed - began, sentences.key.position[..., 1]
    where = Positions(torch.stack([p1, p2, p3], -1), document_ids=document_ids, valid=valid)
    return where, HierarchyState(one, two, three, torch.where(one.intra == 0, 0, after))


def hierarchical_coordinates(
    paragraphs: Tensor, sentences: Tensor | None = None, counters: Counters = "global"
) -> Tensor:
    """Return (paragraph, sentence, token) of the tokens of one text, (n, 3).

    Args:
        paragraphs: (n,) number of each token's paragraph, as `ropewalk.analysis.paragraph_compression.paragraph_labels` gives it.
        sentences: (n,) likewise; None: paragraphs of one sentence.
        counters: see `hierarchical_positions`.

    Raises:
        PositionError: numbers that fall, or are missing.
    """
    ends = []
    for name, labels in (("paragraphs", paragraphs), ("sentences", paragraphs if sentences is None else sentences)):
        if labels.ndim != 1 or labels.is_floating_point() or labels.shape != paragraphs.shape:
            raise ShapeError(
                f"{name} have shape {tuple(labels.shape)} and dtype {labels.dtype}; expected integers (n,)"
            )
        if bool((labels[1:] < labels[:-1]).any()):
            raise PositionError(f"the numbers of {name} fall; they are counted from the beginning of the text")
        last = torch.ones_like(labels, dtype=torch.bool)
        last[:-1] = labels[1:] != labels[:-1]
        ends.append(last)
    return hierarchical_positions(ends[0], ends[1], counters)[0].query.position[0]


def intervene(
    coordinates: Tensor, kind: Intervention, value: float | None = None, *, boundary: int | None = None
) -> Tensor:
    """Return the coordinates (..., n, 3) with other paragraphs; sentences, tokens and the text stay as they are.

    Args:
        coordinates: from `hierarchical_coordinates`.
        kind: "erase": all tokens are in paragraph ``value`` (0). "scale": paragraphs are multiplied by ``value``, which may be a
            fraction. "shift": a boundary moves by ``value`` tokens, to the right if positive. "jump": paragraphs from a boundary
            on are ``value`` away from the one before instead of 1.
        value: see there.
        boundary: b, between paragraphs b − 1 and b.

    Raises:
        ConfigError: a boundary that is not there, or that would move beyond its neighbours.
    """
    kinds = ("erase", "scale", "shift", "jump")
    if kind not in kinds:
        raise ConfigError(f"kind is one of {', '.join(kinds)}; got {kind!r}.{suggest(kind, kinds)}")
    if coordinates.ndim < 2 or coordinates.shape[-1] != 3:
        raise ShapeError(f"coordinates have shape {tuple(coordinates.shape)}; expected (..., n, 3)")
    if value is None and kind == "erase":
        value = 0
    if value is None or not math.isfinite(value):
        raise ConfigError(f"{kind!r} needs value=, a number; got {value!r}")
    if (boundary is None) == (kind in ("shift", "jump")):
        raise ConfigError("boundary= says where to 'shift' or to 'jump', and goes with these two")
    p1, rest = coordinates[..., :1], coordinates[..., 1:]
    if float(value) != int(value):
        p1, rest = p1.double(), rest.double()
    else:
        value = int(value)
    if boundary is None:
        return torch.cat([torch.full_like(p1, value) if kind == "erase" else p1 * value, rest], -1)
    if not 1 <= boundary <= int(p1.max()):
        raise ConfigError(f"boundary {boundary} of {int(p1.max())}, counted from 1")
    after = p1 >= boundary
    if kind == "jump":
        return torch.cat([p1 + after * (value - 1), rest], -1)
    if value != int(value):
        raise ConfigError(f"a boundary moves by whole tokens; got {value!r}")
    n = p1.shape[-2]
    at = n - after.sum(-2, keepdim=True)
    there = at + int(value)
    first, last = (n - (p1 >= b).sum(-2, keepdim=True) for b in (boundary - 1, boundary + 1))
    if bool(((there <= first) | (there >= last)).any()):
        raise ConfigError(
            f"boundary {boundary} moved by {value} tokens passes the next one; every paragraph keeps a token"
        )
    index = torch.arange(n, device=p1.device)[:, None]
    moved = torch.where((index >= there) & (index < at), boundary, p1)
    return torch.cat([torch.where((index >= at) & (index < there), boundary - 1, moved), rest], -1)


def sample_hierarchy(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw texts of sentences about four tokens long and paragraphs about three sentences long."""
    sentence = torch.rand(batch, seq, generator=generator) < 0.25
    paragraph = sentence & (torch.rand(batch, seq, generator=generator) < 0.3)
    return hierarchical_positions(paragraph, sentence)[0]
