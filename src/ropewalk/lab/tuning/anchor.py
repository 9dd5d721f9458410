"""Rows of packed documents for AnchorAttention and what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ropewalk.coordinates.packed import Packing, packed_positions
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Positions
from ropewalk.lab.batch import IGNORE

LEAST = 3
"""Tokens of a document that is worth packing; shorter ones are left out."""


@dataclass(frozen=True)
class Row:
    """One row of packed documents, (n,) each.

    Attributes:
        tokens: the anchor included.
        targets: the token that follows, `IGNORE` at the end of the row; where a document ends, the first token of the next, as
            released, or `IGNORE` where that stands before an anchor of its own.
        positions: where they stand, with their documents.
    """

    tokens: Tensor
    targets: Tensor
    positions: Positions


def pack_documents(
    documents: Sequence[Sequence[int] | Tensor],
    length: int,
    anchor: int,
    mode: Packing = "anchor",
    *,
    begins: int | None = None,
) -> list[Row]:
    """Pack documents one after the other into rows of at most ``length`` tokens, anchors included.

    A document that does not fit into what is left of a row goes on in the next, as a document of its own. Documents, and pieces,
    of fewer than three tokens are left out.

    Args:
        documents: ids of each.
        length: tokens of a row.
        anchor: id of the anchor, the tokenizer's BOS or, where there is none, EOS. Only modes with an anchor have it.
        mode: see `packed_positions`.
        begins: id that is taken off the beginning of each document where it stands there; by default the anchor's.

    Raises:
        ConfigError: rows too short for a document, or no document that is long enough.
    """
    check_positive(length=length)
    if length < LEAST + 1:
        raise ConfigError(f"a row holds the anchor and a document of {LEAST} tokens at least; got length={length}")
    own = mode == "anchor_copies"
    rows: list[Row] = []
    held: list[Tensor] = []
    space = length - (mode == "anchor")
    for document in documents:
        ids = torch.as_tensor(document).long()
        if ids.ndim != 1:
            raise ConfigError(f"a document is ids (n,); got shape {tuple(ids.shape)}")
        if mode.startswith("anchor") and len(ids) and int(ids[0]) == (anchor if begins is None else begins):
            ids = ids[1:]
        while len(ids) >= LEAST:
            room = space - own
            if room < LEAST:
                rows.append(_row(held, anchor, mode))
                held, space = [], length - (mode == "anchor")
                continue
            piece, ids = ids[:room], ids[room:]
            held.append(piece)
            space -= len(piece) + own
    if held:
        rows.append(_row(held, anchor, mode))
    if not rows:
        raise ConfigError(f"no document of {LEAST} tokens or more to pack")
    return rows


def interleave_chunks(
    documents: Sequence[Tensor], chunks: int, generator: Generator | None = None
) -> list[tuple[int, Tensor]]:
    """Cut documents at random and shuffle the pieces, keeping the order within each: (document, tokens) pairs.

    One of the paper's variants, which it does not find to help. Documents shorter than ``chunks`` are cut into single tokens.

    Args:
        documents: ids of each.
        chunks: pieces of a document.
        generator: of the cuts and the order.
    """
    check_positive(chunks=chunks)
    pieces: list[list[Tensor]] = []
    for ids in documents:
        cuts = (torch.randperm(max(len(ids) - 1, 0), generator=generator)[: chunks - 1] + 1).sort().values
        pieces.append(list(torch.tensor_split(ids, cuts.tolist())))
    order = torch.tensor([n for n, of in enumerate(pieces) for _ in of])
    order = order[torch.randperm(len(order), generator=generator)]
    left = [iter(of) for of in pieces]
    return [(int(n), next(left[int(n)])) for n in order]


def _row(documents: list[Tensor], anchor: int, mode: Packing) -> Row:
    positions = packed_positions([len(d) for d in documents], mode)
    first = documents[0].new_tensor([anchor])
    if mode == "anchor_copies":
        tokens = torch.cat([t for d in documents for t in (first, d)])
    else:
        tokens = torch.cat([first, *documents] if mode == "anchor" else documents)
    targets = torch.cat([tokens[1:], tokens.new_tensor([IGNORE])])
    if mode == "anchor_copies":  # nothing foretells the next anchor
        document = positions.query.column("document")[0]
        targets[:-1] = torch.where(document[1:] == document[:-1], targets[:-1], IGNORE)
    return Row(tokens, targets, positions)
