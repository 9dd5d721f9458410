"""What is said of the real tokens of a whole document, for each of its tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.errors import PositionError
from ropewalk.core.positions import Tokens


def over_documents(tokens: Tokens, values: Tensor, how: Literal["amax", "sum"]) -> Tensor:
    """Return the largest, or the sum, of the values (b, S) of the real tokens of each token's document.

    (b, 1) where documents are not packed. The largest is at least 0.
    """
    valid, document = tokens.columns.get("valid"), tokens.columns.get("document")
    counted = values if valid is None else torch.where(valid, values, 0.0)
    if not values.shape[1]:  # nothing has a largest
        return values
    if document is None:
        return counted.amax(-1, keepdim=True) if how == "amax" else counted.sum(-1, keepdim=True)
    rows = max(len(document), len(counted))
    document, counted = document.expand(rows, -1), counted.expand(rows, -1)
    # Number the documents of a row 0, 1, 2, ..., wherever their tokens are.
    order = document.argsort(dim=-1, stable=True)
    ids = document.gather(-1, order)
    rank = torch.zeros_like(ids)
    rank[:, 1:] = (ids[:, 1:] != ids[:, :-1]).long().cumsum(-1)
    place = torch.empty_like(rank).scatter(-1, order, rank)
    made = torch.zeros_like(counted).scatter_reduce(-1, place, counted, how)
    return made.gather(-1, place)


def lengths(tokens: Tokens) -> Tensor:
    """Return the number of real tokens of each token's document, float64, (b, S) or (b, 1).

    Raises:
        PositionError: a row or a document that is all padding.
    """
    count = over_documents(tokens, torch.ones(1, tokens.length, dtype=torch.float64, device=tokens.device), "sum")
    if not is_compiling() and not count.is_meta and count.numel() and bool((count < 1).any()):
        raise PositionError("a sequence of padding alone has length 0, and nothing can be divided by it; leave it out")
    return count
