"""What the lab raises beside the library's own errors."""

from __future__ import annotations

from ropewalk.core.errors import RopewalkError


class TrialError(RopewalkError, RuntimeError):
    """A trial that cannot go on; the message says why and what may help."""


class RunError(RopewalkError, RuntimeError):
    """A run folder that is in use, holds another comparison, or cannot be read."""


class DataError(RopewalkError, ValueError):
    """Text that is missing, unreadable or too short."""
