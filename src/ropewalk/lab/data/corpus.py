"""A corpus: tokens of many documents, split, and the batches that are cut from them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.data.extras import need
from ropewalk.lab.data.labels import Labels, classification_batch, find_labels
from ropewalk.lab.data.packing import packed_batch
from ropewalk.lab.data.splits import SPLITS, split_number
from ropewalk.lab.data.tokens import Tokenizer, load_tokenizer
from ropewalk.lab.data.windows import Windows, find_windows
from ropewalk.lab.files import write_bytes

_FORMAT = "ropewalk corpus 1"
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as tokens. Make one with `read_corpus`; workers and resumed runs `load` what the first one saved.

    Batches are pure functions of the step and the seed: there is nothing to checkpoint.

    Attributes:
        tokens: (T,) on the CPU, in the smallest dtype that holds them: the documents one after another, each with its
            start token.
        offsets: (N + 1,) int64, where the documents begin, and T.
        names: N names; pieces of one document share its name.
        splits: (N,) uint8, numbers into `SPLITS`.
        tokenizer: made the tokens.
        facts: how the corpus was made, as JSON.
        digest: SHA-256 of everything above that a model or a measurement can see.
    """

    tokens: Tensor = field(repr=False)
    offsets: Tensor = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    splits: Tensor = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    facts: dict[str, Any] = field(repr=False)
    digest: str
    _held: dict[str, tuple[Hashable, Any]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        offsets: Tensor,
        names: tuple[str, ...],
        splits: Tensor,
        tokenizer: Tokenizer,
        facts: dict[str, Any],
    ) -> Corpus:
        """Make a corpus and its digest."""
        return cls(tokens, offsets, names, splits, tokenizer, facts, _digest(tokens, offsets, names, splits, tokenizer))

    @property
    def lengths(self) -> Tensor:
        """(N,) tokens of the documents, the start token included."""
        return self.offsets.diff()

    def documents(self, split: str) -> Tensor:
        """Numbers (n,) of the documents of a split."""
        return (self.splits == split_number(split)).nonzero()[:, 0]

    def batch(self, step: int, *, batch_size: int, length: int, seed: int) -> Batch:
        """Return the training batch of a step.

        In every epoch the training documents stand one after another in an order drawn for it; that stream is cut into
        windows of ``length`` tokens, which come in a drawn order too. Rows go on counting from step to step and from
        epoch to epoch. Every token but those that begin a document is a target once an epoch, minus the tail of the
        stream that fills no window.

        Args:
            step: counted from 0.
            batch_size: rows.
            length: tokens of a row.
            seed: of both orders.

        Returns:
            tokens and targets (batch_size, length); documents only if some row holds more than one.

        Raises:
            ConfigError: the training split is shorter than one window.
        """
        return packed_batch(self, step, batch_size=batch_size, length=length, seed=seed)

    def windows(self, split: str, length: int, *, count: int, seed: int = 0) -> Windows:
        """Return windows for scoring, of as many different documents as there are.

        No two windows overlap, and none leaves its document. The first ones are of different documents, so that any
        beginning of the list is as varied as it can be.

        Args:
            split: "train", "validation" or "test".
            length: tokens that are read; one more is the last target.
            count: windows wanted; there are fewer if the split has no more.
            seed: of the choice.

        Raises:
            ConfigError: no document of the split has ``length + 1`` tokens.
        """
        return find_windows(self, split, length, count=count, seed=seed)

    def labels(self) -> Labels:
        """Return a class for each document: the first folder of its name, else the suffix of its file.

        Classes with less than one document in a hundred are "other".
        """
        return self.once("labels", None, lambda: find_labels(self.names))

    def classification_batch(
        self, step: int, *, batch_size: int, length: int, seed: int, split: str = "train"
    ) -> Batch:
        """Return windows whose only target is the class of their document, at the last token.

        In every epoch each document that is long enough gives one window, from a drawn place in it.

        Args:
            step: counted from 0.
            batch_size: rows.
            length: tokens of a row.
            seed: of the order and of the places.
            split: the documents to take.

        Raises:
            ConfigError: no document is long enough, or those of the training split are all of one class.
        """
        return classification_batch(self, step, batch_size=batch_size, length=length, seed=seed, split=split)

    def describe(self) -> dict[str, Any]:
        """Return what a report says of the corpus, as JSON.

        Its keys: sources; split, how the documents were divided; documents and tokens, by split; empty, repeated and
        not_text, counts of what was left out; tokenizer: name, vocab_size and digest; digest.
        """
        lengths = self.lengths
        mine = {split: self.documents(split) for split in SPLITS}
        return {
            **self.facts,
            "documents": {split: len(found) for split, found in mine.items()},
            "tokens": {split: int(lengths[found].sum()) for split, found in mine.items()},
            "tokenizer": {
                "name": self.tokenizer.name,
                "vocab_size": self.tokenizer.vocab_size,
                "digest": self.tokenizer.digest,
            },
            "digest": self.digest,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the corpus, whole or not at all, as safetensors.

        Raises:
            ConfigError: the package safetensors, or numpy which it uses, is missing.
        """
        need("numpy", "saving a corpus")
        content = need("safetensors.torch", "saving a corpus").save(
            {
                "tokens": self.tokens,
                "offsets": self.offsets,
                "splits": self.splits,
                # Too many names for the file's header, which is limited, are no trouble as a tensor.
                "names": _as_tensor(json.dumps(self.names)),
                "tokenizer": _as_tensor(self.tokenizer.dump()),
            },
            metadata={
                "format": _FORMAT,
                "tokenizer": self.tokenizer.name,
                "facts": json.dumps(self.facts),
                "digest": self.digest,
            },
        )
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Corpus:
        """Read what `save` wrote.

        Raises:
            ConfigError: no such file, not a corpus, or damaged.
        """
        library = need("safetensors", "loading a corpus")
        try:
            with library.safe_open(os.fspath(path), framework="pt") as file:
                about = file.metadata() or {}
                if about.get("format") != _FORMAT:
                    raise ConfigError(
                        f"{os.fspath(path)!r} is no corpus of this version of ropewalk; remove it to read the data again"
                    )
                part = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        except (OSError, library.SafetensorError) as problem:
            raise ConfigError(
                f"the corpus {os.fspath(path)!r} cannot be loaded: {problem}; remove it to read the data again"
            ) from problem
        damaged = ConfigError(f"the corpus {os.fspath(path)!r} is damaged; remove it to read the data again")
        try:
            names, dumped = json.loads(_as_text(part["names"])), _as_text(part["tokenizer"])
            facts = json.loads(about["facts"])
        except (KeyError, ValueError):
            raise damaged from None
        tokenizer = load_tokenizer(about["tokenizer"], dumped)
        corpus = cls.of(part["tokens"], part["offsets"], tuple(names), part["splits"], tokenizer, facts)
        if corpus.digest != about["digest"]:
            raise damaged
        return corpus

    def once(self, slot: str, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what was made for this key before, or make it; one thing is held a slot."""
        held = self._held.get(slot)
        if held is None or held[0] != key:
            held = self._held[slot] = (key, make())
        return held[1]


def _digest(tokens: Tensor, offsets: Tensor, names: tuple[str, ...], splits: Tensor, tokenizer: Tokenizer) -> str:
    digest = hashlib.sha256()
    for part in (json.dumps([tokenizer.digest, str(tokens.dtype), *names]).encode(), offsets, splits, tokens):
        digest.update(part if isinstance(part, bytes) else _bytes(part))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    """Return a tensor's memory as a buffer, without a copy and without numpy."""
    tensor = tensor.contiguous()
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b""


def _as_tensor(text: str) -> Tensor:
    raw = bytearray(text.encode())
    return torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)


def _as_text(tensor: Tensor) -> str:
    return bytes(_bytes(tensor)).decode()
