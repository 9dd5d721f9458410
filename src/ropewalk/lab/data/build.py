"""Reading a corpus: find, read, drop what is empty or comes twice, tokenise, split."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.lab.data.corpus import Corpus
from ropewalk.lab.data.hub import HubData
from ropewalk.lab.data.readers import NotText, clean, read_file
from ropewalk.lab.data.sources import File, Source, find
from ropewalk.lab.data.splits import (
    BY_LENGTH,
    BY_NAME,
    BY_RANGE,
    FRACTIONS,
    SPLITS,
    check_fractions,
    cut,
    split_of,
    why_ranges,
)
from ropewalk.lab.data.tokens import Tokenizer, find_tokenizer

# Work done and work there is, in bytes.
Progress = Callable[[int, int], None]
# Name, name within its source, and text of a document.
Document = tuple[str, str, str]
# From the tokens (N,) of the documents to their splits (N,), numbers into `SPLITS`.
Division = Callable[[Tensor], Tensor]


def read_corpus(
    sources: Sequence[Source] = (),
    *,
    text_column: str = "text",
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    fractions: Sequence[float] = FRACTIONS,
    division: Division | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Read text into a corpus.

    A file is a document, and so is a row of a table. In folders, hidden files and files that are not UTF-8 are passed over.
    Line ends become LF. Empty documents are dropped, and of documents with the same text all but the first by
    name. The same sources give the same corpus on every machine, in whatever order they are named or listed.

    Args:
        sources: files, folders, globs, tables (.jsonl, .jsonl.gz, .parquet), or data sets of the Hugging Face hub as
            hf:NAME[:CONFIG][@SPLIT]; none: the source of Python's standard library.
        text_column: of the tables and data sets.
        tokenizer: a tokenizer or the path of a tokenizer.json; None: bytes.
        fractions: shares of train, validation and test, see `make_corpus`.
        division: see `make_corpus`.
        progress: called now and then with the bytes done and the bytes in all.

    Raises:
        ConfigError: a source that does not exist, cannot be read or holds no text; a file named by the user that is not
            UTF-8; a table without the column or with a broken line; a package that is not installed.
    """
    check_fractions(fractions)
    made = find_tokenizer(tokenizer)
    files, hub, titles = find(sources)
    reading = _Reading(files, hub, text_column, progress)
    corpus = make_corpus(
        reading.documents(),
        tokenizer=made,
        fractions=fractions,
        division=division,
        sources=titles,
        facts=reading.facts,
    )
    reading.finish()
    return corpus


def make_corpus(
    documents: Iterable[Document],
    *,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    fractions: Sequence[float] = FRACTIONS,
    division: Division | None = None,
    sources: Sequence[str] = (),
    facts: dict[str, int] | None = None,
) -> Corpus:
    """Make a corpus of documents.

    Whole documents go to train, validation or test by a hash of their names, so that a document is always in the same
    split, whatever else there is. Where that gives no fair split (fewer than 10 documents, or a split with less than a
    quarter of the tokens it is due), every document is cut into three contiguous ranges, one a split; `Corpus.describe`
    says which was done, and why.

    Args:
        documents: name, key and text of each; the key, which is the name within its source, decides the split.
        tokenizer: None: bytes.
        fractions: shares of train, validation and test.
        division: divides whole documents by their lengths instead; splits may then be empty.
        sources: what to call the sources in a report.
        facts: counts of what was left out, for a report; more are added.

    Raises:
        ConfigError: no text, or too little for three splits.
    """
    shares = check_fractions(fractions)
    made = find_tokenizer(tokenizer)
    facts = {"not_text": 0} if facts is None else facts
    flat = _Growing(_smallest(made.vocab_size))
    names: list[str] = []
    numbers: list[int] = []
    start = torch.tensor([made.start])
    for name, key, ids in _kept(documents, made, facts):
        flat.add(start, ids)
        names.append(name)
        numbers.append(split_of(key, shares))
    if not names:
        left = ", ".join(f"{count} {what}" for what, count in facts.items() if count)
        raise ConfigError(
            f"the data holds no text{f' (left out: {left})' if left else ''}; name files, folders or tables of UTF-8 text"
        )
    tokens, offsets, splits = flat.tokens(), torch.tensor(flat.offsets), torch.tensor(numbers, dtype=torch.uint8)
    if division is not None:
        splits = division(offsets.diff()).to(torch.uint8)
        about = {"sources": list(sources), "split": BY_LENGTH, **facts}
        return Corpus.of(tokens, offsets, tuple(names), splits, made, about)
    how, reason = BY_NAME, why_ranges(offsets.diff(), splits, shares)
    count = len(names)
    if reason is not None:
        how = f"{BY_RANGE}, because {reason}"
        tokens, offsets, splits, owners = cut(tokens, offsets, shares)
        names = [names[i] for i in owners.tolist()]
    for number, split in enumerate(SPLITS):
        if not (splits == number).any():
            raise ConfigError(
                f"the {split} split is empty: there are {count} documents with {flat.used - count} tokens in all, "
                "too few to be divided; give more text"
            )
    return Corpus.of(tokens, offsets, tuple(names), splits, made, {"sources": list(sources), "split": how, **facts})


def _kept(
    documents: Iterable[Document], tokenizer: Tokenizer, facts: dict[str, int]
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield name, key and tokens of the documents that are neither empty nor repeated, and count the others."""
    seen: set[bytes] = set()
    facts.update(empty=0, repeated=0)
    for name, key, raw in documents:
        text = clean(raw)
        mark = hashlib.blake2b(text.encode(), digest_size=16).digest()
        ids = torch.empty(0) if mark in seen or text.isspace() else tokenizer.encode(text)
        if len(ids):
            seen.add(mark)
            yield name, key, ids
        else:
            facts["repeated" if mark in seen else "empty"] += 1


@dataclass
class _Reading:
    """Walks through files and data sets and keeps count."""

    files: list[File]
    hub: list[HubData]
    column: str
    progress: Progress | None
    facts: dict[str, int] = field(default_factory=lambda: {"not_text": 0})
    shown: int = -1

    def __post_init__(self) -> None:
        self.total = sum(file.size for file in self.files) + sum(data.size for data in self.hub)

    def documents(self) -> Iterator[Document]:
        """Yield name, key and text."""
        done = 0
        for file in self.files:
            rows = read_file(file.path, self.column, file.named)
            yield from self._texts(rows, file.name, file.key, str(file.path), file.named, done, file.size)
            done += file.size
            self._show(done)
        for data in self.hub:
            yield from self._texts(data.texts(self.column), data.name, data.name, data.name, True, done, data.size)
            done += data.size
            self._show(done)

    def _texts(
        self, rows: Iterator[tuple[str, Any, float]], name: str, key: str, where: str, named: bool, done: int, size: int
    ) -> Iterator[Document]:
        """Yield the documents of one file or data set; what a user named must hold some text."""
        found = False
        try:
            for row, value, share in rows:
                if value is not None and not isinstance(value, str):
                    raise ConfigError(
                        f"{where!r}, row {row.lstrip(':/')}: the column {self.column!r} is {type(value).__name__}, not text"
                    )
                found = found or bool(value and not value.isspace())
                yield name + row, key + row, value or ""
                self._show(done + int(share * size))
        except NotText:
            if named:
                raise
            self.facts["not_text"] += 1
            return
        if named and not found:
            raise ConfigError(f"{where!r} is empty: there is no text in it")

    def _show(self, done: int) -> None:
        """Tell the caller, at most about a thousand times."""
        if self.progress is not None and done < self.total and done - self.shown > self.total // 1000:
            self.shown = done
            self.progress(done, self.total)

    def finish(self) -> None:
        """Say that everything was read."""
        if self.progress is not None:
            self.progress(self.total, self.total)


class _Growing:
    """Tokens of unknown number in one tensor, which doubles when it is full."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._buffer = torch.empty(1 << 16, dtype=dtype)
        self.used = 0
        self.offsets = [0]

    def add(self, *parts: Tensor) -> None:
        """Append a document."""
        end = self.used + sum(map(len, parts))
        if end > len(self._buffer):
            self._buffer.resize_(max(end, 2 * len(self._buffer)))
        for part in parts:
            self._buffer[self.used : self.used + len(part)] = part
            self.used += len(part)
        self.offsets.append(end)

    def tokens(self) -> Tensor:
        """Return the tokens."""
        return self._buffer[: self.used]


def _smallest(vocab_size: int) -> torch.dtype:
    """Return the smallest dtype that holds every id."""
    sizes = (torch.uint8, torch.int16, torch.int32)
    return next((dtype for dtype in sizes if vocab_size - 1 <= torch.iinfo(dtype).max), torch.int64)
