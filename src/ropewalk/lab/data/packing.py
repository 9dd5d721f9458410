"""Training batches of packed documents, as a pure function of the step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch

if TYPE_CHECKING:
    from ropewalk.lab.data.corpus import Corpus


@dataclass(frozen=True, slots=True)
class _Epoch:
    """The stream of one epoch.

    Attributes:
        ends: (n,) where the documents, in their order of this epoch, end in the stream.
        shifts: (n,) what leads from a place in the stream to the same token in the corpus.
        windows: (W,) beginnings of the windows in the stream, in their order.
    """

    ends: Tensor
    shifts: Tensor
    windows: Tensor


def packed_batch(corpus: Corpus, step: int, *, batch_size: int, length: int, seed: int) -> Batch:
    """See `Corpus.batch`."""
    check_counted(step=step, seed=seed)
    check_positive(batch_size=batch_size, length=length)
    per_epoch = corpus.once("windows an epoch", length, lambda: _count(corpus, length))
    tokens, documents = [], []
    row, stop = step * batch_size, (step + 1) * batch_size
    while row < stop:  # one round, but for the batches in which an epoch ends
        number, first = divmod(row, per_epoch)
        last = min(per_epoch, first + stop - row)

        def make(number: int = number) -> _Epoch:
            return _epoch(corpus, length, seed, number)

        epoch = corpus.once("epoch", (length, seed, number), make)
        part = _rows(corpus.tokens, epoch, epoch.windows[first:last], length)
        tokens.append(part[0])
        documents.append(part[1])
        row += last - first
    found, owners = torch.cat(tokens), torch.cat(documents)
    # What follows the last token of a document is the start of another, which nothing could foretell.
    targets = torch.where(owners[:, 1:] == owners[:, :-1], found[:, 1:], IGNORE)
    owners = owners[:, :-1]
    several = bool((owners[:, -1] > 0).any())
    return Batch(found[:, :-1].contiguous(), targets, owners.contiguous() if several else None)


def check_counted(**numbers: int) -> None:
    """Check whole numbers that are counted from 0, by name."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConfigError(f"{name} is a whole number, at least 0; got {number!r}")


def generator(*what: object) -> torch.Generator:
    """Return a generator that depends on all of the arguments, the same in every process."""
    seed = int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "big") >> 1
    return torch.Generator().manual_seed(seed)


def _count(corpus: Corpus, length: int) -> int:
    total = int(corpus.lengths[corpus.documents("train")].sum())
    if total <= length:
        raise ConfigError(
            f"the train split has {total} tokens, too few for a sequence of {length} and its last target; "
            "give more text or a smaller train_length"
        )
    return (total - 1) // length


def _epoch(corpus: Corpus, length: int, seed: int, number: int) -> _Epoch:
    documents = corpus.documents("train")
    documents = documents[torch.randperm(len(documents), generator=generator("documents", seed, number))]
    ends = corpus.lengths[documents].cumsum(0)
    count = (int(ends[-1]) - 1) // length
    windows = torch.randperm(count, generator=generator("windows", seed, number)) * length
    return _Epoch(ends, corpus.offsets[documents + 1] - ends, windows)


def _rows(tokens: Tensor, epoch: _Epoch, windows: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return tokens and documents (B, length + 1) of some windows; documents are counted from 0 in each row."""
    at = windows[:, None] + torch.arange(length + 1)
    # Only the documents that end within a row are looked at, not all of the corpus.
    low, high = torch.searchsorted(epoch.ends, torch.stack([at[:, 0], at[:, -1]]), right=True)
    near = low[:, None] + torch.arange(max(1, int((high - low).max())))
    owners = torch.searchsorted(epoch.ends[near.clamp(max=len(epoch.ends) - 1)], at, right=True)
    return tokens[at + epoch.shifts[low[:, None] + owners]].long(), owners
