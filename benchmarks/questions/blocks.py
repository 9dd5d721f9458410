"""Encodings that act on q and k, and some on v and the output, by more than pairs of channels: by small matrices (GTA), by
learned planes (GRAPE-M, HARoPE), by undoing on the output what was done to the values (RoVE). Timed is all of the encoding's
own work on ready positions, without the attention in between, forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.backends import finished
from ropewalk.coordinates.views import sample_views

from .._question import Bench, Question, Row
from ._attention import HIDDEN, WIDTH, heads, qkv

TARGET = 3.0

ENCODINGS: dict[str, Callable[[int], tuple[rw.Encoding, rw.Positions]]] = {
    "GTA": lambda n: (rw.GTA(head_dim=WIDTH, so2_freqs=WIDTH // 8), sample_views(1, n)),
    "RoVE": lambda n: (rw.build("rove", head_dim=WIDTH), rw.Positions.arange(n)),
    "GRAPE-M, all pairs": lambda n: (grape("grape_m_nonctx", n), rw.Positions.arange(n)),
    "GRAPE-M, learned planes": lambda n: (grape("grape_m_commuting", n), rw.Positions.arange(n)),
    "GRAPE-M, compact": lambda n: (grape("grape_m_compact", n), rw.Positions.arange(n)),
    "GRAPE, rank 2": lambda n: (grape("grape_rank2", n), rw.Positions.arange(n)),
    "HARoPE": lambda n: (grape("harope", n), rw.grid_positions(n // 16, 16)),
}


def grape(slug: str, length: int) -> rw.Encoding:
    return rw.build(slug, num_heads=heads(length), head_dim=WIDTH, hidden_size=HIDDEN)


def rows(bench: Bench) -> Iterator[Row]:
    for length in bench.pick((2048, 8192), (32,)):
        tensors = qkv(length)
        for name, make in ENCODINGS.items():
            encoding, positions = make(length)
            problem = rw.Attention(*tensors, positions, causal=False)
            touched = changed(encoding, problem)
            row = f"{name}, S = {length}, {len(touched)} tensors"
            yield from bench.against(partial(clone, touched), {row: partial(encode, encoding, problem)}, TARGET)


def clone(tensors: list[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


@torch.no_grad()
def encode(encoding: rw.Encoding, problem: rw.Attention) -> object:
    made = encoding(problem)
    return made, finished(made, problem.v)


def changed(encoding: rw.Encoding, problem: rw.Attention) -> list[Tensor]:
    """Return the tensors that the encoding acts on: those of q, k, v that it replaces, and the output if it finishes it."""
    with torch.no_grad():
        made = encoding(problem)
    acted = [getattr(problem, n) for n in "qkv" if getattr(made, n) is not getattr(problem, n)]
    return acted + ([problem.v] if made.finish else [])


QUESTION = Question(
    title="GTA and other actions on blocks of channels",
    text=__doc__,
    yardstick="`clone()` of the tensors that the encoding acts on",
    rows=rows,
    why="""
    A pair is turned by two numbers that stay in a register; a block of size n reads n numbers for each it writes, from matrices
    that differ from token to token (GTA), or goes through a product with a basis, forth and back (learned planes). And what
    is learned is not kept from call to call: frequencies become tables and generators become bases anew each time, in
    float64, where RoPE finds its tables with the positions.
    """,
)
