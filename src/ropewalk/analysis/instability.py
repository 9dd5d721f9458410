"""Signs of an unstable training run."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from ropewalk.backends import dense
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import table_dtype
from ropewalk.core.errors import ConfigError


class InstabilityMonitor:
    """Alarm where loss > median + k · MAD of the last losses; likewise for the norm of the gradient and the largest logit.

    Models without positional encoding are prone to spikes; a few turned channels, or normalised queries and keys, cure it.
    What is NaN or infinite always alarms and is not remembered.

    Args:
        k: how many median absolute deviations are too many.
        window: how many values are remembered.
        warm_up: values before the first alarm.
        floor: the deviation is taken as at least this part of the median, so that a flat curve does not alarm.

    Source: the phenomenon in Mohammad Aflah Khan and others, arXiv 2603.11611, 2026; the rule is ours.
    """

    def __init__(self, k: float = 8.0, window: int = 100, warm_up: int = 10, floor: float = 1e-3) -> None:
        if not k > 0 or not floor >= 0 or not 2 <= warm_up <= window:
            raise ConfigError(
                f"k={k} above 0, floor={floor} from 0, and 2 <= warm_up={warm_up} <= window={window} are needed"
            )
        self.k, self.window, self.warm_up, self.floor = k, window, warm_up, floor
        self.alarms: list[tuple[int, str, float]] = []
        self.step = 0
        self._seen: dict[str, deque[float]] = {}

    def update(self, **values: float) -> list[str]:
        """Take the values of one step by name (``loss=``, ``grad_norm=``, ``max_logit=``); return the names that alarm."""
        names = [name for name, value in values.items() if self._alarms(name, float(value))]
        self.alarms += [(self.step, name, float(values[name])) for name in names]
        self.step += 1
        return names

    def _alarms(self, name: str, value: float) -> bool:
        seen = self._seen.setdefault(name, deque(maxlen=self.window))
        if not math.isfinite(value):
            return True
        high = len(seen) >= self.warm_up and value > self._limit(seen)
        seen.append(value)
        return high

    def _limit(self, seen: Iterable[float]) -> float:
        middle = statistics.median(seen)
        deviation = statistics.median(abs(value - middle) for value in seen)
        return middle + self.k * max(deviation, self.floor * abs(middle))


def grad_norm(parameters: Iterable[Tensor]) -> float:
    """Return the 2-norm of all gradients together; NaN and infinity are kept."""
    norms = [p.grad.detach().double().norm() for p in parameters if p.grad is not None]
    return float(torch.stack(norms).norm()) if norms else 0.0


@torch.no_grad()
def max_logit(problem: Attention) -> float:
    """Return the largest |logit| of an encoded problem among the pairs that may attend; it holds the whole Q x K matrix."""
    p = problem.located()
    visible = dense.allowed(p)
    size = dense.logits(p, visible, table_dtype(p.q)).abs()
    return float((size if visible is None else size.masked_fill(~visible, 0.0)).max())
