"""Wavelet position encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.attention import Attention, Pointwise, Problem, Row
from ropewalk.core.encoding import Encoding, State, check_axes, full_precision, table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest

Wavelet = Literal["ricker", "gaussian", "haar", "morlet"]


class WaveletPE(Encoding):
    """s_ij = (q_i·k_j + q_i·p(i − j)) / √d,  p(t)_c = ψ((t − b_c) / a_c).

    Each channel holds one wavelet of the distance with a scale a = 2^e and a shift b of its own: all pairs of a scale
    exponent and a shift, scale by scale. A query weighs windows of many sizes; nothing is learned, nothing is clipped, and
    no distance is discounted. The query is read as it came, before any rotation.

    With s scales and d/s shifts the exponents are 0, ..., s − 1 and the shifts 0, ..., d/s − 1. The paper moves the
    exponents to 2, ..., 9 for contexts of 4096. ``scale_exponents=(0,)`` is its ablation with one scale.

    Args:
        head_dim: width d of a head; None: taken from the first problem.
        wavelet: ψ. "ricker" (1 − x²)e^(−x²/2), the paper's; "gaussian" e^(−x²); "haar" 1 on [−½, 0), −1 on [−1, −½), else 0;
            "morlet" e^(−x²) cos(t − b), with a cosine that is not scaled (what it is a function of is our reading).
        num_scales: s; None: as many as exponents are given, else the largest divisor of d up to 8.
        scale_exponents: e, one a scale, real numbers.
        shifts: b, real numbers; d is the product of the numbers of scales and shifts.
        flip: use ψ(−x). Haar lies at negative arguments, t < b; flipped it looks at t > b, where most keys are.

    Shapes: positions (b, S), in tokens. At whole positions q_i·p is computed once a distance, as a matrix (d, distances)
    that ends where all wavelets are below 1e-18. At real positions it is computed for every pair, by the reference backend.

    Raises:
        ConfigError: an unknown wavelet; numbers of scales and shifts whose product is not d.

    Source: Yui Oka, Taku Hasegawa, Kyosuke Nishida, Kuniko Saito. Wavelet-based Positional Representation for Long
    Context. arXiv 2502.02004, 2025.
    """

    stores = "raw"  # the matrix reaches as far as the keys are away, which only a look at all of them tells
    lattice: Tensor

    def __init__(
        self,
        head_dim: int | None = None,
        *,
        wavelet: Wavelet = "ricker",
        num_scales: int | None = None,
        scale_exponents: Sequence[float] | None = None,
        shifts: Sequence[float] | None = None,
        flip: bool = False,
    ) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, num_scales=num_scales)
        if wavelet not in WAVELETS:
            raise ConfigError(f"wavelet is one of {', '.join(WAVELETS)}; got {wavelet!r}.{suggest(wavelet, WAVELETS)}")
        self.wavelet, self.flip = wavelet, flip
        self.exponents = None if scale_exponents is None else tuple(_finite("scale_exponents", scale_exponents))
        self.shifts = None if shifts is None else tuple(_finite("shifts", shifts))
        if self.exponents is not None and num_scales not in (None, len(self.exponents)):
            raise ConfigError(f"{len(self.exponents)} scale_exponents for num_scales={num_scales}; give one a scale")
        self.num_scales = num_scales if self.exponents is None else len(self.exponents)
        self.head_dim: int | None = None
        if head_dim is not None:
            self.fit(head_dim)

    def fit(self, head_dim: int) -> None:
        """Lay out scales and shifts over the channels, once their number is known."""
        if self.head_dim is not None:
            if self.head_dim != head_dim:
                raise ShapeError(f"WaveletPE was made for head_dim {self.head_dim} and q has {head_dim}")
            return
        usual = max(s for s in range(1, 9) if head_dim % s == 0)
        scales = self.num_scales or (head_dim // len(self.shifts) if self.shifts else usual)
        shifts = self.shifts or tuple(map(float, range(head_dim // max(scales, 1))))
        if scales * len(shifts) != head_dim:
            raise ConfigError(
                f"head_dim={head_dim} channels are not {scales} scales times {len(shifts)} shifts; without num_scales and "
                f"shifts it would be {usual} times {head_dim // usual}"
            )
        self.head_dim = head_dim
        exponents = self.exponents or tuple(map(float, range(scales)))
        self.channels = tuple((2.0**e, b) for e in exponents for b in shifts)
        radius = _RADIUS[self.wavelet]
        # Distances from the last before any wavelet to the first after all: one more, since Haar's ends belong to it.
        self.reach = (
            math.floor(min(b - a * radius for a, b in self.channels)) - 1,
            math.ceil(max(b + a * radius for a, b in self.channels)) + 1,
        )
        self.derive("lattice", self._lattice)

    def _lattice(self) -> Tensor:
        return torch.tensor(self.channels, dtype=torch.float64, device="cpu").t()

    def wavelets(self, distance: Tensor) -> Tensor:
        """Return p at these distances t = i − j, (..., d) float64."""
        scale, shift = self.exact("lattice", distance.device)
        return self._psi(distance.double()[..., None], scale, shift)

    def _psi(self, t: Tensor, scale: Tensor | float, shift: Tensor | float) -> Tensor:
        away = shift - t if self.flip else t - shift
        return WAVELETS[self.wavelet](away / scale, away)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        p = problem
        self.fit(p.q.shape[-1])
        return p.with_features(q={"q": p.q}), state

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        check_axes(self, p.where.query.coordinates(p.at), None)
        dtype = table_dtype(p.q)
        q = p.qf[p.own("q").name].to(dtype) * p.logit_scale
        span = self._span(p)
        if span is None:
            p = p.with_features(q={"q": q})
            return p.add(Row(self._at_real_positions, (p.own("q"), p.coordinate()), (p.coordinate(),)))
        low, high = span

        def make() -> Tensor:
            return self.wavelets(torch.arange(low, high + 1, device=p.q.device)).t().to(dtype)

        table = p.where.query.memo(lambda: ("wavelets", self.key(), low, high, dtype), make)
        with full_precision(p.q):
            p = p.with_features(q={"scores": q @ table})

        def bias(i: Tensor, j: Tensor, lookup: Callable[[Tensor], Tensor]) -> Tensor:
            return lookup((i - j).clamp(low, high) - low)

        place = p.coordinate(centred=True)
        return p.add(Pointwise(bias, (place,), (place,), p.own("scores")))

    def _span(self, p: Attention) -> tuple[int, int] | None:
        """Return the least and largest distance that is needed; None where distances are no whole numbers."""
        least, most = self.reach
        if is_compiling() or p.q.is_meta:  # no look at the numbers
            real = p.at or p.where.query.position.is_floating_point() or p.where.key.position.is_floating_point()
            return None if real else self.reach
        between = _distances(p)
        if between is None:
            return None
        low, high = (min(max(t, least), most) for t in between)  # beyond the reach everything is as at its ends: 0
        return low, high

    def _at_real_positions(self, logits: Tensor, allowed: Tensor, q: Tensor, at_q: Tensor, at_k: Tensor) -> Tensor:
        t = at_q - at_k.transpose(-1, -2)
        for c, (scale, shift) in enumerate(self.channels):  # a channel at a time: nothing of S x S x d is ever held
            logits = logits + q[..., c : c + 1].to(logits.dtype) * self._psi(t, scale, shift).to(logits.dtype)
        return logits

    def extra_repr(self) -> str:
        shown = "" if self.head_dim is None else f"{self.head_dim}, "
        return f"{shown}wavelet={self.wavelet}, num_scales={self.num_scales}"


def ricker(x: Tensor, away: Tensor) -> Tensor:
    """(1 − x²) e^(−x²/2)."""
    return (1 - x.square()) * (-x.square() / 2).exp()


def gaussian(x: Tensor, away: Tensor) -> Tensor:
    """e^(−x²)."""
    return (-x.square()).exp()


def haar(x: Tensor, away: Tensor) -> Tensor:
    """1 on [−½, 0), −1 on [−1, −½), 0 elsewhere."""
    size = ((x >= -1) & (x < 0)).to(x.dtype)
    return torch.where(x < -0.5, -size, size)


def morlet(x: Tensor, away: Tensor) -> Tensor:
    """e^(−x²) cos(t − b)."""
    return (-x.square()).exp() * away.cos()


WAVELETS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ricker": ricker,
    "gaussian": gaussian,
    "haar": haar,
    "morlet": morlet,
}
"""ψ(x, t − b) by name, with x = (t − b)/a."""

# Beyond it |ψ| is below 1e-18.
_RADIUS = {"ricker": 10.0, "gaussian": 6.5, "haar": 1.0, "morlet": 6.5}


def _distances(p: Attention) -> tuple[int, int] | None:
    """Return the least and largest i − j of a query and a key, where all coordinates are whole."""
    where, chain = p.where, p.at

    def make() -> tuple[int, int] | None:
        i, j = where.query.coordinates(chain), where.key.coordinates(chain)
        if not (i.numel() and j.numel()):
            return 0, 0
        if not bool((i == i.round()).all() & (j == j.round()).all()):
            return None
        return int(i.min() - j.max()), int(i.max() - j.min())

    if any(m.learned for m in chain):
        return make()
    return where.memo(lambda: ("distances", tuple(m.key for m in chain)), make)


def _finite(name: str, values: Sequence[float]) -> list[float]:
    numbers = [float(v) for v in values]
    if not numbers or not all(math.isfinite(v) for v in numbers):
        raise ConfigError(f"{name} are finite numbers, at least one; got {tuple(values)!r}")
    return numbers
