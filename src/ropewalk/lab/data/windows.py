"""Windows of single documents, for scoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import Batch
from ropewalk.lab.data.packing import check_counted, generator

if TYPE_CHECKING:
    from ropewalk.lab.data.corpus import Corpus


@dataclass(frozen=True, eq=False, slots=True)
class Windows:
    """Windows that never overlap and never leave their document.

    Attributes:
        tokens: (N, length + 1) int64.
        documents: N names of documents.
        starts: (N,) int64, where each window begins in its document.
        asked: how many were wanted; N is less if the split has no more.
    """

    tokens: Tensor
    documents: tuple[str, ...]
    starts: Tensor
    asked: int

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, start: int = 0, stop: int | None = None) -> Batch:
        """Return some of the windows as a batch in which every target counts."""
        rows = self.tokens[start:stop]
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


def find_windows(corpus: Corpus, split: str, length: int, *, count: int, seed: int) -> Windows:
    """See `Corpus.windows`."""
    check_positive(length=length, count=count)
    check_counted(seed=seed)
    size = length + 1
    documents = corpus.documents(split)
    lengths = corpus.lengths[documents]
    longest = int(lengths.max()) if len(lengths) else 0
    if longest < size:
        raise ConfigError(
            f"windows of {length} need {size} tokens of one document (one more is the last target), and the longest of the "
            f"{len(documents)} documents in the {split} split has {longest}; "
            "give shorter eval_lengths or longer documents"
        )
    draw = generator("windows", split, length, seed)
    fit = (lengths >= size).nonzero()[:, 0]
    fit = fit[torch.randperm(len(fit), generator=draw)]
    documents, lengths = documents[fit], lengths[fit]
    room = lengths // size
    owners, taken = [], 0
    for turn in range(int(room.max())):  # a window of every document that has room for one more
        again = (room > turn).nonzero()[: count - taken, 0]
        owners.append(again)
        taken += len(again)
        if taken == count:
            break
    owner = torch.cat(owners)
    parts = []
    for document, wanted in zip(*(t.tolist() for t in owner.unique(return_counts=True)), strict=True):
        slots = torch.randperm(int(room[document]), generator=draw)[:wanted]
        slack = int(lengths[document] - room[document] * size)
        parts.append(slots * size + torch.randint(slack + 1, (1,), generator=draw))
    starts = torch.empty_like(owner)
    starts[owner.argsort(stable=True)] = torch.cat(parts)
    at = corpus.offsets[documents[owner]] + starts
    tokens = corpus.tokens[at[:, None] + torch.arange(size)].long()
    return Windows(tokens, tuple(corpus.names[i] for i in documents[owner].tolist()), starts, count)
