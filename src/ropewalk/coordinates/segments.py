"""Where tokens are in a text that is cut into segments: which segment, and where inside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Positions


class SegmentState(NamedTuple):
    """Where the next token of each row is, unless its document is another one: what incremental decoding carries."""

    segment: Tensor
    """(B,) its segment."""

    intra: Tensor
    """(B,) its place inside the segment, not clamped."""

    document: Tensor | None
    """(B,) document of the last token, where documents are packed."""

    def select(self, rows: Tensor) -> SegmentState:
        """Return other rows of the batch, as `KVCache.select` does."""
        return SegmentState(
            self.segment[rows], self.intra[rows], None if self.document is None else self.document[rows]
        )


@dataclass(frozen=True)
class FixedLength:
    """Segments of the same number of tokens, whatever they are."""

    length: int

    def __post_init__(self) -> None:
        check_positive(length=self.length)


def segment_positions(
    ids: Tensor,
    separators: Iterable[int] | Tensor | FixedLength,
    max_intra: int | None = None,
    state: SegmentState | None = None,
    *,
    document_ids: Tensor | None = None,
    valid: Tensor | None = None,
) -> tuple[Positions, SegmentState]:
    """Number segments n and places l inside them: n_i separators lie before token i, l_i tokens since the last one.

    A separator belongs to the segment that it closes; separators in a row make segments of one token. Rows are independent,
    packed documents start anew, padding neither counts nor separates.

    Args:
        ids: (S,) or (B, S) token ids.
        separators: ids that close a segment (see `newline_ids`), or `FixedLength`.
        max_intra: places from here on all become max_intra − 1; None: as they are.
        state: what the call for the tokens before these returned; None: a text begins.
        document_ids: (S,) or (B, S) of packed documents.
        valid: (S,) or (B, S), False for padding.

    Returns:
        Positions (B, S, 2) of (n, l), and the state for the tokens that follow.

    Example:
        >>> positions, state = segment_positions(torch.tensor([5, 6, 13, 7]), {13})
        >>> positions.query.position.tolist()
        [[[0, 0], [0, 1], [0, 2], [1, 0]]]
    """
    check_positive(max_intra=max_intra)
    if ids.ndim not in (1, 2) or ids.is_floating_point():
        raise ShapeError(
            f"ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; expected integers (S,) or (batch, S)"
        )
    ids = ids[None] if ids.ndim == 1 else ids
    real = torch.ones_like(ids, dtype=torch.bool) if valid is None else _like(ids, valid, "valid").bool()
    document = None if document_ids is None else _held(_like(ids, document_ids, "document_ids"), real)
    zero = ids.new_zeros(ids.shape[0], dtype=torch.long)
    before = SegmentState(zero, zero, None) if state is None else state
    if before.segment.shape != zero.shape:
        raise ShapeError(f"the state is of {before.segment.shape[0]} rows and ids have {ids.shape[0]}")
    # One token more than there are: where it would be is the state that is returned.
    ends, fresh, real = (_one_more(t) for t in (torch.zeros_like(real), _fresh(ids, document, before), real))
    count = real.long().cumsum(-1) - real.long()  # real tokens before this one
    if isinstance(separators, FixedLength):
        offset = _latest(fresh, count, -before.intra)
        ends = real & ((count - offset) % separators.length == separators.length - 1)
    else:
        closing = separators if isinstance(separators, Tensor) else torch.tensor(sorted(separators), dtype=torch.long)
        ends[:, :-1] = real[:, :-1] & torch.isin(ids, closing.to(ids.device, ids.dtype))
    closed = ends.long().cumsum(-1) - ends.long()
    segment = closed - _latest(fresh, closed, -before.segment)
    opens = fresh.clone()
    opens[:, 1:] |= ends[:, :-1]
    intra = count - _latest(opens, count, -before.intra)
    last = document[:, -1] if document is not None and document.shape[1] else before.document
    after = SegmentState(segment[:, -1], intra[:, -1], last)
    if max_intra is not None:
        intra = intra.clamp(max=max_intra - 1)
    position = torch.stack([segment, intra], -1)[:, :-1]
    return Positions(position, document_ids=document_ids, valid=valid), after


def newline_ids(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of all tokens with a line break in them, as text or in the spelling of byte-level or byte-fallback BPE.

    Args:
        vocabulary: token → id, as ``tokenizer.get_vocab()`` of Hugging Face returns it.
    """
    found = frozenset(n for token, n in vocabulary.items() if any(s in token for s in ("\n", "Ċ", "<0x0A>")))
    if not found:
        raise ConfigError(f"none of the {len(vocabulary)} tokens holds a line break; give the separators yourself")
    return found


def sample_segments(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw a text of segments about five tokens long."""
    return segment_positions(torch.randint(0, 5, (batch, seq), generator=generator), {0})[0]


def _fresh(ids: Tensor, document: Tensor | None, before: SegmentState) -> Tensor:
    """Which tokens begin a document that did not begin before."""
    fresh = torch.zeros_like(ids, dtype=torch.bool)
    if document is not None and ids.shape[1]:
        fresh[:, 1:] = document[:, 1:] != document[:, :-1]
        if before.document is not None:
            fresh[:, 0] = document[:, 0] != before.document
    return fresh


def _latest(where: Tensor, value: Tensor, first: Tensor) -> Tensor:
    """Return the value, which never falls, where ``where`` held last; ``first``, which is not above 0, before that."""
    return torch.where(where, value, first[:, None]).cummax(-1).values


def _held(document: Tensor, real: Tensor) -> Tensor:
    """Let padding be of the document of the real token before it."""
    index = torch.arange(real.shape[1], device=real.device)
    return document.gather(1, torch.where(real, index, 0).cummax(-1).values) if real.shape[1] else document


def _one_more(flags: Tensor) -> Tensor:
    return torch.cat([flags, flags.new_zeros(flags.shape[0], 1)], -1)


def _like(ids: Tensor, fact: Tensor, name: str) -> Tensor:
    fact = fact[None] if fact.ndim == 1 else fact
    if fact.ndim != 2 or fact.shape[1] != ids.shape[1] or fact.shape[0] not in (1, ids.shape[0]):
        raise PositionError(f"{name} have shape {tuple(fact.shape)} and ids {tuple(ids.shape)}; one for each token")
    return fact.to(ids.device).expand_as(ids)
