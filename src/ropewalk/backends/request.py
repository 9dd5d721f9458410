"""What is asked of a backend beside the output, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ropewalk.core.attention import Attention


class Request(NamedTuple):
    """What a caller of `attend` wants beside the output."""

    dropout: float = 0.0
    weights: bool = False
    lse: bool = False


class Result(NamedTuple):
    """Output (B, H, Q, D_v) before the finishers, and what was requested."""

    out: Tensor
    weights: Tensor | None = None
    lse: Tensor | None = None


@dataclass(frozen=True)
class Backend:
    """One way to compute a problem.

    ``why_not`` answers from a whitelist over every field of the problem: None if it can, else what rules it out.
    ``prefer_not`` answers what makes it a poor choice though it can: "auto" then looks further first.
    """

    name: str
    run: Callable[[Attention, Request], Result]
    why_not: Callable[[Attention, Request], str | None]
    prefer_not: Callable[[Attention, Request], str | None] = lambda p, r: None
