"""RoPE at positions of several axes, with an allocation of pairs and a scheme of coordinates."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.scheme import Scheme
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum, check_base, check_rotary_width


class MultiAxisRoPE(Rotary):
    """Pair i turns by c_{a(i)} ω_i,  a the allocation, c the coordinates that the scheme gives the token.

    Positions of a layout (`ropewalk.layout`) go through the scheme; positions (b, S, axes) are taken as the coordinates they
    are, and need ``next=`` to be decoded from. Plain positions are an error: nothing says that they are of text alone
    (`ropewalk.coordinates.layout.text_only` does).

    Args:
        head_dim: width d of a head.
        allocation: which pair turns by which axis; its P pairs are the first 2P channels, the others pass through.
        scheme: coordinates of blocks; its axes are those of the allocation.
        base: of the frequencies base^(−i/P).
        pairing: "half" in every released model of several axes but GLM's.
        spectrum: other frequencies, one a pair.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d).

    Raises:
        ConfigError: more pairs than channels, axes that differ, a spectrum of another size.
        PositionError: plain positions, or positions of other axes.
        NeedsColumn: a decoding step that does not say where the sequence stands.
    """

    inv_freq: Tensor
    made_by: ClassVar[str] = (
        "rw.layout([Text(...), Image(...), ...]), or give (batch, seq, axes). Of text alone say so: text_only(positions)"
    )
    """The call that makes its positions, for messages."""

    def __init__(
        self,
        head_dim: int,
        allocation: Allocation,
        scheme: Scheme,
        *,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(pairing)
        check_base(base)
        check_rotary_width(head_dim)
        if 2 * allocation.pairs > head_dim:
            raise ConfigError(f"{allocation.pairs} pairs need {2 * allocation.pairs} channels; head_dim is {head_dim}")
        if len(scheme.axes) != allocation.axes:
            raise ConfigError(
                f"the scheme gives {len(scheme.axes)} axes ({', '.join(scheme.axes)}) and the allocation reads {allocation.axes} "
                f"({', '.join(allocation.names)})"
            )
        if spectrum is not None:
            if len(spectrum.inv_freq) != allocation.pairs:
                raise ConfigError(
                    f"a spectrum of {len(spectrum.inv_freq)} pairs for an allocation of {allocation.pairs}; give one for each"
                )
            self.magnitude = spectrum.attention_factor
        self.head_dim, self.base, self.spectrum = head_dim, float(base), spectrum
        self.allocation, self.scheme = allocation, scheme
        self.axes = allocation.axes  # type: ignore[misc]
        self.derive("inv_freq", self._inverse_frequencies)

    def _inverse_frequencies(self) -> Tensor:
        return self.allocation.frequencies(self.base, None if self.spectrum is None else self.spectrum.inv_freq)

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        if tokens.axes == self.axes:
            return tokens.coordinates(chain)
        if tokens.axes is not None or ("block" not in tokens.columns and "blocks" not in tokens.sequence):
            have = "plain" if tokens.axes is None else f"{tokens.axes} axes each"
            raise PositionError(
                f"{type(self).__name__} turns by ({_listed(self.scheme.axes)}) and these positions are {have}: make them with "
                f"{self.made_by}"
            )
        return tokens.coordinates((self.scheme, *chain))  # what moves coordinates moves those of the scheme

    def angles(self, position: Tensor) -> Tensor:
        angles = self.allocation.spread(position) * self.exact("inv_freq", position.device)[:, None]
        return angles[:, 0] if self.allocation.heads is None else angles

    def extra_repr(self) -> str:
        scheme = type(self.scheme).__name__
        return f"{self.head_dim}, {scheme}, base={self.base}, pairing={self.pairing}"


def _listed(axes: tuple[str, ...]) -> str:
    """Names of axes, for a message; of many, where they begin and end."""
    return ", ".join(axes if len(axes) <= 8 else (*axes[:2], "…", axes[-1]))
