"""Text to token ids and back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.lab.data.extras import need

# What published tokenizers call the token that begins a document, else the one that ends it; the first found is taken.
_STARTS = (
    "<|begin_of_text|>",
    "<s>",
    "<bos>",
    "[BOS]",
    "<|startoftext|>",
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "[CLS]",
)
_PIECE = 1 << 20  # characters handed to a tokenizer at once: it keeps some hundred bytes a token while it works


class Tokenizer(Protocol):
    """What a corpus asks of a tokenizer.

    Attributes:
        name: for reports.
        vocab_size: ids are in [0, vocab_size).
        start: id of the token that begins a document; `encode` does not add it.
        digest: differs between tokenizers that give different ids.
    """

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def encode(self, text: str) -> Tensor:
        """Return the ids (n,) of a text, of any integer dtype, on the CPU."""

    def decode(self, ids: Tensor | Iterable[int]) -> str:
        """Return the text of ids; start tokens leave no trace, broken characters become U+FFFD."""

    def dump(self) -> str:
        """Return what `load_tokenizer` makes the same tokenizer of."""


class ByteTokenizer:
    """The UTF-8 bytes of a text are its ids; 256 begins a document."""

    name = "bytes"
    vocab_size = 257
    start = 256
    digest = "bytes"

    def encode(self, text: str) -> Tensor:
        """Return the bytes (n,) as uint8."""
        raw = bytearray(text.encode("utf-8"))  # a bytearray, since torch warns of memory it may not write to
        return torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)

    def decode(self, ids: Tensor | Iterable[int]) -> str:
        """Return the text; bytes that are no UTF-8 (a window may begin inside a character) become U+FFFD."""
        return bytes(i for i in _checked(ids, self.vocab_size) if i != self.start).decode("utf-8", "replace")

    def dump(self) -> str:
        """Return nothing: there is only one."""
        return ""


class JsonTokenizer:
    """A ``tokenizer.json``, run by the package tokenizers.

    The start token is the file's own begin- or end-of-document token where it has one by a usual name, else one id more
    than the file has. Words in the text that look like special tokens are text. Truncation and padding that the file asks
    for are turned off. Texts beyond a million characters are encoded in pieces, cut after a line break where there is one.

    Args:
        content: of the file.
        name: for reports.

    Raises:
        ConfigError: not a tokenizer; the package is not installed.
    """

    def __init__(self, content: str, name: str = "tokenizer.json") -> None:
        library = need("tokenizers", f"the tokenizer {name}")
        try:
            self._inner = library.Tokenizer.from_str(content)
        except Exception as problem:  # the package raises bare Exception
            raise ConfigError(
                f"{name} is not a tokenizer.json that this version of tokenizers reads: {problem}"
            ) from problem
        self._inner.no_truncation()
        self._inner.no_padding()
        self._inner.encode_special_tokens = True
        self._content = content
        self.name = name
        special = {t.content: i for i, t in self._inner.get_added_tokens_decoder().items() if t.special}
        size = 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)
        if size == 0:
            raise ConfigError(f"{name} has an empty vocabulary")
        self.start = next((special[word] for word in _STARTS if word in special), size)
        self.vocab_size = max(size, self.start + 1)
        self.digest = hashlib.sha256(content.encode()).hexdigest()

    def encode(self, text: str) -> Tensor:
        """Return the ids (n,), without special tokens."""
        parts = [
            torch.tensor(self._inner.encode(p, add_special_tokens=False).ids, dtype=torch.int32) for p in _pieces(text)
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int32)

    def decode(self, ids: Tensor | Iterable[int]) -> str:
        """Return the text."""
        return self._inner.decode([i for i in _checked(ids, self.vocab_size) if i != self.start])

    def dump(self) -> str:
        """Return the content of the file."""
        return self._content


def find_tokenizer(given: Tokenizer | str | os.PathLike[str] | None) -> Tokenizer:
    """Return a tokenizer.

    Args:
        given: itself, a tokenizer.json, or a folder that holds one; None or "bytes": bytes.

    Raises:
        ConfigError: the file cannot be read; see also `JsonTokenizer`.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        return given
    if given is None or given == "bytes":
        return ByteTokenizer()
    path = Path(given).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        return JsonTokenizer(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(
            f"the tokenizer {str(given)!r} cannot be read: {problem}. "
            "Give the path of a tokenizer.json; without one, tokens are bytes"
        ) from problem


def load_tokenizer(name: str, dumped: str) -> Tokenizer:
    """Return the tokenizer that `Tokenizer.dump` wrote."""
    return JsonTokenizer(dumped, name) if dumped else ByteTokenizer()


def _checked(ids: Tensor | Iterable[int], vocab_size: int) -> Iterator[int]:
    for i in ids.tolist() if isinstance(ids, Tensor) else ids:
        if not 0 <= i < vocab_size:
            raise ConfigError(f"token ids are in [0, {vocab_size}); got {i}")
        yield i


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        end = min(begin + _PIECE, len(text))
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end
