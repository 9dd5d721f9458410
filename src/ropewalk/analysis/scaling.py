"""L = a C^(−b): how much compute an encoding saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.core.errors import ConfigError


@dataclass(frozen=True)
class PowerLaw:
    """L(C) = a C^(−b), the loss of a model trained with compute C.

    Args:
        a: the loss at one unit of compute.
        b: how fast it falls.
    """

    a: float
    b: float

    @classmethod
    def fit(cls, compute: Sequence[float], loss: Sequence[float]) -> PowerLaw:
        """Fit a straight line through the logarithms, by least squares: a ladder of sizes, each trained as long as it should.

        Raises:
            ConfigError: fewer than two different sizes, or numbers that are not positive.
        """
        if len(compute) != len(loss) or len(set(compute)) < 2:
            raise ConfigError(
                f"a power law needs the losses of two sizes; got {len(compute)} of compute, {len(loss)} losses"
            )
        if not all(0 < x < math.inf for x in (*compute, *loss)):
            raise ConfigError("compute and losses are positive numbers")
        x, y = [math.log(c) for c in compute], [math.log(v) for v in loss]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        rise = sum((u - mean_x) * (v - mean_y) for u, v in zip(x, y, strict=True))
        slope = rise / sum((u - mean_x) ** 2 for u in x)
        return cls(math.exp(mean_y - slope * mean_x), -slope)

    def loss(self, compute: float) -> float:
        """Return the loss at this compute."""
        return self.a * compute**-self.b

    def compute(self, loss: float) -> float:
        """Return the compute that this loss takes."""
        if self.b == 0 or not 0 < loss < math.inf:
            raise ConfigError(f"no compute gives the loss {loss!r} where it is {self.a} C^(-{self.b})")
        return (self.a / loss) ** (1 / self.b)


def compute_multiplier(baseline: PowerLaw, compute: float, loss: float) -> float:
    """Return how many times the compute the baseline needs for the loss that another model reached: above 1 is a saving."""
    return baseline.compute(loss) / compute
