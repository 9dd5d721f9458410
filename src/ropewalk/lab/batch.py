"""What a model is trained or scored on: a batch of token sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.core.positions import Positions

IGNORE = -100  # a target that is not scored; torch's own default in cross_entropy


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens and what should follow each of them.

    Attributes:
        tokens: (B, S) int64.
        targets: (B, S) int64, the token that should follow; `IGNORE` where nothing is scored.
        documents: (B, S) int64 numbers of the documents packed into a row; None: a row is one document.
        positions: (B, S) or (B, S, axes) positions of the tokens where a task sets them; None: counted in each document.
        valid: (B, S) bool, False on padding; None: no padding, or padding that comes last and is never scored, which
            causal attention cannot see.
        columns: (B, S, ...) further facts about the tokens, by name, beside positions that a task sets.
        sequence: (B, ...) facts about whole rows, by name, such as their blocks, beside positions that a task sets.
        drawn: (B, ...) what a generated example shows and where, by name, for pictures and tests; no model sees it.
    """

    tokens: Tensor
    targets: Tensor
    documents: Tensor | None = None
    positions: Tensor | None = None
    valid: Tensor | None = None
    columns: Mapping[str, Tensor] | None = None
    sequence: Mapping[str, Tensor] | None = None
    drawn: Mapping[str, Tensor] | None = None

    @property
    def scored(self) -> int:
        """Number of targets that count."""
        return int((self.targets != IGNORE).sum())

    def where(self) -> Positions:
        """Positions for the encodings, made once for all layers."""
        if self.positions is not None:
            facts = self.sequence or {}
            where = Positions(self.positions, valid=self.valid, document_ids=self.documents, columns=self.columns)
            return where.map_sides(lambda tokens: tokens.with_sequence(**facts)) if facts else where
        length, device = self.tokens.shape[1], self.tokens.device
        return Positions.arange(length, device=device, valid=self.valid, document_ids=self.documents)

    def in_order(self) -> Batch:
        """Return the batch without the places of its tokens: they are counted instead."""
        return replace(self, positions=None, columns=None, sequence=None)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        return self._each(lambda t: t.to(device))

    def rows(self, start: int, stop: int) -> Batch:
        """Return some of the rows: what one of several processes works on."""
        return self._each(lambda t: t[start:stop])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def maybe(t: Tensor | None) -> Tensor | None:
            return None if t is None else change(t)

        def each(facts: Mapping[str, Tensor] | None) -> Mapping[str, Tensor] | None:
            return None if facts is None else {name: change(t) for name, t in facts.items()}

        return Batch(
            change(self.tokens),
            change(self.targets),
            maybe(self.documents),
            maybe(self.positions),
            maybe(self.valid),
            each(self.columns),
            each(self.sequence),
            each(self.drawn),
        )
