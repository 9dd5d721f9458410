"""Between which bases a context is feasible: bounds from aliasing, drift, depth and precision, and the phase that is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.checks import check_length, check_rotary_width
from ropewalk.frequencies.spectrum import Spectrum

DepthLaw = Literal["product", "linear", "sqrt"]


# ---- bounds of a base ----------------------------------------------------------------------------------------------

# All four bound the slowest frequency w = B^(-(d-2)/d), so that B is a bound of it to the power e = d/(d-2).


def aliasing_bound(length: float, dim: int = 128, *, nyquist: bool = False, limit: bool = False) -> float:
    """(L / 2π)^e: above it the slowest plane does not complete a turn (``nyquist``: half a turn) in L tokens.

    Args:
        length: L, tokens of the context.
        dim: d, channels that are turned, above 2; e = d/(d−2).
        nyquist: (L / π)^e, our stricter variant.
        limit: e = 1, for a wide head.

    Source: Feilong Liu. Rotary Positional Embeddings as Phase Modulation: Theoretical Bounds on the RoPE Base for
    Long-Context Transformers. arXiv 2602.10959, 2026. The form of the other bounds is reconstructed from its restatements.
    """
    check_length("length", length)
    return float((length / (math.pi if nyquist else 2 * math.pi)) ** _exponent(dim, limit))


def drift_bound(length: float, dim: int = 128, *, tau: float = 0.5, limit: bool = False) -> float:
    """(L / arccos τ)^e: from it on cos(Lw) ≥ τ, so that the slowest plane stays coherent over L tokens.

    Args:
        length: L, tokens of the context.
        dim: d, channels that are turned.
        tau: τ from 0 to below 1.
        limit: e = 1, for a wide head.
    """
    if not (0 <= tau < 1):
        raise ConfigError(f"tau is from 0 to below 1; got {tau!r}")
    check_length("length", length)
    return float((length / math.acos(tau)) ** _exponent(dim, limit))


def depth_bound(
    length: float,
    dim: int = 128,
    *,
    layers: int,
    tau: float = 0.5,
    depth_law: DepthLaw = "product",
    limit: bool = False,
) -> float:
    """(L / φ)^e with the phase φ that N layers leave: drift adds up over them.

    ``depth_law``: "product": cos(Lw)^N ≥ τ, φ = arccos τ^(1/N); "linear": NLw ≤ arccos τ; "sqrt": √N Lw ≤ arccos τ, as
    of a random walk. Use it to rank: at the published τ it would condemn models that work.

    Args:
        length: L, tokens of the context.
        dim: d, channels that are turned.
        layers: N.
        tau: τ between 0 and 1.
        depth_law: how drift adds up.
        limit: e = 1, for a wide head.
    """
    check_length("length", length)
    return float((length / _phase_allowed(layers, tau, depth_law)) ** _exponent(dim, limit))


def precision_bound(dtype: torch.dtype = torch.float32, dim: int = 128, *, limit: bool = False) -> float:
    """ε^(−e): below it the slowest plane turns by more than the machine epsilon of ``dtype`` from token to token."""
    return float(torch.finfo(dtype).eps ** -_exponent(dim, limit))


@dataclass(frozen=True, slots=True)
class BaseBounds:
    """Bounds of the base for a context.

    Attributes:
        aliasing: lower, by `aliasing_bound`.
        drift: lower, by `drift_bound`.
        depth: lower, by `depth_bound`.
        precision: upper, by `precision_bound`.
    """

    aliasing: float
    drift: float
    depth: float
    precision: float

    @property
    def zone(self) -> tuple[float, float]:
        """The feasible bases, [lowest, highest); empty where lowest ≥ highest."""
        return max(self.aliasing, self.drift, self.depth), self.precision

    @property
    def feasible(self) -> bool:
        """Whether any base is feasible."""
        lowest, highest = self.zone
        return lowest < highest

    def __contains__(self, base: float) -> bool:
        lowest, highest = self.zone
        return lowest <= base < highest


def rope_base_bounds(
    length: float,
    dim: int = 128,
    layers: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
    tau: float = 0.5,
    depth_law: DepthLaw = "product",
    limit: bool = False,
) -> BaseBounds:
    """Return all four bounds. Arguments as in `depth_bound` and `precision_bound`."""
    return BaseBounds(
        aliasing_bound(length, dim, limit=limit),
        drift_bound(length, dim, tau=tau, limit=limit),
        depth_bound(length, dim, layers=layers, tau=tau, depth_law=depth_law, limit=limit),
        precision_bound(dtype, dim, limit=limit),
    )


def suggest_base(
    length: float,
    dim: int = 128,
    layers: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
    tau: float = 0.5,
    depth_law: DepthLaw = "product",
) -> float:
    """Return the geometric mean of the feasible bases.

    Raises:
        ConfigError: an empty zone.
    """
    bounds = rope_base_bounds(length, dim, layers, dtype=dtype, tau=tau, depth_law=depth_law)
    lowest, highest = bounds.zone
    if not bounds.feasible:
        raise ConfigError(
            f"no base is feasible for {length:g} tokens, {dim} channels, {layers} layers in {dtype}: it would be at least "
            f"{lowest:.3g} and below {highest:.3g}. Give a smaller tau, or fewer layers, or a wider dtype"
        )
    return math.sqrt(lowest * highest)


def longest_context(spectrum: Spectrum, layers: int = 1, *, tau: float = 0.5, depth_law: DepthLaw = "product") -> float:
    """Return φ / w, the context at which the slowest plane has spent the phase φ of `depth_bound`; infinite if none turns."""
    allowed = _phase_allowed(layers, tau, depth_law)
    slowest = _slowest(spectrum)
    return allowed / slowest if slowest else math.inf


def precision_wall(
    layers: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
    tau: float = 0.5,
    depth_law: DepthLaw = "product",
) -> float:
    """Return φ / ε, the context beyond which no base of a wide head is feasible."""
    return _phase_allowed(layers, tau, depth_law) / torch.finfo(dtype).eps


# ---- what a spectrum spends ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PhaseBudget:
    """What the slowest turning plane does over a context. Planes that stand still spend nothing and are left out.

    Attributes:
        slowest: its frequency w; 0 if no plane turns.
        phase: Lw, radians.
        turns: phase / 2π.
        coherence: cos(Lw).
        depth_coherence: max(cos(Lw), 0)^N.
        ulps: w / ε, turn from token to token in units of the last place.
    """

    slowest: float
    phase: float
    turns: float
    coherence: float
    depth_coherence: float
    ulps: float

    @property
    def aliased(self) -> bool:
        """Whether even the slowest plane completes a turn."""
        return self.turns >= 1


def phase_budget(
    spectrum: Spectrum, length: float, layers: int = 1, *, dtype: torch.dtype = torch.float32
) -> PhaseBudget:
    """Return what a spectrum of any schedule spends over L tokens in N layers.

    Args:
        spectrum: P frequencies.
        length: L, tokens of the context.
        layers: N.
        dtype: in which phases are formed.
    """
    check_length("length", length)
    check_positive(layers=layers)
    slowest = _slowest(spectrum)
    phase = length * slowest
    coherence = math.cos(phase)
    return PhaseBudget(
        slowest=slowest,
        phase=phase,
        turns=phase / (2 * math.pi),
        coherence=coherence,
        depth_coherence=max(coherence, 0.0) ** layers,
        ulps=slowest / torch.finfo(dtype).eps,
    )


@dataclass(frozen=True, slots=True)
class Oscillator:
    """One plane over a context.

    Attributes:
        frequency: ω, radians a token.
        turns: Lω / 2π.
        kind: "aliased" (a turn or more), "sub-cycle" (less), "still".
        coherence: cos(Lω).
        opposed: the first whole distance m with cos(mω) < 0; None for a plane that
            stands still (or looks so, at whole distances).
    """

    frequency: float
    turns: float
    kind: Literal["aliased", "sub-cycle", "still"]
    coherence: float
    opposed: int | None


def oscillator_report(spectrum: Spectrum, length: float) -> tuple[Oscillator, ...]:
    """Return what each plane does over L tokens."""
    made = []
    for w, turns in zip(spectrum.inv_freq, spectrum.turns(length), strict=True):
        kind: Literal["aliased", "sub-cycle", "still"] = (
            "still" if w == 0 else "aliased" if abs(turns) >= 1 else "sub-cycle"
        )
        made.append(Oscillator(w, turns, kind, math.cos(length * w), _first_opposed(abs(w)) if w else None))
    return tuple(made)


# ---- what a dtype can tell apart -----------------------------------------------------------------------------------


def distinct_phase_codes(frequency: float, length: int, dtype: torch.dtype) -> int:
    """#{(cos mω, sin mω) rounded to dtype : m < L}: positions that a plane can tell apart when its table is rounded.

    cos and sin are taken in float64. The count does not fall steadily with the frequency: compare distant bases only.
    """
    return len(torch.unique(_codes(frequency, length, dtype), dim=0))


def smallest_gap(frequency: float, length: int, dtype: torch.dtype) -> int:
    """The longest run of neighbouring positions below L with one code: how far apart positions must be to differ for sure.

    1: all neighbours differ. Codes are those of `distinct_phase_codes`. The run is long where cos and sin change least in
    units of the last place, not at position 0, around which sin is resolved without end.
    """
    codes = _codes(frequency, length, dtype)
    changed = torch.nonzero((codes[1:] != codes[:-1]).any(-1))[:, 0] + 1
    ends = torch.tensor([0, *changed.tolist(), length])
    return int(ends.diff().max())


def angle_error(frequency: float, positions: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """|cos(m ω in dtype) − cos(mω)|: what forming the angle in a low precision does to cos, float64, shape of ``positions``."""
    exact = positions.double() * frequency
    formed = positions.to(dtype) * torch.tensor(frequency, dtype=dtype, device=positions.device)
    return (formed.double().cos() - exact.cos()).abs()


def _codes(frequency: float, length: int, dtype: torch.dtype) -> torch.Tensor:
    check_positive(length=length)
    angles = torch.arange(length, dtype=torch.float64, device="cpu") * frequency
    codes = torch.stack((angles.cos(), angles.sin()), -1).to(dtype)
    return codes.double() + 0.0  # −0 is 0


def _slowest(spectrum: Spectrum) -> float:
    return min((abs(spectrum.inv_freq[i]) for i in spectrum.turning()), default=0.0)


def _first_opposed(frequency: float) -> int | None:
    """Return the first whole m with cos(mω) < 0. A fast plane may step over the first half turn that has it."""
    m = math.floor(math.pi / (2 * frequency)) + 1
    for _ in range(1000):  # a frequency near a multiple of 2π takes long, and an exact one never gets there
        if math.cos(m * frequency) < 0:
            return m
        m += 1
    return None


def _phase_allowed(layers: int, tau: float, law: DepthLaw) -> float:
    check_positive(layers=layers)
    if not (0 < tau < 1):
        raise ConfigError(f"tau is between 0 and 1; got {tau!r}")
    if law == "product":
        # arccos τ^(1/N) by half angles: near 1 the arccosine itself loses everything.
        return 2 * math.asin(math.sqrt(-math.expm1(math.log(tau) / layers) / 2))
    if law == "linear":
        return math.acos(tau) / layers
    if law == "sqrt":
        return math.acos(tau) / math.sqrt(layers)
    raise ConfigError(f"depth_law is 'product', 'linear' or 'sqrt'; got {law!r}")


def _exponent(dim: int, limit: bool) -> float:
    check_rotary_width(dim)
    if dim <= 2:
        raise ConfigError(
            f"a single plane turns by 1 radian a token whatever the base is; give a dim above 2, got {dim}"
        )
    return 1.0 if limit else dim / (dim - 2)
