"""What the decay curve of a spectrum does far away."""

from __future__ import annotations

import math

import torch

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.frequencies.waveform import waveform


def ringing(spectrum: Spectrum, frequency: float, start: int, periods: int = 8) -> float:
    """2 |Σ_m h_m B_m e^(−imω)| / Σ_m h_m: how strongly the kernel B_m = Σ_i cos(mω_i) swings at ω from distance ``start`` on.

    Where a dense spectrum ends sharply at ω, that falls like 1/m, and faster where it is tapered: a sharp edge rings far away.

    Args:
        spectrum: P frequencies.
        frequency: ω, such as that of the first plane that was stopped.
        start: first distance, in tokens.
        periods: of 2π/ω, over which a Hann window h is laid.
    """
    check_positive(periods=periods)
    if not 0 < frequency < math.inf:
        raise ConfigError(f"frequency is a positive number; got {frequency!r}")
    count = max(round(periods * 2 * math.pi / frequency), 2)
    distance = start + torch.arange(count, dtype=torch.float64, device="cpu")
    window = torch.hann_window(count, dtype=torch.float64, device="cpu")
    curve, angles = window * waveform(spectrum, distance), distance * frequency
    return float(2 * torch.hypot((curve * angles.cos()).sum(), (curve * angles.sin()).sum()) / window.sum())
