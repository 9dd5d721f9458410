"""The schedule of Llama 3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.frequencies.checks import check_factor, check_length
from ropewalk.frequencies.ntk import blend, keep_by_turns

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum


def llama3(
    spectrum: Spectrum, factor: float = 8.0, original: float = 8192, *, slow: float = 1.0, fast: float = 4.0
) -> Spectrum:
    """(1 − g_i) ω_i / s + g_i ω_i,  g_i = (r_i − slow) / (fast − slow) between 0 and 1,  r_i = L ω_i / 2π.

    The mechanism of `ntk_by_parts` with a narrower ramp: planes with at least ``fast`` turns in the training context stay.

    Args:
        spectrum: as trained.
        factor: s, new context over the original one.
        original: L, tokens of the training context.
        slow: turns up to which a plane is interpolated in full ("low_freq_factor").
        fast: turns from which it stays ("high_freq_factor").

    Source: Abhimanyu Dubey and others. The Llama 3 Herd of Models. arXiv 2407.21783, 2024; the numbers are in the released
    code and configurations of Llama 3.1.
    """
    check_factor(factor)
    check_length("original", original)
    values = blend(spectrum.inv_freq, factor, keep_by_turns(spectrum.turns(original), slow, fast))
    call = f"{factor!r}, original={original!r}, slow={slow!r}, fast={fast!r}"
    return spectrum.then(values, f"llama3({call})")
