"""`apply_rotary_` of q and k, and `apply_rotary(..., out=)`, float32, under `no_grad`: no memory is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from itertools import product

import torch

from ropewalk import functional as RF

from .._question import Bench, Question, Row, absent
from ._rotation import LENGTHS, PAIRINGS, Case, case, without_gradients

TARGET = 1.2


def rows(bench: Bench) -> Iterator[Row]:
    for pairing, length in product(PAIRINGS, bench.pick(LENGTHS, (16,))):
        c = case(length, torch.float32, pairing)
        q, k = torch.empty_like(c.q), torch.empty_like(c.k)

        def copy(c: Case = c, q: torch.Tensor = q, k: torch.Tensor = k) -> None:
            q.copy_(c.q)
            k.copy_(c.k)

        for name, way in (("in place", in_place(c)), ("out=", into(c, q, k))):
            row = f"{name}, {c.name}"
            if way is None:
                yield absent(row, "this version of ropewalk does not have it")
            else:
                yield from bench.against(copy, {row: without_gradients(way)}, c.target(TARGET))


def in_place(c: Case):
    turn = getattr(RF, "apply_rotary_", None)
    if turn is None:
        return None
    q, k = c.q.clone(), c.k.clone()  # a turn keeps the length: any number of them in place overflows nothing

    def run() -> None:
        turn(q, c.cos, c.sin, c.pairing)
        turn(k, c.cos, c.sin, c.pairing)

    return run


def into(c: Case, q: torch.Tensor, k: torch.Tensor):
    if "out" not in signature(RF.apply_rotary).parameters:
        return None

    def run() -> None:
        RF.apply_rotary(c.q, c.cos, c.sin, c.pairing, out=q)
        RF.apply_rotary(c.k, c.cos, c.sin, c.pairing, out=k)

    return run


QUESTION = Question(
    title="Rotate q and k in place",
    text=__doc__,
    yardstick="`copy_` of q and k into tensors that are there",
    rows=rows,
    why="""
    What a copy costs is reading and writing once. Interleaved pairs are turned in one such pass; halves take a
    second one, in the cache, and a block of scratch in place.
    """,
)
