"""RoPE at the logarithm of a wavelength, where a redshift is a shift."""

from __future__ import annotations

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.errors import PositionError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.periods import physical_period_frequencies
from ropewalk.frequencies.spectrum import Spectrum, check_rotary_width
from ropewalk.rotary.rope import RoPE


class WavelengthRoPE(RoPE):
    """Pair i turns by u ω_i,  u = ln λ,  ω_i = 2π / T_i,  T_i = T_min (T_max / T_min)^(i/(n−1)),  n = d/2.

    Spectra of one object at two redshifts have wavelengths that differ by a factor and u by a summand, so that attention is the
    same; so is it in another unit of length.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        period_min: T_min, in units of ln λ: some resolution elements.
        period_max: T_max: at least the whole range. 0.1 to 25 µm are 5.5.
        pairing: "half" or "interleaved".

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S) of ln λ, real: `ropewalk.spectrum_positions` makes them of pixels
    and `ropewalk.patch_spectrum` of runs of pixels. Numbers: angles reach 6e4, in float64; cos and sin are cast.

    Raises:
        ConfigError: periods that are not positive.
        PositionError: whole numbers as positions, which count pixels and know nothing of wavelengths.

    Source: OmniSpectra, a wavelength-native foundation model for spectral representation learning. 2026. Only its abstract was
    to be had; the ladder and its ends are our choice.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        period_min: float = 1e-3,
        period_max: float = 6.0,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(pairing=pairing)
        physical_period_frequencies(period_min, period_max, 1)  # wrong ones are told now
        self.period_min, self.period_max = float(period_min), float(period_max)
        if head_dim is not None:
            check_rotary_width(head_dim)
            self.fit(head_dim)

    def frequencies(self, head_dim: int) -> Spectrum:
        return physical_period_frequencies(self.period_min, self.period_max, head_dim // 2)

    def rewrite(self, problem: Attention) -> Problem:
        for tokens in (problem.where.query, problem.where.key):
            if not tokens.position.is_floating_point():
                raise PositionError(
                    f"{type(self).__name__} turns by logarithms of wavelengths, and these positions are whole numbers, which "
                    "count pixels: make them with rw.spectrum_positions(wavelength)"
                )
        return super().rewrite(problem)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, periods {self.period_min:g} to {self.period_max:g}, pairing={self.pairing}"
