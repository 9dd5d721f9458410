"""What schedules ask of their numbers."""

from __future__ import annotations

import math

from ropewalk.core.errors import ConfigError


def check_base(base: float) -> None:
    """Check the base of a geometric ladder."""
    if not _number(base) or not 0 < base < math.inf:
        raise ConfigError(f"base is a positive number; got {base!r}")


def check_factor(factor: float) -> None:
    """Check an extension factor."""
    if not _number(factor) or not 1 <= factor < math.inf:
        raise ConfigError(f"factor is the new context over the original one, at least 1; got {factor!r}")


def check_length(name: str, length: float) -> None:
    """Check a number of tokens."""
    if not _number(length) or not 0 < length < math.inf:
        raise ConfigError(f"{name} is a positive number of tokens; got {length!r}")


def check_rotary_width(dim: int) -> None:
    """Check a number of channels that are turned in pairs."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 0 or dim % 2:
        raise ConfigError(
            f"rotary encodings turn pairs of channels, so their width is even; got {dim!r}. For a part of the channels use "
            "Partial(encoding, dims)"
        )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
