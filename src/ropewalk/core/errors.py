"""What ropewalk raises. Every message says what came, what is allowed, and the likely fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RopewalkError(Exception):
    """Root of everything raised on purpose by ropewalk."""


class ConfigError(RopewalkError, ValueError):
    """A hyper-parameter that cannot be: an odd rotary width, an unknown pairing, a negative base."""


class ShapeError(RopewalkError, ValueError):
    """Tensors whose shapes, dtypes or devices do not fit each other or the encoding."""


class PositionError(RopewalkError, ValueError):
    """Positions that are NaN or infinite, of the wrong shape or length, or in a dtype that cannot hold them."""


class UnknownNameError(RopewalkError, LookupError):
    """A name (of an encoding, a backend, a feature) that does not exist, or that several things share."""


class BackendError(RopewalkError, RuntimeError):
    """A backend was asked for by name and cannot run the problem; the message says what rules it out."""


class CacheError(RopewalkError, RuntimeError):
    """A cache and a problem, or a cache and an encoding, that do not belong together."""


class Refusal(RopewalkError, RuntimeError):
    """An encoding says no, because the honest answer would not be what was asked for."""


class CannotCache(Refusal):
    """Decoding with this encoding would not equal the full pass."""


class CannotCrop(Refusal):
    """The running state after the last token is gone once later tokens came; take a snapshot before them."""


class CannotEdit(Refusal):
    """What is cached of a token depends on more than its coordinate, so it cannot be moved elsewhere."""


class CannotSplit(Refusal):
    """A process that holds some tokens or some heads cannot do its part without the others."""


class CannotCompose(Refusal):
    """Two encodings (or an encoding and a combinator) whose combination has no meaning."""


class NotCausal(Refusal):
    """The encoding is defined for one direction of attention only."""


class NotRotation(Refusal):
    """`rotate` was asked of an encoding that is more than a map of q and k."""


class NeedsHiddenStates(Refusal):
    """The encoding reads the layer's input: give ``x=`` to the problem."""


class NeedsColumn(Refusal):
    """The encoding reads facts about the tokens (cameras, segments, samples) that the positions do not carry."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return a sentence with the nearest of the choices (with a leading space), or an empty string."""
    near = difflib.get_close_matches(str(name).lower(), list(choices), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_positive(**counts: int | None) -> None:
    """Check whole numbers that are at least 1, by name; None is a number not given."""
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ConfigError(f"{name} is a whole number, at least 1; got {count!r}")
