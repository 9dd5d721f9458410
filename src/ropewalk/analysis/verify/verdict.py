"""What `verify` answers with."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ropewalk.core.rotation import Pairing

Severity = Literal["error", "note"]


@dataclass(frozen=True)
class Finding:
    """One difference, or one thing worth knowing.

    Args:
        cause: a short name that stays the same: "pairing", "base", "position-scale", ...
        sentence: what is different.
        evidence: what was measured.
        fix: what to change.
        severity: "error" is a difference; a "note" is none.
        same_as: other ways to say it, which no measurement tells apart.
        or_else: causes that these very tensors do not rule out.
        separate: which further input would.
        side: "q", "k" or both.
    """

    cause: str
    sentence: str
    evidence: str = ""
    fix: str = ""
    severity: Severity = "error"
    same_as: tuple[str, ...] = ()
    or_else: tuple[str, ...] = ()
    separate: str = ""
    side: str = "q and k"

    def __str__(self) -> str:
        lines = [f"{self.severity}: {self.sentence}"]
        lines += [f"  evidence: {self.evidence}"] if self.evidence else []
        lines += [f"  fix: {self.fix}"] if self.fix else []
        lines += [f"  the same thing: {'; '.join(self.same_as)}"] if self.same_as else []
        lines += [f"  or else: {'; '.join(self.or_else)}"] if self.or_else else []
        lines += [f"  to tell them apart: {self.separate}"] if self.separate else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Measured:
    """What the rotation does, as far as the tensors show it. None where they do not.

    Args:
        pairing: which channels are turned together.
        width: how many of them.
        start: the first of them.
        sign: 1 turns by +position · frequency, −1 the other way.
        inv_freq: radians a position, one a pair.
        base: of which these are the frequencies, if there is one.
        scaling: the candidate that they agree with.
        attention_factor_q: what q is multiplied by.
        attention_factor_k: what k is multiplied by.
        position_scale: measured position over given one.
        position_offset: measured position of the token that was given 0.
        tables: the precision of cos and sin, in words.
        axes: "batch, heads, seq, head_dim", or the order in which it would be right.
    """

    pairing: Pairing | None = None
    width: int | None = None
    start: int = 0
    sign: int | None = None
    inv_freq: tuple[float, ...] | None = None
    base: float | None = None
    scaling: str | None = None
    attention_factor_q: float | None = None
    attention_factor_k: float | None = None
    position_scale: float | None = None
    position_offset: float | None = None
    tables: str | None = None
    axes: str = "batch, heads, seq, head_dim"


@dataclass(frozen=True)
class Verdict:
    """Whether a rotation is what its reference says, and if not, why: findings, most likely first.

    Args:
        same: nothing but rounding lies between the two.
        findings: errors first, then notes.
        measured: what the rotation does.
        reference: what it was compared with.
        worst: largest difference, relative to the length of the pair it is in.
        dtype: of the numbers, as found.
    """

    same: bool
    findings: tuple[Finding, ...]
    measured: Measured
    reference: str
    worst: float
    dtype: str

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are differences."""
        return tuple(f for f in self.findings if f.severity == "error")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return _finite(asdict(self))

    def __str__(self) -> str:
        head = "the rotation is the reference's" if self.same else "the rotation is not the reference's"
        head += f" ({self.reference}; {self.dtype}; largest difference {self.worst:.2g} of a pair's length)"
        return "\n".join([head, *map(str, self.findings)])


def _finite(value: Any) -> Any:
    """Return the value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
