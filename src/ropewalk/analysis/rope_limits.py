"""S(m) = Σ_i a_i cos(mω_i + φ_i): how well one query and one key tell positions and tokens apart by it.

Far places may score higher than near ones (position inversion), two places alike (position aliasing), another key may win at
another place (token inversion), two keys score alike (token aliasing). A larger base helps the last two and hurts the first
two. The failures are those of Yufeng Du, Phillip Harris, Minyang Tian, Eliu Huerta, Srikanth Ronanki, Subendhu Rongali, Aram
Galstyan, Hao Peng. RoPE Distinguishes Neither Positions Nor Tokens in Long Contexts, Provably. arXiv 2605.15514, 2026. The
measures are ours, and take any frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.analysis.pairs import planes
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum


def score_curve(amplitude: Tensor, phase: Tensor, spectrum: Spectrum, length: int) -> Tensor:
    """S(m), m = 0 … M − 1: (..., M) for amplitudes and phases (..., P), float64."""
    check_positive(length=length)
    if amplitude.shape != phase.shape or amplitude.shape[-1] != len(spectrum.inv_freq):
        raise ShapeError(
            f"amplitudes {tuple(amplitude.shape)} and phases {tuple(phase.shape)} of {len(spectrum.inv_freq)} frequencies"
        )
    z = torch.polar(amplitude.double(), phase.double())
    m = torch.arange(length, dtype=torch.float64, device=z.device)
    angles = m[:, None] * spectrum.tensor().to(z.device)
    return z.real @ angles.cos().mT - z.imag @ angles.sin().mT


def amplitudes(q: Tensor, k: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Return a and φ of a query and a key, (..., P) each: the score of the key m tokens back is S(m).

    Args:
        q: (..., 2P), not turned.
        k: (..., 2P), not turned.
        pairing: of the channels.
    """
    z = planes(q.double(), pairing) * planes(k.double(), pairing).conj()
    return z.abs(), z.angle()


# ---- A–C: Gaussian q and k, from the frequencies alone -----------------------------------------------------------------


def correlation_at(spectrum: Spectrum, distances: Tensor) -> Tensor:
    """ρ(δ) = mean_i cos ω_i δ: correlation of S(m) and S(m + δ) for Gaussian q and k, within −1 … 1."""
    return (distances.double()[..., None] * spectrum.tensor()).cos().mean(-1).clamp(-1, 1)


def token_inversion(spectrum: Spectrum, length: int) -> float:
    """TI = E arccos ρ(m − m') / π over m, m' < L: how often the better of two keys changes from one place to another."""
    check_positive(length=length)
    delta = torch.arange(1, length, dtype=torch.float64)
    angle = correlation_at(spectrum, delta).acos() / math.pi
    return float((angle * (length - delta)).sum() * 2 / length**2)


def anchored_token_inversion(spectrum: Spectrum, length: int) -> float:
    """TI_0 = mean_{m < M} arccos ρ(m) / π: how often it is another key than at distance 0. 1/2 at M about the base."""
    check_positive(length=length)
    angle = correlation_at(spectrum, torch.arange(length, dtype=torch.float64)).acos() / math.pi
    angle[0] = 0.0
    return float(angle.mean())


def position_sensitivity(spectrum: Spectrum, length: float) -> float:
    """PS = 1 − mean_i (sin x_i / x_i)², x_i = ω_i L/2: share of the score's second moment that is variance over L tokens."""
    if not (math.isfinite(length) and length >= 0):
        raise ConfigError(f"length is a number of tokens; got {length!r}")
    # torch.sinc(x) is sin(πx) / πx.
    return float(1 - torch.sinc(spectrum.tensor() * length / (2 * math.pi)).square().mean())


# ---- D: position inversion ----------------------------------------------------------------------------------------------


def position_inversion(scores: Tensor) -> Tensor:
    """Share of the pairs m_1 < M//2 ≤ m_2 of places with S(m_2) > S(m_1), (...) for curves (..., M)."""
    length = scores.shape[-1]
    if length < 2:
        raise ShapeError(f"{length} places have no halves")
    near = scores[..., : length // 2].contiguous().sort(dim=-1).values
    far = scores[..., length // 2 :].contiguous()
    # How many near places lie strictly below each far one.
    below = torch.searchsorted(near, far, side="left")
    return below.double().sum(-1) / (near.shape[-1] * far.shape[-1])


def equal_amplitude_inversion(length: float, base: float, planes_: int) -> float:
    """Φ(−2 ln 2 √h / √(ln M ln B)): position inversion for equal amplitudes and no phases, for M well below B."""
    if not (length > 1 and base > 1 and planes_ >= 1):
        raise ConfigError(f"length={length}, base={base} and planes={planes_}; expected above 1, above 1 and from 1")
    return _normal(-2 * math.log(2) * math.sqrt(planes_) / math.sqrt(math.log(length) * math.log(base)))


def aligned_inversion(spectrum: Spectrum, near: float, far: float) -> float:
    """Φ(−Σc / √Σc²), c_i = cos ω_i a − cos ω_i b: the same for two places a < b and a Gaussian key equal to the query."""
    w = spectrum.tensor()
    c = (w * near).cos() - (w * far).cos()
    size = float(c.square().sum().sqrt())
    return 0.5 if size == 0 else _normal(-float(c.sum()) / size)


# ---- E: aliasing --------------------------------------------------------------------------------------------------------


def rounded(scores: Tensor, fraction_bits: int) -> Tensor:
    """Round to 1 + f significant bits, ties to even, exponents without limit; bf16 has f = 7."""
    if isinstance(fraction_bits, bool) or not isinstance(fraction_bits, int) or not 0 <= fraction_bits <= 52:
        raise ConfigError(f"fraction_bits is a whole number from 0 to 52; got {fraction_bits!r}")
    mantissa, exponent = torch.frexp(scores.double())
    return torch.ldexp(torch.ldexp(mantissa, torch.tensor(fraction_bits + 1)).round(), exponent - fraction_bits - 1)


class Aliases(NamedTuple):
    """Places with the same rounded score."""

    pairs: int
    places: int
    """That have a partner."""


def position_aliases(scores: Tensor, fraction_bits: int) -> Aliases:
    """Count the places of one curve (M,) that rounding makes alike."""
    counts = rounded(scores, fraction_bits).unique(return_counts=True)[1]
    return Aliases(int((counts * (counts - 1) // 2).sum()), int(counts[counts > 1].sum()))


def token_aliases(first: Tensor, second: Tensor, fraction_bits: int) -> int:
    """Count the places at which two keys' curves (M,) round to the same score."""
    if first.shape != second.shape:
        raise ShapeError(f"curves {tuple(first.shape)} and {tuple(second.shape)} are of other lengths")
    return int((rounded(first, fraction_bits) == rounded(second, fraction_bits)).sum())


class ClosestPair(NamedTuple):
    """Two places i < j of one curve, how far apart their scores are, and how many pairs are within a tolerance."""

    first: int
    second: int
    gap: float
    within: int


def closest_pair(scores: Tensor, tolerance: float = 0.0) -> ClosestPair:
    """Return the two places of one curve (M,) with the nearest scores, and count the pairs with a gap below a tolerance."""
    if scores.ndim != 1 or len(scores) < 2:
        raise ShapeError(f"one curve of two places or more; got shape {tuple(scores.shape)}")
    ordered = scores.double().sort(stable=True)
    gaps = ordered.values.diff()
    at = int(gaps.argmin())
    i, j = sorted(ordered.indices[at : at + 2].tolist())
    # Of a sorted curve, the pairs below the tolerance of each place are those up to where it ends.
    ends = torch.searchsorted(ordered.values, ordered.values + tolerance, side="left")
    within = int((ends - torch.arange(1, len(scores) + 1)).clamp(min=0).sum())
    return ClosestPair(i, j, float(gaps[at]), within)


# ---- F–G: real queries and keys -------------------------------------------------------------------------------------------


def token_order_changes(first: Tensor, second: Tensor) -> Tensor:
    """Share of the places at which the other of two keys scores higher than at distance 0, (...) for curves (..., M).

    Equal scores are no inversion.
    """
    if first.shape != second.shape:
        raise ShapeError(f"curves {tuple(first.shape)} and {tuple(second.shape)} are of other shapes")
    order = (first - second).sign()
    return (order * order[..., :1] < 0).double().mean(-1)


def strongest_place(scores: Tensor) -> Tensor:
    """Return the distance at which a key scores highest, (...); after a softmax it is the same. Of equal ones the nearest."""
    return scores.argmax(-1)


def swap_changes(q: Tensor, keys: Tensor, spectrum: Spectrum, pairing: Pairing, places: tuple[int, int]) -> float:
    """Largest change of a logit when the keys at two distances change places: 0 is attention that cannot tell them apart.

    Args:
        q: (2P,), not turned.
        keys: (2, 2P), not turned; the first lies at the first distance.
        spectrum: P frequencies.
        pairing: of the channels.
        places: two distances.
    """
    scores = score_curve(*amplitudes(q, keys, pairing), spectrum, max(places) + 1)
    return float((scores[:, places[0]] - scores[:, places[1]]).abs().max())


class NormalFit(NamedTuple):
    """How near the scores over M places are to a normal variable."""

    mean: float
    variance: float
    distance: float
    """Kolmogorov–Smirnov."""

    @property
    def bound(self) -> float:
        """|μ| / (σ √2π): how far an inversion can be from 1/2, where this is the fit of a difference of two scores."""
        return math.inf if self.variance == 0 else abs(self.mean) / math.sqrt(2 * math.pi * self.variance)


def normal_fit(q: Tensor, k: Tensor, spectrum: Spectrum, length: int, pairing: Pairing) -> NormalFit:
    """Fit a normal variable to S(m), m < M, of one query and one key (2P,), not turned."""
    return fit_normal(score_curve(*amplitudes(q, k, pairing), spectrum, length))


def fit_normal(scores: Tensor) -> NormalFit:
    """Fit a normal variable to numbers (n,)."""
    x = scores.double().flatten().sort().values
    if not len(x):
        raise ShapeError("an empty sample has no fit")
    mean, variance = float(x.mean()), float(x.var(correction=0))
    if variance == 0:
        return NormalFit(mean, 0.0, 0.5)
    cdf = torch.special.ndtr((x - mean) / variance**0.5)
    steps = torch.arange(len(x) + 1, dtype=torch.float64, device=x.device) / len(x)
    distance = torch.maximum((cdf - steps[:-1]).abs(), (cdf - steps[1:]).abs()).max()
    return NormalFit(mean, variance, float(distance))


# ---- tables ---------------------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """What frequencies can do in a context."""

    name: str
    length: int
    token_inversion: float
    position_sensitivity: float
    position_inversion: float
    """Of equal amplitudes, counted."""


def sweep(spectra: Mapping[str, Spectrum], lengths: Sequence[int]) -> list[Limits]:
    """Return the limits of each of some frequencies at each of some lengths."""
    rows = []
    for name, spectrum in spectra.items():
        ones = torch.ones(len(spectrum.inv_freq), dtype=torch.float64)
        for length in lengths:
            inverted = float(position_inversion(score_curve(ones, 0 * ones, spectrum, length)))
            rows.append(
                Limits(
                    name, length, token_inversion(spectrum, length), position_sensitivity(spectrum, length), inverted
                )
            )
    return rows


def crossing_base(
    make: Callable[[float], Spectrum], length: int, low: float = 100.0, high: float = 1e12, steps: int = 60
) -> float | None:
    """Return the base at which positions are inverted as often as tokens; None if that is nowhere in between.

    Args:
        make: frequencies of a base.
        length: M.
        low: smallest base.
        high: largest base.
        steps: halvings of the interval, on a logarithmic scale.
    """

    def gap(base: float) -> float:
        made = make(base)
        return equal_amplitude_inversion(length, base, len(made.inv_freq)) - anchored_token_inversion(made, length)

    a, b = math.log(low), math.log(high)
    if not (0 < low < high) or (gap(low) < 0) == (gap(high) < 0):
        return None
    rising = gap(low) < 0
    for _ in range(steps):
        middle = (a + b) / 2
        a, b = (middle, b) if (gap(math.exp(middle)) < 0) == rising else (a, middle)
    return math.exp((a + b) / 2)


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))
