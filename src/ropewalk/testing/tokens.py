"""Positions that checks are made with: padded, packed, moved, cut out of a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.coordinates.blocks import FIELDS
from ropewalk.core.encoding import Encoding
from ropewalk.core.positions import Positions, Tokens
from ropewalk.testing.compare import require
from ropewalk.testing.subjects import BATCH, LONG, Layer, Subject

GIVEN = {
    "position",
    "valid",
    "document",
    "extrinsics",
    "segment",
    "intra",
    "directed",
    "activity",
    "turns",
    "path",
    "width",
    "switch",
    "switches",
    "since",
    "walk",
    "resolution",
    "reference",
}  # columns that users give; others were drawn


def drawn(positions: Positions) -> bool:
    """Whether positions carry something random."""
    return bool(positions.key.sequence) or not positions.key.columns.keys() <= GIVEN


def at(positions: Positions, position: Tensor) -> Positions:
    """Return the same tokens elsewhere."""
    return positions.map_sides(lambda t: Tokens({**t.columns, "position": position.expand_as(t.position)}, t.sequence))


def shifted(positions: Positions, by: float) -> Positions:
    """Return the same tokens, all moved by the same distance on every axis, in a world that is turned and moved."""
    world = torch.eye(4, dtype=torch.float64)
    world[:2, :2] = torch.tensor([[math.cos(by), -math.sin(by)], [math.sin(by), math.cos(by)]])
    world[:3, 3] = torch.tensor([0.3, -0.7, 0.1])

    def move(t: Tokens) -> Tokens:
        columns = {**t.columns, "position": t.position + by}
        if "extrinsics" in columns:  # world to camera
            columns["extrinsics"] = columns["extrinsics"] @ world
        facts = dict(t.sequence)
        if "blocks" in facts:  # they are counted as the tokens are
            starts = torch.tensor([float(name == "start") for name in FIELDS], dtype=torch.float64)
            facts["blocks"] = facts["blocks"] + by * starts
        return Tokens(columns, facts)

    return positions.map_sides(move)


def padded(s: Subject, encoding: Encoding, valid: Tensor) -> Positions:
    """Return positions with padding where ``valid`` (B, S) is False."""
    if s.sequence:
        return s.draw(encoding, Positions.arange(valid.shape[1], valid=valid))
    positions = s.sample(valid.shape[0], valid.shape[1], s.generator("padded"))
    return s.draw(encoding, positions.map_sides(lambda t: t.with_columns(valid=valid)))


def padding(length: int, *holes: tuple[int, int, int]) -> Tensor:
    """Return a mask of real tokens, (B, length); a hole is a row and where padding starts and stops in it."""
    valid = torch.ones(BATCH, length, dtype=torch.bool)
    for row, start, stop in holes:
        valid[row, start:stop] = False
    return valid


def packed(s: Subject, encoding: Encoding) -> tuple[Tensor, Positions]:
    """Return document ids, three documents a row and cut elsewhere in each, and positions that carry them."""
    cuts = torch.tensor([(10, 15), (1, 30), (18, 36)])
    ids = (torch.arange(LONG)[None, :, None] >= cuts[:, None, :]).sum(-1)
    if s.sequence:
        return ids, s.draw(encoding, Positions.arange(LONG, document_ids=ids))
    positions = s.sample(BATCH, LONG, s.generator("packed"))
    return ids, s.draw(encoding, positions.map_sides(lambda t: t.with_columns(document=ids)))


def alone(
    s: Subject,
    layer: Layer,
    x: Tensor,
    positions: Positions,
    row: int,
    index: Tensor,
    causal: bool = True,
    backend: str = "dense",
) -> Tensor:
    """Run some tokens of one row as a sequence of their own, without padding or documents."""
    tokens = positions.key.select(torch.tensor([row])).take(index)
    if s.sequence:  # only then do the tokens stand where the sequence of their own would put them
        counted = torch.equal(tokens.position[0], torch.arange(len(index)))
        require(counted, f"real tokens of row {row}", "positions counted from 0", tokens.position[0].tolist())
    columns = {n: c for n, c in tokens.columns.items() if n not in ("valid", "document")}
    return layer(x[row : row + 1, index], Positions(Tokens(columns, tokens.sequence)), causal, backend)
