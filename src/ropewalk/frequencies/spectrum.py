"""Frequencies of rotary encodings, as values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.abf import abf as _abf
from ropewalk.frequencies.checks import check_base as check_base
from ropewalk.frequencies.checks import check_length
from ropewalk.frequencies.checks import check_rotary_width as check_rotary_width
from ropewalk.frequencies.clipped import clipped as _clipped
from ropewalk.frequencies.dprope import dprope as _dprope
from ropewalk.frequencies.linear import dynamic_linear as _dynamic_linear
from ropewalk.frequencies.linear import linear as _linear
from ropewalk.frequencies.llama3 import llama3 as _llama3
from ropewalk.frequencies.longrope import longrope as _longrope
from ropewalk.frequencies.longrope import longrope_at as _longrope_at
from ropewalk.frequencies.ntk import dynamic_ntk as _dynamic_ntk
from ropewalk.frequencies.ntk import ntk as _ntk
from ropewalk.frequencies.ntk import ntk_by_parts as _ntk_by_parts
from ropewalk.frequencies.yarn import dynamic_yarn as _dynamic_yarn
from ropewalk.frequencies.yarn import yarn as _yarn


@dataclass(frozen=True)
class Spectrum:
    """Inverse frequencies with what belongs to them. Schedules are functions ``Spectrum -> Spectrum``, and methods of it.

    Args:
        inv_freq: radians a token, one for each rotary plane. A plane of frequency 0 is not turned.
        attention_factor: cos and sin are multiplied by it, so logits by its square.
        origin: the expression that makes the numbers, for people and for `to_rope_parameters`.

    Raises:
        ConfigError: a frequency that is NaN or infinite, an attention factor that is not a positive number.

    Example:
        >>> from ropewalk.frequencies import geometric
        >>> geometric(128, base=5e5).yarn(factor=8, original=8192).attention_factor
        1.2079441541679836
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    origin: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inv_freq", tuple(float(w) for w in self.inv_freq))
        wrong = [i for i, w in enumerate(self.inv_freq) if not math.isfinite(w)]
        if wrong:
            raise ConfigError(f"frequencies are numbers; planes {wrong} have {[self.inv_freq[i] for i in wrong]}")
        if not (math.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise ConfigError(f"attention_factor is a positive number; got {self.attention_factor!r}")

    # ---- schedules, which their own modules document ----------------------------------------------------------

    linear = _linear
    dynamic_linear = _dynamic_linear
    ntk = _ntk
    ntk_by_parts = _ntk_by_parts
    dynamic_ntk = _dynamic_ntk
    yarn = _yarn
    dynamic_yarn = _dynamic_yarn
    llama3 = _llama3
    longrope = _longrope
    longrope_at = _longrope_at
    abf = _abf
    dprope = _dprope
    clipped = _clipped

    def then(self, inv_freq: Iterable[float], step: str, attention_factor: float = 1.0) -> Spectrum:
        """Return what a schedule made of this one: other frequencies, and a further factor on cos and sin.

        ``step`` is the call, as text; it is added to ``origin``.
        """
        return replace(
            self,
            inv_freq=tuple(inv_freq),
            attention_factor=self.attention_factor * attention_factor,
            origin=f"{self.origin}.{step}",
        )

    # ---- questions --------------------------------------------------------------------------------------------

    def turning(self) -> tuple[int, ...]:
        """Return the planes that turn at all. The others are content: they have no wavelength, no phase and no budget."""
        return tuple(i for i, w in enumerate(self.inv_freq) if w != 0.0)

    def wavelengths(self) -> tuple[float, ...]:
        """λ_i = 2π / |ω_i|, in tokens; infinite where a plane does not turn."""
        return tuple(2 * math.pi / abs(w) if w else math.inf for w in self.inv_freq)

    def turns(self, length: float) -> tuple[float, ...]:
        """r_i = L ω_i / 2π: how often each plane turns around in a context of L tokens."""
        check_length("length", length)
        return tuple(length * w / (2 * math.pi) for w in self.inv_freq)

    @property
    def base(self) -> float | None:
        """The base of which these are the frequencies base^(−i/P); None if there is none, or any would do (P < 2)."""
        last = len(self.inv_freq) - 1
        if last < 1 or not 0 < self.inv_freq[last] < self.inv_freq[0] == 1.0:
            return None
        base = self.inv_freq[last] ** (-(last + 1) / last)
        if any(abs(w * base ** (i / (last + 1)) - 1) > 1e-12 for i, w in enumerate(self.inv_freq)):
            return None
        # The root costs a unit or two in the last place; where a short number makes the very same ladder, it is the one.
        short = float(f"{base:.12g}")
        return short if geometric(2 * (last + 1), short).inv_freq == self.inv_freq else base

    def tensor(self) -> Tensor:
        """Return the inverse frequencies, float64 on the CPU."""
        return torch.tensor(self.inv_freq, dtype=torch.float64, device="cpu")

    def keep(self, planes: Collection[int], *, origin: str = "") -> Spectrum:
        """Return the spectrum in which only these planes turn; the others stay, with frequency 0.

        A plane of frequency 0 is content alone. It keeps its place, because the place says which channels are its pair.
        """
        beyond = sorted(i for i in planes if not 0 <= i < len(self.inv_freq))
        if beyond:
            raise ConfigError(f"planes {beyond} of a spectrum of {len(self.inv_freq)}; they are counted from 0")
        values = tuple(w if i in planes else 0.0 for i, w in enumerate(self.inv_freq))
        return replace(self, inv_freq=values, origin=origin or f"{self.origin}.keep({sorted(planes)})")

    def padded(self, planes: int) -> Spectrum:
        """Return the spectrum with planes of frequency 0 at its end, ``planes`` in all."""
        if planes < len(self.inv_freq):
            raise ConfigError(f"a spectrum of {len(self.inv_freq)} planes cannot be padded to {planes}")
        return replace(self, inv_freq=self.inv_freq + (0.0,) * (planes - len(self.inv_freq)))

    def trimmed(self, pairing: Pairing = "interleaved") -> Spectrum:
        """Return the spectrum without the planes of frequency 0 at its end.

        The same rotation with less work where neighbours are paired, since the channels that are left over pass through.
        With pairing "half" the partner of a channel depends on the number of planes, so nothing is left out.
        """
        if pairing == "half":
            return self
        turning = self.turning()
        return replace(self, inv_freq=self.inv_freq[: turning[-1] + 1 if turning else 0])


def geometric(dim: int, base: float = 10_000.0) -> Spectrum:
    """ω_i = base^(−2i/dim), i = 0 … dim/2 − 1: the frequencies of RoPE (Su et al., arXiv 2104.09864, 2021)."""
    check_rotary_width(dim)
    check_base(base)
    values = tuple(float(base) ** (-2 * i / dim) for i in range(dim // 2))
    return Spectrum(values, origin=f"geometric({dim}, base={float(base)!r})")
