"""Student's t distribution, without torch, so that evidence can be checked and listed at once."""

from __future__ import annotations

import math

from ropewalk.core.errors import ConfigError

LEVEL = 0.95


def student_quantile(probability: float, dof: float) -> float:
    """Return x with P(T ≤ x) = probability for Student's t with `dof` degrees of freedom.

    The distribution function is an incomplete beta function, I_z(dof/2, 1/2) with z = dof / (dof + x²); x is found by
    bisection, to the last digits of a float.
    """
    if not 0 < probability < 1:
        raise ConfigError(f"a probability lies between 0 and 1, both left out; got {probability!r}")
    if not (dof > 0 and math.isfinite(dof)):
        raise ConfigError(f"degrees of freedom are a positive finite number; got {dof!r}")
    tail = min(probability, 1 - probability)
    if tail == 0.5:
        return 0.0

    def beyond(x: float) -> float:
        return 0.5 * incomplete_beta(dof / 2, 0.5, dof / (dof + x * x))

    high = 1.0
    while beyond(high) > tail:
        high *= 2
    low = 0.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if beyond(middle) > tail else (low, middle)
    return math.copysign(high, probability - 0.5)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (modified Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast for the mirrored arguments only
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    fraction = d
    for m in range(1, 10_000):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + factor * d
            c = 1 + factor / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return math.exp(log_front) * fraction / a
