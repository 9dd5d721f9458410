"""LongRoPE: a rescaling factor for every plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.checks import check_factor, check_length

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum


def longrope(spectrum: Spectrum, factors: Sequence[float], *, attention_factor: float = 1.0) -> Spectrum:
    """ω_i / λ_i: a factor for each plane, found by search (`search_factors`) or read from a configuration.

    Args:
        spectrum: as trained.
        factors: λ, one a plane.
        attention_factor: multiplies cos and sin; `longrope_attention_factor` is the usual one.

    Raises:
        ConfigError: another number of factors than planes, or one that is not positive.

    Source: Yiran Ding, Li Lyna Zhang, Chengruidong Zhang, Yuanyuan Xu, Ning Shang, Jiahang Xu, Fan Yang, Mao Yang. LongRoPE:
    Extending LLM Context Window Beyond 2 Million Tokens. arXiv 2402.13753, 2024.
    """
    values = check_factors("factors", factors, len(spectrum.inv_freq))
    return spectrum.then(
        (w / f for w, f in zip(spectrum.inv_freq, values, strict=True)),
        f"longrope({list(values)!r}, attention_factor={attention_factor!r})",
        attention_factor,
    )


def longrope_at(
    spectrum: Spectrum,
    length: float,
    original: float,
    *,
    short: Sequence[float],
    long: Sequence[float],
    attention_factor: float = 1.0,
) -> Spectrum:
    """`longrope` with the short factors for n ≤ L and the long ones beyond, for the length n that is fixed here.

    For an encoding that follows the length by itself: `ropewalk.LongRoPE`.

    Args:
        spectrum: as trained.
        length: n, tokens of the context it is made for.
        original: L, tokens of the training context.
        short: factors up to L, one a plane.
        long: factors beyond.
        attention_factor: as in `longrope`; it does not change at L.
    """
    check_length("length", length)
    check_length("original", original)
    for name, factors in (("short", short), ("long", long)):
        check_factors(name, factors, len(spectrum.inv_freq))
    return longrope(spectrum, long if length > original else short, attention_factor=attention_factor)


def longrope_attention_factor(factor: float, original: float) -> float:
    """√(1 + ln s / ln L): what cos and sin are multiplied by when the context grows s times from L tokens."""
    check_factor(factor)
    check_length("original", original)
    if original <= 1:
        raise ConfigError(f"original is a context of more than one token; got {original!r}")
    return math.sqrt(1 + math.log(factor) / math.log(original))


def check_factors(name: str, factors: Sequence[float], planes: int) -> tuple[float, ...]:
    """Check a factor for each plane."""
    if isinstance(factors, str) or not isinstance(factors, Sequence):
        raise ConfigError(f"{name} is a sequence of {planes} numbers; got {factors!r}")
    if len(factors) != planes:
        raise ConfigError(f"{name} has {len(factors)} numbers for {planes} planes; give one a plane")
    wrong = [f for f in factors if isinstance(f, bool) or not isinstance(f, int | float) or not 0 < f < math.inf]
    if wrong:
        raise ConfigError(f"{name} are positive numbers; got {wrong[:4]!r}")
    return tuple(float(f) for f in factors)
