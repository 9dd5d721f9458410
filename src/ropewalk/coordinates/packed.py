"""Where the tokens of packed documents are, and who sees whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Positions

Packing = Literal["full", "intra", "intra_reset", "anchor", "anchor_copies"]
Visibility = Literal["full", "intra", "anchor"]
CopyIds = Literal["shared", "packed"]


def packed_positions(lengths: Sequence[int], mode: Packing = "anchor", *, copy_ids: CopyIds = "shared") -> Positions:
    """Return the positions of documents in one row, and in the column "document" of which each token is, counted from 1.

    - "full": 0, 1, 2, …, one document.
    - "intra": 0, 1, 2, … across documents that do not see each other.
    - "intra_reset": from 0 in each.
    - "anchor": one more token in front, position 0 and document 0; then 1, 2, 3, … across documents. With `AnchorAttention`.
    - "anchor_copies": one more token in front of each document, at position 0, and plain documents: the same attention for
      kernels that know nothing but documents. The others are numbered as in "anchor" (``copy_ids="shared"``, which is exactly
      that attention), or by their place in this row ("packed", as released).

    Args:
        lengths: tokens of each document, without anchors.
        mode: see above.
        copy_ids: see above.

    Source: see `ropewalk.bias.anchor_attention.AnchorAttention`.
    """
    if not lengths:
        raise ConfigError("no documents to place")
    check_positive(**{f"length of document {n}": length for n, length in enumerate(lengths)})
    for name, value, known in (("mode", mode, Packing), ("copy_ids", copy_ids, CopyIds)):
        if value not in get_args(known):
            raise ConfigError(
                f"{name} is one of {', '.join(get_args(known))}; got {value!r}.{suggest(value, get_args(known))}"
            )
    sizes = torch.tensor(lengths)
    document = torch.arange(1, len(lengths) + 1).repeat_interleave(sizes)
    index = torch.arange(int(sizes.sum()))
    if mode == "full":
        return Positions(index)
    if mode == "intra":
        return Positions(index, document_ids=document)
    if mode == "intra_reset":
        return Positions(torch.cat([torch.arange(n) for n in lengths]), document_ids=document)
    if mode == "anchor":
        return Positions(torch.arange(len(index) + 1), document_ids=torch.cat([document.new_zeros(1), document]))
    step = 1 if copy_ids == "packed" else 0
    places, first = [], 1
    for n in lengths:
        places.append(torch.cat([torch.zeros(1, dtype=torch.long), first + torch.arange(n)]))
        first += n + step
    return Positions(torch.cat(places), document_ids=torch.arange(1, len(lengths) + 1).repeat_interleave(sizes + 1))


class DocumentMask(NamedTuple):
    """Who sees whom in packed rows."""

    mask: Tensor
    """(B, 1, S, S), True where a query sees a key."""

    mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """The same for `torch.nn.attention.flex_attention.create_block_mask`: of (batch, head, query, key)."""

    @property
    def pairs(self) -> int:
        """How many pairs are computed."""
        return int(self.mask.sum())


def document_mask(documents: Tensor, mode: Visibility = "anchor") -> DocumentMask:
    """Return who sees whom: q ≥ k, and in "intra" doc(q) = doc(k), and in "anchor" that or doc(k) = 0.

    Args:
        documents: (S,) or (B, S) whole numbers; 0 is the anchor's.
        mode: "full" is causal alone.
    """
    if documents.ndim not in (1, 2) or documents.is_floating_point():
        raise ShapeError(
            f"documents have shape {tuple(documents.shape)} and dtype {documents.dtype}; expected integers (S,) or (B, S)"
        )
    if mode not in get_args(Visibility):
        raise ConfigError(
            f"mode is one of {', '.join(get_args(Visibility))}; got {mode!r}.{suggest(mode, get_args(Visibility))}"
        )
    rows = documents[None] if documents.ndim == 1 else documents

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        earlier = query >= key
        if mode == "full":
            return earlier
        mine, theirs = rows[batch, query], rows[batch, key]
        allowed = mine == theirs
        return earlier & (allowed | (theirs == 0) if mode == "anchor" else allowed)

    b, n = rows.shape
    index = torch.arange(n, device=rows.device)
    batch = torch.arange(b, device=rows.device)[:, None, None]
    mask = visible(batch, batch, index[:, None], index).expand(b, n, n)
    return DocumentMask(mask[:, None], visible)
