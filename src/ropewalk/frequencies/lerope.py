"""Frequencies that LeRoPE learned, and what to do with the one plane it leans on."""

from __future__ import annotations

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.checks import check_length
from ropewalk.frequencies.spectrum import Spectrum

TRAIN_LENGTH = 2048

_PROFILE = (
    1.9, 1.1, 0.67, 0.45, 0.31, 0.24, 0.16, 0.11,
    0.084, 0.059, 0.044, 0.031, 0.023, 0.016, 0.0094, 0.0042,
    0.0015, 0.0011, 1.0e-4, 4.9e-5, 3.6e-5, 2.4e-5, 2.0e-5, 2.0e-5,
    1.2e-5, 1.8e-5, 1.0e-5, 1.5e-5, 1.2e-5, 9.9e-6, 9.4e-6, 1.5e-5,
)  # fmt: skip


def lerope_published_profile(train_length: float = TRAIN_LENGTH) -> Spectrum:
    """Return the 32 frequencies that a model with heads of 64 channels learned at 2048 tokens, to two or three digits.

    The fastest are nearly RoPE's, the middle is slowed down, plane 16 completes half a turn in the training context, and
    from plane 18 on there is next to no rotation. They do not fall from plane to plane at the slow end.

    Args:
        train_length: for another training context all are scaled by 2048 / train_length, which is our suggestion.

    Source: Petros Karypis, Sean O'Brien, Shreyas Kadekodi, Rui Zhu, Julian McAuley. LeRoPE: Learnable RoPE Frequencies Improve
    Language Modeling. arXiv 2607.10134, 2026, figure 6.
    """
    check_length("train_length", train_length)
    scale = TRAIN_LENGTH / train_length
    values = _PROFILE if scale == 1 else tuple(scale * w for w in _PROFILE)
    return Spectrum(values, origin=f"lerope_published_profile({train_length!r})")


def interpolate_band(spectrum: Spectrum, band: int, factor: float) -> Spectrum:
    """ω_band / s: only the plane that a model takes its long-range position from is stretched to a longer context.

    Args:
        spectrum: as trained.
        band: the plane, counted from 0 (`ropewalk.analysis.bands.positional_band` finds it).
        factor: s, new context over the original one.
    """
    if isinstance(band, bool) or not isinstance(band, int) or not 0 <= band < len(spectrum.inv_freq):
        raise ConfigError(f"band {band!r} of a spectrum of {len(spectrum.inv_freq)}; they are counted from 0")
    if not 0 < factor < float("inf"):
        raise ConfigError(f"factor is the new context over the original one; got {factor!r}")
    values = tuple(w / factor if i == band else w for i, w in enumerate(spectrum.inv_freq))
    return spectrum.then(values, f"interpolate_band({band}, {factor!r})")
