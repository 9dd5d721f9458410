"""`apply_rotary_` of q and k, and `apply_rotary(..., out=)`, float32, under `no_grad`: no memory is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import signature
from itertools import product

import torch
from torch import Tensor

from ropewalk import functional as RF

from .._question import Bench, Call, Question, Row, absent
from ._rotation import LENGTHS, PAIRINGS, Case, case, without_gradients

TARGET = 1.2


def rows(bench: Bench) -> Iterator[Row]:
    missing = {
        "in place": not hasattr(RF, "apply_rotary_"),
        "out=": "out" not in signature(RF.apply_rotary).parameters,
    }
    for way, gone in missing.items():
        if gone:
            yield absent(way, "this version of ropewalk does not have it")
            continue
        for pairing, length in product(PAIRINGS, bench.pick(LENGTHS, (16,))):
            c = case(length, torch.float32, pairing)
            room = torch.empty_like(c.q), torch.empty_like(c.k)
            turn = in_place(c) if way == "in place" else into(c, room)
            yield from bench.against(
                partial(copy, c, room), {f"{way}, {c.name}": without_gradients(turn)}, c.target(TARGET)
            )


def copy(c: Case, room: tuple[Tensor, Tensor]) -> None:
    for to, x in zip(room, (c.q, c.k), strict=True):
        to.copy_(x)


def in_place(c: Case) -> Call:
    held = c.q.clone(), c.k.clone()  # turned on and on, which keeps their length

    def run() -> None:
        for x in held:
            RF.apply_rotary_(x, c.cos, c.sin, c.pairing)

    return run


def into(c: Case, room: tuple[Tensor, Tensor]) -> Call:
    def run() -> None:
        for to, x in zip(room, (c.q, c.k), strict=True):
            RF.apply_rotary(x, c.cos, c.sin, c.pairing, out=to)

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
