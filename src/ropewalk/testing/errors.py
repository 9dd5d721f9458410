"""What cannot be is refused by an error of this library that says why, never by one from inside torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.backends import attend
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import RopewalkError
from ropewalk.core.positions import Positions
from ropewalk.testing.compare import attempt, require
from ropewalk.testing.subjects import LONG, MEDIUM, Subject

Changes = dict[str, Callable[[], dict[str, Any]]]
"""Name of a case -> fields of a good problem that are given otherwise; called late, for some cannot even be made."""


def check_errors(s: Subject) -> None:
    """Bad input is refused with a reason. Finds: a shape error from deep inside, or worse, a broadcast and a result."""
    encoding = s.encoding()
    good = s.problem(encoding, MEDIUM, s.causals[0])
    fields = {name: getattr(good, name) for name in ("q", "k", "v", "positions", "causal", "x")}

    def run(change: Callable[[], dict[str, Any]]) -> Tensor:
        return attend(encoding(Attention(**{**fields, **change()})), "dense")

    for case, change in _impossible(s, encoding, good).items():
        result = attempt(case, run, change)
        require(isinstance(result, RopewalkError), case, "an error of ropewalk", "a result")
    for case, change in _unusual(good).items():  # good for some encodings
        attempt(case, run, change)
    for case, x in (
        ("embeddings of another width", good.hidden[..., :-1]),
        ("embeddings without a sequence", good.hidden[:, 0]),
        ("embeddings of another length", good.hidden[:, :-1]),
    ):
        attempt(case, encoding.embed, x, good.positions)


def _impossible(s: Subject, encoding: Encoding, p: Attention) -> Changes:
    q, k, v, where = p.q, p.k, p.v, p.where
    at = where.key.position
    return {
        "heads and sequence swapped": lambda: {n: t.transpose(1, 2) for n, t in (("q", q), ("k", k), ("v", v))},
        "widths of q and k that differ": lambda: {"q": q[..., :-2]},
        "q and k of two dtypes": lambda: {"k": k.float()},
        "keys of another length": lambda: {"k": k[:, :, :-1], "v": v[:, :, :-1]},
        "one position too many": lambda: {"positions": s.positions(encoding, MEDIUM + 1)},
        "positions of another batch": lambda: {"positions": s.positions(encoding, MEDIUM, batch=2)},
        "positions on another device": lambda: {"positions": where.to("meta")},
        "positions that are NaN": lambda: {"positions": Positions(torch.full_like(at, math.nan, dtype=torch.float64))},
        "positions in bfloat16": lambda: {"positions": Positions(at.to(torch.bfloat16))},
    }


def _unusual(p: Attention) -> Changes:
    q, k, at = p.q, p.k, p.where.key.position
    axes = torch.zeros(1, MEDIUM, 3, dtype=torch.float64) if at.ndim == 2 else at[..., 0]
    columns = {name: column for name, column in p.where.key.columns.items() if name != "position"}
    return {
        "6 heads": lambda: {"q": torch.cat([q, q[:, :2]], 1)},
        "a width that is odd": lambda: {"q": q[..., :-1], "k": k[..., :-1]},
        "another width": lambda: {"q": torch.cat([q, q], -1), "k": torch.cat([k, k], -1)},
        "x of another width": lambda: {"x": p.hidden[..., :-1]},
        "no x": lambda: {"x": None},
        "positions with other axes": lambda: {"positions": Positions(axes, columns=columns)},
    }


def check_sizes(s: Subject) -> None:
    """Sizes that cannot be are refused when it is made or first used. Finds: a typo in a config that trains anyway."""
    # Not num_heads=-1: whoever hands that on to torch is refused there, loudly. Zero passes, as an empty tensor.
    for name, value in (("head_dim", 15), ("head_dim", -2), ("num_heads", 0), ("hidden_size", 0)):
        if name not in s.takes:
            continue
        result = attempt(f"{name}={value}", _make_and_use, s, {name: value})
        refused = isinstance(result, RopewalkError) or value > 0  # what does not turn pairs takes an odd width
        require(refused, f"{name}={value}", "an error when the encoding is made or first used", "a result")


def _make_and_use(s: Subject, size: dict[str, Any]) -> Tensor:
    layer = s.around(s.encoding(**size))
    return layer(s.x(LONG), s.positions(layer.encoding, LONG), s.causals[0])
