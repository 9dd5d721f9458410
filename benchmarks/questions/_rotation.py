"""What the questions about rotations share: q and k of eight heads, their tables, and the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk import functional as RF
from ropewalk.core.rotation import Pairing

from .._question import Bench

HEADS, WIDTH = 8, 64
PAIRINGS: tuple[Pairing, ...] = ("interleaved", "half")
LENGTHS = (1, 512, 2048, 8192, 32768)
TARGET_FROM = 512
"""A single token is a handful of calls into torch, whatever they compute: shown, and held to no ratio."""


class Case(NamedTuple):
    """q and k with tables to turn them by."""

    name: str
    q: Tensor
    k: Tensor
    cos: Tensor
    sin: Tensor
    pairing: Pairing

    def clone(self) -> tuple[Tensor, Tensor]:
        return self.q.clone(), self.k.clone()

    def turn(self) -> tuple[Tensor, Tensor]:
        return tuple(RF.apply_rotary(x, self.cos, self.sin, self.pairing) for x in (self.q, self.k))

    def target(self, value: float) -> float | None:
        return value if self.q.shape[2] >= TARGET_FROM else None


def case(length: int, dtype: torch.dtype, pairing: Pairing, projected: bool = False) -> Case:
    """Make a case; ``projected`` lays q and k out in memory as a projection leaves them, (batch, seq, heads, width)."""
    q, k = (torch.randn(1, HEADS, length, WIDTH).to(dtype) for _ in range(2))
    if projected:
        q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
    cos, sin = RF.rotary_tables(torch.arange(length), head_dim=WIDTH, dtype=dtype, pairing=pairing)
    return Case(f"{pairing}, S = {length}{', as projected' if projected else ''}", q, k, cos, sin, pairing)


def cases(bench: Bench, dtype: torch.dtype) -> Iterator[Case]:
    """Go through the pairings and lengths."""
    for pairing, length in product(PAIRINGS, bench.pick(LENGTHS, (16,))):
        yield case(length, dtype, pairing)
    for pairing in PAIRINGS:
        yield case(bench.pick(2048, 16), dtype, pairing, projected=True)


def without_gradients(call: Callable[[], object]) -> Callable[[], object]:
    """Run a call under ``no_grad``."""
    return torch.no_grad()(call)
