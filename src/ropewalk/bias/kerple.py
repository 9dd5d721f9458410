"""KERPLE, kernelised distances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ropewalk.core.encoding import Bias
from ropewalk.core.errors import ConfigError, check_positive


class KERPLELog(Bias):
    """s_ij = q_i·k_j / √d − r1_h ln(1 + r2_h |i − j|),  r1, r2 > 0 learned.

    A conditionally positive definite kernel of the distance, one a head: attention falls as a power of the distance, since
    exp(−r1 ln(1 + r2 t)) = (1 + r2 t)^−r1.

    Args:
        num_heads: query heads H.
        r1: initial size, one number or one a head; None: uniform in (0, 2), as in the released code.
        r2: initial rate, likewise; None: uniform in (0, 1).

    Shapes: log_r1 (H,), log_r2 (H,), the logarithms of r1 and r2, so that both stay positive whatever the optimiser does;
    positions (b, S), integer or real, in tokens. Numbers: distances in float64.

    Raises:
        ConfigError: r1 or r2 that are not positive, or not one a head.

    Source: Ta-Chung Chi, Ting-Han Fan, Peter J. Ramadge, Alexander I. Rudnicky. KERPLE: Kernelized Relative Positional
    Embedding for Length Extrapolation. arXiv 2205.09921, 2022.
    """

    def __init__(
        self, num_heads: int, *, r1: float | Sequence[float] | None = None, r2: float | Sequence[float] | None = None
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.log_r1 = nn.Parameter(_initial("r1", r1, num_heads, 2.0).log())
        self.log_r2 = nn.Parameter(_initial("r2", r2, num_heads, 1.0).log())

    @property
    def r1(self) -> Tensor:
        """(H,) size of the bias, float64."""
        return self.log_r1.double().exp()

    @property
    def r2(self) -> Tensor:
        """(H,) rate by which distances are multiplied, float64."""
        return self.log_r2.double().exp()

    def per_head(self, num_heads: int) -> dict[str, Tensor]:
        return {"r1": self.r1, "r2": self.r2}

    def bias(self, i: Tensor, j: Tensor, r1: Tensor, r2: Tensor) -> Tensor:
        return -r1 * torch.log1p(r2 * (i - j).abs())

    def extra_repr(self) -> str:
        return f"{self.num_heads}"


class KERPLEPower(Bias):
    """s_ij = q_i·k_j / √d − r1_h |i − j|^{r2_h},  r1 > 0, 0 < r2 < 2 learned.

    ALiBi at r2 = 1, a Gaussian window in the limit r2 → 2, beyond which the kernel is no longer conditionally positive
    definite.

    Args:
        num_heads: query heads H.
        r1: initial size, one number or one a head; None: uniform in (0, 1), as in the released code.
        r2: initial exponent, likewise, at most 2; None: uniform in (0, 2).

    Shapes: log_r1 (H,), the logarithm of r1, and logit_r2 (H,), that of r2 = 2 σ(logit_r2), so that both stay in their range
    whatever the optimiser does (r2 comes as close to 2 as one likes; an initial 2 starts 2e-6 below). Positions (b, S),
    integer or real, in tokens. Numbers: distances in float64.

    Raises:
        ConfigError: r1 or r2 outside their range, or not one a head.

    Source: Ta-Chung Chi, Ting-Han Fan, Peter J. Ramadge, Alexander I. Rudnicky. KERPLE: Kernelized Relative Positional
    Embedding for Length Extrapolation. arXiv 2205.09921, 2022.
    """

    def __init__(
        self, num_heads: int, *, r1: float | Sequence[float] | None = None, r2: float | Sequence[float] | None = None
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.log_r1 = nn.Parameter(_initial("r1", r1, num_heads, 1.0).log())
        exponent = _initial("r2", r2, num_heads, 2.0)
        if not exponent.is_meta and bool((exponent > 2).any()):
            raise ConfigError(f"r2 is an exponent in (0, 2], since the kernel is none beyond; got {r2!r}")
        self.logit_r2 = nn.Parameter((exponent / 2).logit(eps=_LEAST))

    @property
    def r1(self) -> Tensor:
        """(H,) size of the bias, float64."""
        return self.log_r1.double().exp()

    @property
    def r2(self) -> Tensor:
        """(H,) exponent of the distance, float64."""
        return 2 * self.logit_r2.double().sigmoid()

    def per_head(self, num_heads: int) -> dict[str, Tensor]:
        return {"r1": self.r1, "r2": self.r2}

    def bias(self, i: Tensor, j: Tensor, r1: Tensor, r2: Tensor) -> Tensor:
        distance = (i - j).abs()
        here = distance == 0
        # A power of 0 has no slope below exponent 1, which positions that are learned would meet.
        power = torch.where(here, 1.0, distance) ** r2
        return torch.where(here, 0.0, -r1 * power)

    def extra_repr(self) -> str:
        return f"{self.num_heads}"


_LEAST = 1e-6
"""How near to the ends of its range a number may start: at the very end its gradient would be lost."""


def _initial(name: str, value: float | Sequence[float] | None, num_heads: int, top: float) -> Tensor:
    """Return (H,) positive initial numbers: those given, or uniform ones in (0, top)."""
    if value is None:
        return torch.empty(num_heads).uniform_(_LEAST * top, top)
    numbers = [float(v) for v in value] if isinstance(value, Sequence) else [float(value)] * num_heads
    if len(numbers) != num_heads or not all(0 < v < float("inf") for v in numbers):
        raise ConfigError(f"{name} is a positive number, or one for each of num_heads={num_heads} heads; got {value!r}")
    return torch.tensor(numbers)
