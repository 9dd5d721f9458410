"""Scaled and shifted coordinates."""

from __future__ import annotations

import math

from torch import Tensor

from ropewalk.core.encoding import Coordinates
from ropewalk.core.errors import ConfigError


class Scale(Coordinates):
    """p → p / factor: position interpolation, seen by every encoding after this one.

    Args:
        factor: above 1 packs positions closer together.

    Source: Shouyuan Chen, Sherman Wong, Liangjian Chen, Yuandong Tian. Extending Context Window of Large Language Models
    via Positional Interpolation. arXiv 2306.15595, 2023.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        if not (math.isfinite(factor) and factor > 0):
            raise ConfigError(f"factor is a positive number; got {factor!r}")
        self.factor = float(factor)

    def map(self, position: Tensor) -> Tensor:
        return position / self.factor

    def extra_repr(self) -> str:
        return f"factor={self.factor}"


class Shift(Coordinates):
    """p → p + offset."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        if not math.isfinite(offset):
            raise ConfigError(f"offset is a number; got {offset!r}")
        self.offset = offset

    def map(self, position: Tensor) -> Tensor:
        return position + self.offset

    def extra_repr(self) -> str:
        return f"offset={self.offset}"
