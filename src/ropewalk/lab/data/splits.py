"""Which documents are trained on, which are watched, and which are only scored at the end."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError

SPLITS = ("train", "validation", "test")
FRACTIONS = (0.8, 0.1, 0.1)
BY_NAME = "whole documents, by a hash of their names"
BY_RANGE = "every document cut into contiguous ranges"
BY_LENGTH = "whole documents, by their lengths"

_FEW = 10  # documents; fewer are cut into ranges
_LEAST = 0.25  # of the tokens that a split is due; with less, documents are cut into ranges


def split_number(name: str) -> int:
    """Return the number of a split, by its name."""
    if name not in SPLITS:
        raise ConfigError(f"split is one of {', '.join(SPLITS)}; got {name!r}")
    return SPLITS.index(name)


def check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    """Check the shares of train, validation and test."""
    good = len(fractions) == 3 and all(isinstance(f, float | int) and 0 < f < 1 for f in fractions)
    if not good or not math.isclose(sum(fractions), 1, abs_tol=1e-9):
        raise ConfigError(
            f"fractions are three positive numbers that sum to 1, for {', '.join(SPLITS)}; got {tuple(fractions)!r}"
        )
    train, validation, test = fractions
    return float(train), float(validation), float(test)


def split_of(key: str, fractions: tuple[float, float, float] = FRACTIONS) -> int:
    """Return the split of a document, which depends on its name and on nothing else.

    Args:
        key: name of the document within its source.
        fractions: shares of the splits.
    """
    drawn = int.from_bytes(hashlib.blake2b(key.encode(errors="replace"), digest_size=8).digest(), "big") / 2**64
    return 0 if drawn < fractions[0] else 1 if drawn < fractions[0] + fractions[1] else 2


def why_ranges(lengths: Tensor, splits: Tensor, fractions: tuple[float, float, float]) -> str | None:
    """Say why whole documents would not do, or None where they do.

    Args:
        lengths: (N,) tokens of the documents.
        splits: (N,) their splits.
        fractions: shares of the splits.
    """
    count = len(lengths)
    if count < _FEW:
        return f"there are only {count} documents"
    total = int(lengths.sum())
    for number, name in enumerate(SPLITS):
        got = int(lengths[splits == number].sum())
        if got < _LEAST * fractions[number] * total:
            return f"whole documents would give the {name} split {got:,} of {total:,} tokens"
    return None


def cut(
    tokens: Tensor, offsets: Tensor, fractions: tuple[float, float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut every document into a range for each split; each range begins with the start token, like a document.

    Args:
        tokens: (T,) documents one after another, each with its start token.
        offsets: (N + 1,) where they begin.
        fractions: shares of the splits.

    Returns:
        tokens, offsets and splits of the pieces, and the document (M,) that each piece is of. Empty pieces are left out.
    """
    parts, lengths, splits, owners = [], [0], [], []
    bounds = offsets.tolist()
    for document, (begin, end) in enumerate(pairwise(bounds)):
        size = end - begin - 1
        marks = (0, int(size * fractions[0]), int(size * (fractions[0] + fractions[1])), size)
        for number, (low, high) in enumerate(pairwise(marks)):
            if low < high:
                parts += [tokens[begin : begin + 1], tokens[begin + 1 + low : begin + 1 + high]]
                lengths.append(high - low + 1)
                splits.append(number)
                owners.append(document)
    return (
        torch.cat(parts),
        torch.tensor(lengths).cumsum(0),
        torch.tensor(splits, dtype=torch.uint8),
        torch.tensor(owners),
    )
