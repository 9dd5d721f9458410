"""Positions on the interval [−1, 1], where orthogonal polynomials live."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.coordinates.documents import over_documents
from ropewalk.core.encoding import Coordinates
from ropewalk.core.errors import ConfigError, PositionError, check_positive, suggest
from ropewalk.core.positions import Tokens

Extension = Literal["rescale", "clamp", "reflect", "raw"]


class UnitInterval(Coordinates):
    """u(p) = 2p / (L − 1) − 1,  L positions on [−1, 1] with both ends taken; u = −1 for L = 1.

    Args:
        length: L; None with "rescale", which measures it.
        extension: what becomes of positions from L on. "rescale": L is the length of the sequence, 1 + the largest position of
            the real tokens of the document, so nothing lies beyond; every token moves when one is added, hence no cache.
            "clamp": they all share u = 1. "reflect": u runs back and forth between the ends. "raw": the formula, u > 1.

    Raises:
        ConfigError: no ``length`` for a rule that needs one, or one for "rescale".
        PositionError: a negative position under "rescale".
    """

    def __init__(self, length: int | None = None, extension: Extension = "rescale") -> None:
        super().__init__()
        check_positive(length=length)
        rules = get_args(Extension)
        if extension not in rules:
            raise ConfigError(f"extension is one of {', '.join(rules)}; got {extension!r}.{suggest(extension, rules)}")
        if (length is None) != (extension == "rescale"):
            hint = "leave length out, or choose another rule" if length else "give length="
            raise ConfigError(
                f"extension={extension!r} with length={length}: {hint}; only 'rescale' measures the length"
            )
        self.length, self.extension = length, extension

    def why_not_cached(self) -> str | None:
        if self.extension != "rescale":
            return None
        return "positions are divided by the length, so every earlier token moves when one is added; fix length="

    def remap(self, tokens: Tokens, position: Tensor) -> Tensor:
        if self.extension != "rescale":
            return self.map(position)
        if not is_compiling() and not position.is_meta and bool((position < 0).any()):
            raise PositionError(f"positions are rescaled from 0 on, and the least is {position.min().item():g}")
        return _onto(position, over_documents(tokens, position, "amax"))

    def map(self, position: Tensor) -> Tensor:
        if self.length is None:
            return _onto(position, position.amax(-1, keepdim=True)) if position.numel() else position
        u = _onto(position, torch.full_like(position, self.length - 1))
        if self.extension == "clamp":
            return u.clamp(-1, 1)
        if self.extension == "reflect":
            return 1 - (torch.remainder(u + 1, 4) - 2).abs()
        return u

    def extra_repr(self) -> str:
        return f"length={self.length}, extension={self.extension}"


def _onto(position: Tensor, last: Tensor) -> Tensor:
    return 2 * position / last.clamp(min=1) - 1
