"""cos and sin as low precision makes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "float32"}


@dataclass(frozen=True)
class Precision:
    """Which numbers on the way to cos and sin are rounded, and to what.

    Args:
        dtype: to which.
        inv_freq: the frequencies are.
        position: the positions are.
        angle: their product is.
        table: cos and sin are.
    """

    dtype: torch.dtype
    inv_freq: bool = False
    position: bool = False
    angle: bool = False
    table: bool = False

    def gains(self, position: Tensor, inv_freq: Tensor, factor: float = 1.0) -> Tensor:
        """Return cos + i sin of the product, rounded on the way; ``factor`` is on the tables when they are."""
        omega = self._round(inv_freq) if self.inv_freq else inv_freq
        where = self._round(position) if self.position else position
        angle = where * omega
        if self.angle:
            angle = self._round(angle)
        cos, sin = angle.cos(), angle.sin()
        if self.table:
            cos, sin = self._round(factor * cos) / factor, self._round(factor * sin) / factor
        return torch.complex(cos, sin)

    def _round(self, x: Tensor) -> Tensor:
        return x.float().to(self.dtype).double()

    @property
    def parts(self) -> tuple[str, ...]:
        """What is rounded, in words."""
        words = {"position": "positions", "inv_freq": "frequencies", "angle": "angles", "table": "cos and sin"}
        return tuple(word for name, word in words.items() if getattr(self, name))

    def __str__(self) -> str:
        if len(self.parts) == 4:
            return f"everything up to cos and sin in {NAMES[self.dtype]}"
        *most, last = self.parts
        return f"{', '.join(most)}{' and ' if most else ''}{last} in {NAMES[self.dtype]}"


def precisions(data: torch.dtype) -> Iterator[Precision]:
    """Yield what may be rounded, the simplest first. Tables in the dtype of the data are no fault."""
    for count in range(1, 5):
        for which in itertools.combinations(("inv_freq", "position", "angle", "table"), count):
            for dtype in (torch.bfloat16, torch.float16):
                if which != ("table",) or dtype != data:
                    yield Precision(dtype, **dict.fromkeys(which, True))
