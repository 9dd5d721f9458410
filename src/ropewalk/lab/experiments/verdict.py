"""What an interval says about a claim: a rule, so that nobody chooses the word after seeing the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, get_args

from ropewalk.core.errors import ConfigError

Want = Literal["lower", "higher", "within"]
WANTS: tuple[str, ...] = get_args(Want)

HOLDS, FAILS, UNSEEN, BEYOND = "holds", "does not hold", "not seen", "cannot show here"
VERDICTS = (HOLDS, FAILS, UNSEEN, BEYOND)


def judge(want: Want, low: float | None, high: float | None, seeds: int, margin: float = 0.0) -> str:
    """Say whether a difference a − b is on the side that was expected.

    Args:
        want: "lower": a − b is below zero; "higher": above; "within": between −margin and margin.
        low: lower end of the interval; None where no spread could be measured.
        high: its upper end.
        seeds: models on each side. One shows nothing of what another seed would say.
        margin: of "within".

    Returns:
        "holds" where the whole interval is on the expected side, "does not hold" where it is on the other, "not seen" where
        it has a part on both or touches the border, or where fewer than two seeds were measured.
    """
    if want not in WANTS:
        raise ConfigError(f"want is one of {', '.join(WANTS)}; got {want!r}")
    if (want == "within") != (margin > 0):
        raise ConfigError(f"'within' takes a margin above 0 and nothing else takes one; got {want!r} and {margin!r}")
    if low is None or high is None or seeds < 2:
        return UNSEEN
    if not low <= high:  # also where one is not a number
        raise ConfigError(f"an interval goes from its lower to its upper end; got [{low!r}, {high!r}]")
    below, above = {"lower": (0.0, -math.inf), "higher": (math.inf, 0.0), "within": (margin, -margin)}[want]
    if low > above and high < below:
        return HOLDS
    if low > below or high < above:
        return FAILS
    return UNSEEN


def verdict(judgements: Iterable[str], out_of_reach: str = "") -> str:
    """Join what the deciding comparisons say.

    All of them have to hold; one on the other side is enough for "does not hold". What needs scale or data that a desk does
    not have is "cannot show here" whatever was measured instead.
    """
    found = list(judgements)
    if out_of_reach:
        return BEYOND
    if not found:
        raise ConfigError("a verdict needs at least one deciding comparison")
    if FAILS in found:
        return FAILS
    return HOLDS if set(found) == {HOLDS} else UNSEEN
