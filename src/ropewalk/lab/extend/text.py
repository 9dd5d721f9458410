"""The text that an extension is measured and tuned on: its longest documents are measured, the others are trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ropewalk.lab.data import Corpus, read_corpus
from ropewalk.lab.data.packing import generator
from ropewalk.lab.data.tokens import Tokenizer
from ropewalk.lab.errors import DataError
from ropewalk.lab.extend.settings import Extension

TRAIN, SEARCH, MEASURED = 0, 1, 2
"""Numbers of the splits "train", "validation" and "test" of a corpus, by what they are for here."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows that slide over documents by the tokens that are scored, so that no token is scored twice.

    Attributes:
        tokens: (N, length + 1) int64; the last one is a target only.
        documents: N names.
    """

    tokens: Tensor
    documents: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)


def read_text(
    settings: Extension, tokenizer: Tokenizer, longest: int, progress: Callable[[int, int], None] | None = None
) -> Corpus:
    """Read the text, and choose what is measured.

    Documents that hold a window of the longest length are drawn for measuring, as many as there are windows, then for the
    search; all others are for tuning. So nothing is measured on what was trained or searched on.

    Args:
        settings: says where the text is.
        tokenizer: of the model.
        longest: tokens of the longest window.
        progress: as in `read_corpus`.

    Raises:
        DataError: no document is long enough; the message says how much is needed.
        ConfigError: as `read_corpus`.
    """
    corpus = read_corpus(
        settings.data,
        text_column=settings.text_column,
        tokenizer=tokenizer,
        division=partial(_divided, settings=settings, longest=longest),
        progress=progress,
    )
    if settings.tune and not len(corpus.documents("train")):
        raise DataError(
            "there is no text to tune on besides the documents that are measured; give more, or fewer --windows"
        )
    return corpus


def sliding(corpus: Corpus, split: str, length: int, scored: int, count: int) -> Windows:
    """Return windows for scoring their last tokens, of as many different documents as there are.

    Args:
        corpus: the text.
        split: "test" for what is measured, "validation" for what is searched on.
        length: tokens that are read; one more is the last target.
        scored: tokens from one window to the next.
        count: windows wanted; there are fewer if the text has no more.

    Raises:
        DataError: there is no document.
    """
    documents = corpus.documents(split)
    drawn = documents[torch.randperm(len(documents), generator=generator("extend", split))].tolist()
    if not drawn:
        raise DataError(
            f"no document of {length + 1:,} tokens is left over for a search or a calibration; give more text, or fewer "
            "--windows, and a new folder"
        )
    lengths = corpus.lengths
    # The token that begins a document is the corpus's own, and the model may never have seen it.
    room = [max(0, (int(lengths[d]) - 1 - (length + 1)) // scored + 1) for d in drawn]
    rows: list[Tensor] = []
    names: list[str] = []
    for turn in range(max(room, default=0)):
        for document, windows in zip(drawn, room, strict=True):
            if turn < windows and len(rows) < count:
                start = int(corpus.offsets[document]) + 1 + turn * scored
                rows.append(corpus.tokens[start : start + length + 1].long())
                names.append(corpus.names[document])
    return Windows(torch.stack(rows), tuple(names))


def _divided(lengths: Tensor, *, settings: Extension, longest: int) -> Tensor:
    need = longest + 1
    fit = (lengths - 1 >= need).nonzero()[:, 0]
    if not len(fit):
        raise DataError(
            f"windows of {longest:,} tokens need a document of {need:,} tokens (one more is the last target), and the longest of "
            f"the {len(lengths):,} documents has {int(lengths.max()) - 1:,}; give longer documents, or a smaller --to"
        )
    fit = fit[torch.randperm(len(fit), generator=generator("extend", settings.seed))]
    if settings.looks_at_text and len(fit) == 1:
        raise DataError(
            f"a search or a calibration needs a document of {need:,} tokens besides the one that is measured, and there is one; "
            "give more text"
        )
    # A method that looks at text may be added to the run later: it gets what is not needed for measuring.
    trained_on = int(settings.tune > 0 and len(fit) == len(lengths))
    spare = len(fit) - (1 if settings.looks_at_text else settings.windows + trained_on)
    searched = max(0, min(settings.search_windows, spare))
    measured = min(settings.windows, len(fit) - searched)
    splits = torch.full_like(lengths, TRAIN)
    splits[fit[:measured]] = MEASURED
    splits[fit[measured : measured + searched]] = SEARCH
    if settings.tune and measured > 1 and not bool((splits == TRAIN).any()):
        splits[fit[measured - 1]] = TRAIN
    return splits
