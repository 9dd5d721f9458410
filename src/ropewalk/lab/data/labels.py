"""Classes of documents, for encoders that name a class instead of the next token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.data.packing import check_counted, generator

if TYPE_CHECKING:
    from ropewalk.lab.data.corpus import Corpus

OTHER = "other"

_RARE = 0.01  # of the documents; classes with less are joined
_MARK = re.compile(r"(:\d+|~\d+)+$")  # the row of a table, the number among files of one name


@dataclass(frozen=True, eq=False, slots=True)
class Labels:
    """A class for each document.

    Attributes:
        names: of the C classes, sorted, "other" last.
        ids: (N,) int64, the class of each document of the corpus.
    """

    names: tuple[str, ...]
    ids: Tensor


def find_labels(documents: Sequence[str]) -> Labels:
    """See `Corpus.labels`."""
    found = [_label(name) for name in documents]
    count = Counter(found)
    common = sorted(label for label, n in count.items() if n >= _RARE * len(found) and label != OTHER)
    names = (*common, OTHER) if len(common) < len(count) else tuple(common)
    number = {name: i for i, name in enumerate(names)}
    return Labels(names, torch.tensor([number.get(label, len(common)) for label in found]))


def classification_batch(corpus: Corpus, step: int, *, batch_size: int, length: int, seed: int, split: str) -> Batch:
    """See `Corpus.classification_batch`."""
    check_counted(step=step, seed=seed)
    check_positive(batch_size=batch_size, length=length)
    labels = corpus.labels()
    corpus.once("classes", length, lambda: _check_classes(corpus, labels, length))
    documents = corpus.once(f"long {split}", length, lambda: _long_enough(corpus, split, length))
    rows = torch.arange(step * batch_size, (step + 1) * batch_size)
    epochs, places = rows // len(documents), rows % len(documents)
    picked = torch.empty_like(rows)
    for epoch in epochs.unique().tolist():
        here = epochs == epoch

        def make(epoch: int = epoch) -> Tensor:
            return torch.randperm(len(documents), generator=generator("classes", split, seed, epoch))

        order = corpus.once(f"order {split}", (length, seed, epoch), make)
        picked[here] = documents[order[places[here]]]
    free = corpus.lengths[picked] - length + 1
    drawn = torch.rand(batch_size, generator=generator("places", split, seed, step), dtype=torch.float64)
    at = corpus.offsets[picked] + (drawn * free).long()
    tokens = corpus.tokens[at[:, None] + torch.arange(length)].long()
    targets = torch.full_like(tokens, IGNORE)
    targets[:, -1] = labels.ids[picked]
    return Batch(tokens, targets)


def _label(name: str) -> str:
    path = PurePosixPath(name)
    return path.parts[0] if len(path.parts) > 1 else PurePosixPath(_MARK.sub("", name)).suffix or "no suffix"


def _long_enough(corpus: Corpus, split: str, length: int) -> Tensor:
    documents = corpus.documents(split)
    lengths = corpus.lengths[documents]
    longest = int(lengths.max()) if len(lengths) else 0
    if longest < length:
        raise ConfigError(
            f"no document of the {split} split has {length} tokens; the longest of {len(documents)} has "
            f"{longest}. Give a smaller train_length or longer documents"
        )
    return documents[lengths >= length]


def _check_classes(corpus: Corpus, labels: Labels, length: int) -> None:
    present = labels.ids[_long_enough(corpus, "train", length)].unique()
    if len(present) < 2:
        raise ConfigError(
            f"an encoder is trained to name the class of a document, and all those of the train split with {length} tokens "
            f"are {labels.names[int(present[0])]!r}. Classes are the first folders of the names, else the suffixes of the "
            "files: put documents into at least two folders"
        )
