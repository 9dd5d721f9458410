"""Embeddings made of orthogonal functions of the position: polynomials, cosines, wavelets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from ropewalk.coordinates.unit_interval import Extension, UnitInterval
from ropewalk.core.encoding import Embedding, ModuleMap
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Chain, Positions

# The paper's own normalisation, choice of wavelets and treatment of long inputs are not public: what follows is the
# mathematics that its names stand for.


class _Functions(Embedding):
    """x_p ← x_p + g · [φ_0(p), ..., φ_{d−1}(p)], with g = 1 or learned.

    Write ``functions(position)``. The width may be left out and is then that of the first embeddings.
    """

    def __init__(self, learned_gain: bool = False) -> None:
        super().__init__()
        self.hidden_size: int | None = None
        self.gain = nn.Parameter(torch.ones(())) if learned_gain else None

    def start(self, hidden_size: int | None) -> None:
        """Take the width, where it was given; the last thing that a constructor does."""
        check_positive(hidden_size=hidden_size)
        if hidden_size is not None:
            self.fit(hidden_size)

    def fit(self, dim: int) -> None:
        if self.hidden_size is None:
            self.prepare(dim)
            self.hidden_size = dim
        elif self.hidden_size != dim:
            raise ShapeError(
                f"{type(self).__name__} was made for width {self.hidden_size} and the embeddings have {dim}"
            )

    def prepare(self, dim: int) -> None:
        """Refuse a width that cannot be, and derive what depends on it."""

    @property
    def width(self) -> int:
        """The width, once it is known."""
        if self.hidden_size is None:
            raise ConfigError(f"{type(self).__name__} has no width yet: give hidden_size, or embed something first")
        return self.hidden_size

    def functions(self, position: Tensor) -> Tensor:
        """Return the values of the functions, (..., d) float64."""
        raise NotImplementedError

    def table(self, position: Tensor) -> Tensor:
        values = self.functions(position)
        return values if self.gain is None else values * self.gain

    def extra_repr(self) -> str:
        return f"{self.hidden_size}"


# ---- polynomials -----------------------------------------------------------------------------------------------------


class Legendre(_Functions):
    """x_p ← x_p + [c_0 P_0(u), ..., c_{d−1} P_{d−1}(u)],  u = 2p/(L − 1) − 1.

    P_k are the Legendre polynomials: P_0 = 1, P_1 = u, (k + 1) P_{k+1} = (2k + 1) u P_k − k P_{k−1}, orthogonal on [−1, 1].

    Args:
        hidden_size: width d of the embeddings; None: taken from the first embeddings.
        length: L; None where ``extension`` measures it.
        extension: what becomes of positions from L on, see `UnitInterval`. "rescale" needs no length and refuses a cache;
            with "clamp", "reflect" and "raw" decoding is consistent. P_k grows like (|u| + √(u² − 1))^k outside [−1, 1], so
            "raw" soon overflows.
        orthonormal: c_k = √((2k + 1)/2), which makes ∫ φ_m φ_n = δ_mn; otherwise c_k = 1 and |φ_k| ≤ 1.
        drop_constant: leave P_0 out and start from P_1.
        learned_gain: learn a factor of the whole, from 1 on.

    Shapes: x (B, S, d); positions (b, S), integer or real.

    Raises:
        PositionError: a polynomial exceeds the range of float32 ("raw"); a negative position ("rescale").

    Source: Yin Li. Theoretical Analysis of Positional Encodings in Transformer Models: Impact on Expressiveness and
    Generalization. arXiv 2506.06398, 2025.
    """

    def __init__(
        self,
        hidden_size: int | None = None,
        length: int | None = None,
        *,
        extension: Extension = "rescale",
        orthonormal: bool = False,
        drop_constant: bool = False,
        learned_gain: bool = False,
    ) -> None:
        super().__init__(learned_gain)
        self.interval = UnitInterval(length, extension)
        self.orthonormal, self.drop_constant = orthonormal, drop_constant
        self.start(hidden_size)

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        return super().embed(x, positions, (*at, ModuleMap(self.interval)))

    def table(self, position: Tensor) -> Tensor:
        """Return what is added at each place u of [−1, 1], to which `embed` brings the positions."""
        values = super().table(position)
        if self.interval.extension == "raw":  # elsewhere nothing leaves [-1, 1]
            fits = values.abs() <= torch.finfo(torch.float32).max
            message = "a polynomial outside [-1, 1] exceeds the range of float32; choose another extension, or a larger length"
            if is_compiling():
                torch._assert_async(fits.all(), message)
            elif not values.is_meta and not bool(fits.all()):
                raise PositionError(f"at {position.abs().max().item():g} times half the length {message}")
        return values

    def functions(self, position: Tensor) -> Tensor:
        first = int(self.drop_constant)
        values = self.polynomials(position, self.width + first)[..., first:]
        if self.orthonormal:
            degree = torch.arange(first, self.width + first, dtype=torch.float64, device=position.device)
            values = values * self.normaliser(degree)
        return values

    def polynomials(self, u: Tensor, count: int) -> Tensor:
        """Return P_0 ... P_{count − 1} at u, (..., count)."""
        return legendre(u, count)

    def normaliser(self, degree: Tensor) -> Tensor:
        """Return c_k of the orthonormal family."""
        return ((2 * degree + 1) / 2).sqrt()

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, orthonormal={self.orthonormal}"


class Chebyshev(Legendre):
    """x_p ← x_p + [c_0 T_0(u), ..., c_{d−1} T_{d−1}(u)],  T_k(cos φ) = cos kφ,  u = 2p/(L − 1) − 1.

    The Chebyshev polynomials, orthogonal on [−1, 1] with weight 1/√(1 − u²).

    Args:
        hidden_size: width d of the embeddings; None: taken from the first embeddings.
        length: L; None where ``extension`` measures it.
        extension: what becomes of positions from L on; as in `Legendre`.
        orthonormal: c_0 = √(1/π), c_k = √(2/π); otherwise c_k = 1.
        drop_constant: leave T_0 out and start from T_1.
        learned_gain: learn a factor of the whole, from 1 on.

    Shapes: x (B, S, d); positions (b, S), integer or real.

    Raises:
        PositionError: as in `Legendre`.

    Source: the family of Yin Li. Theoretical Analysis of Positional Encodings in Transformer Models: Impact on
    Expressiveness and Generalization. arXiv 2506.06398, 2025; this member is ours.
    """

    def polynomials(self, u: Tensor, count: int) -> Tensor:
        return chebyshev(u, count)

    def normaliser(self, degree: Tensor) -> Tensor:
        return ((2 - (degree == 0).to(degree)) / math.pi).sqrt()


def legendre(u: Tensor, count: int) -> Tensor:
    """Return the Legendre polynomials P_0 ... P_{count − 1} at u, (..., count)."""
    values = [torch.ones_like(u), u]
    for k in range(1, count - 1):
        values.append(((2 * k + 1) * u * values[k] - k * values[k - 1]) / (k + 1))
    return torch.stack(values[:count], -1)


def chebyshev(u: Tensor, count: int) -> Tensor:
    """Return the Chebyshev polynomials T_0 ... T_{count − 1} at u, (..., count)."""
    k = torch.arange(count, dtype=torch.float64, device=u.device)
    u = u[..., None]
    inside = (k * u.clamp(-1, 1).acos()).cos()
    sign = torch.where((u < 0) & (k % 2 == 1), -1.0, 1.0)
    return torch.where(u.abs() <= 1, inside, sign * (k * u.abs().clamp(min=1).acosh()).cosh())


# ---- cosines ---------------------------------------------------------------------------------------------------------


class CosineTransform(_Functions):
    """x_p ← x_p + [c_k cos(π (2p + 1) k / 2L)], k = 0 ... d − 1,  c_0 = √(1/L), c_k = √(2/L).

    The columns of the discrete cosine transform, orthonormal on the positions 0 ... L − 1. From L on they run backwards:
    position 2L − 1 − p has the code of p.

    Args:
        hidden_size: width d of the embeddings; None: taken from the first embeddings. Channels from L on are 0.
        length: L.
        learned_gain: learn a factor of the whole, from 1 on.

    Shapes: x (B, S, d); positions (b, S), integer or real.

    Source: the family of Yin Li. Theoretical Analysis of Positional Encodings in Transformer Models: Impact on
    Expressiveness and Generalization. arXiv 2506.06398, 2025; this member is ours.
    """

    def __init__(self, hidden_size: int | None = None, length: int = 512, *, learned_gain: bool = False) -> None:
        super().__init__(learned_gain)
        check_positive(length=length)
        self.length = length
        self.start(hidden_size)

    def functions(self, position: Tensor) -> Tensor:
        k = torch.arange(self.width, dtype=torch.float64, device=position.device)
        # Whole turns are taken off first: far out the product loses its last digits otherwise.
        turns = torch.remainder((2 * position[..., None] + 1) * k, 4 * self.length) / (4 * self.length)
        size = (2 - (k == 0).to(k)) / self.length
        return (2 * math.pi * turns).cos() * size.sqrt() * (k < self.length)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, length={self.length}"


# ---- wavelets --------------------------------------------------------------------------------------------------------

Family = Literal["haar", "daubechies4"]

_ROOT = math.sqrt(3)
_TAPS: dict[str, tuple[float, ...]] = {
    "haar": (1 / math.sqrt(2), 1 / math.sqrt(2)),
    "daubechies4": tuple(t / (4 * math.sqrt(2)) for t in (1 + _ROOT, 3 + _ROOT, 3 - _ROOT, 1 - _ROOT)),
}


class WaveletBasis(_Functions):
    """x_p ← x_p + H[p],  H (L, d) with Hᵀ H = I.

    The columns of H are the orthonormal wavelets of L = 2^J positions, coarse to fine: the constant L^(−1/2), then
    2^(−j/2) ψ(2^(−j) p − k) for j = J, ..., 1 and k = 0, ..., L/2^j − 1. For Haar ψ is 1 on [0, ½) and −1 on [½, 1).

    Args:
        hidden_size: width d of the embeddings; None: taken from the first embeddings. Channels from L on are 0.
        length: L, a power of two.
        wavelet: "haar", or "daubechies4" (four taps, periodic at the ends).
        truncate: allow d < L. Only the coarse columns are left then, and neighbouring positions share a code (Haar: in runs
            of 2^(J − m) for d = 2^m); a warning says how many codes there are. `SquareWaves` tells positions apart with
            2 log2 L channels.
        learned_gain: learn a factor of the whole, from 1 on.

    Shapes: x (B, S, d); positions (b, S), whole numbers in [0, L).

    Raises:
        ConfigError: L is no power of two, or d < L without ``truncate``.
        PositionError: a position outside, or a fraction.

    Source: Yin Li. Theoretical Analysis of Positional Encodings in Transformer Models: Impact on Expressiveness and
    Generalization. arXiv 2506.06398, 2025.
    """

    basis: Tensor

    def __init__(
        self,
        hidden_size: int | None = None,
        length: int = 512,
        *,
        wavelet: Family = "haar",
        truncate: bool = False,
        learned_gain: bool = False,
    ) -> None:
        super().__init__(learned_gain)
        check_positive(length=length)
        if length & (length - 1):
            raise ConfigError(
                f"wavelets halve the length again and again, so it is a power of two; got length={length}"
            )
        if wavelet not in _TAPS:
            raise ConfigError(f"wavelet is one of {', '.join(_TAPS)}; got {wavelet!r}.{suggest(wavelet, _TAPS)}")
        self.length, self.wavelet, self.truncate = length, wavelet, truncate
        self.start(hidden_size)

    def prepare(self, dim: int) -> None:
        if dim < self.length:
            if not self.truncate:
                raise ConfigError(
                    f"{self.length} wavelets on {self.length} positions, and a width of {dim}: the coarse ones that fit give "
                    "neighbours the same code. Use SquareWaves, or allow it with truncate=True"
                )
            codes = len(torch.unique(wavelet_basis(self.length, dim, self.wavelet), dim=0))
            warnings.warn(
                f"the {dim} coarsest of {self.length} wavelets leave {codes} codes for {self.length} positions: the others "
                "coincide with a neighbour",
                stacklevel=5,
            )
        self.derive("basis", lambda: wavelet_basis(self.length, dim, self.wavelet))

    def functions(self, position: Tensor) -> Tensor:
        index = position.long()
        inside = (index == position) & (index >= 0) & (index < self.length)
        if is_compiling():
            torch._assert_async(inside.all(), f"a position is outside the {self.length} that wavelets were made for")
        elif not position.is_meta and not bool(inside.all()):
            raise PositionError(
                f"positions reach {position.max().item():g} (least {position.min().item():g}) and the wavelets are defined at "
                f"the whole numbers 0 ... {self.length - 1}; build it with a larger length, or use SquareWaves"
            )
        return self.exact("basis", position.device)[index]

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, length={self.length}, wavelet={self.wavelet}"


class SquareWaves(_Functions):
    """x_p ← x_p + [s(p/2), s(p/2 + ¼), s(p/4), s(p/4 + ¼), ..., s(p/2^J), s(p/2^J + ¼)],  s(y) = 1 if y − ⌊y⌋ < ½, else −1.

    Haar wavelets continued periodically: two square waves an octave, a quarter of a period apart. Positions below 2^J have
    codes of their own, beyond they repeat. The set is repeated until d channels are full.

    Args:
        hidden_size: width d ≥ 2J of the embeddings; None: taken from the first embeddings.
        length: L; J = max(1, ⌈log2 L⌉).
        learned_gain: learn a factor of the whole, from 1 on.

    Shapes: x (B, S, d); positions (b, S), integer or real.

    Raises:
        ConfigError: d < 2J.

    Source: Yin Li. Theoretical Analysis of Positional Encodings in Transformer Models: Impact on Expressiveness and
    Generalization. arXiv 2506.06398, 2025; the periodic form is ours.
    """

    def __init__(self, hidden_size: int | None = None, length: int = 512, *, learned_gain: bool = False) -> None:
        super().__init__(learned_gain)
        check_positive(length=length)
        self.length = length
        self.octaves = max(1, (length - 1).bit_length())
        self.start(hidden_size)

    def prepare(self, dim: int) -> None:
        if dim < 2 * self.octaves:
            raise ConfigError(
                f"length={self.length} takes {self.octaves} octaves of two channels, and the width is {dim}; give a width of at "
                f"least {2 * self.octaves}, or a length up to {2 ** (dim // 2)}"
            )

    def functions(self, position: Tensor) -> Tensor:
        channel = torch.arange(self.width, device=position.device) % (2 * self.octaves)
        turns = position[..., None] / torch.exp2((channel // 2 + 1).double()) + 0.25 * (channel % 2)
        return torch.where(torch.remainder(turns, 1) < 0.5, 1.0, -1.0).double()

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, length={self.length}"


def wavelet_embedding(
    hidden_size: int, length: int = 512, *, wavelet: Family = "haar", truncate: bool = False, learned_gain: bool = False
) -> WaveletBasis | SquareWaves:
    """x_p ← x_p + H[p] with orthonormal wavelets H (L, L), where they fit: d ≥ L or ``truncate``.

        x_p ← x_p + [s(p/2^j), s(p/2^j + ¼)]_j, periodic square waves, otherwise

    Args:
        hidden_size: width d of the embeddings.
        length: L; a power of two where it is H.
        wavelet: "haar" or "daubechies4"; only Haar has the periodic form.
        truncate: keep the coarse columns of H for d < L.
        learned_gain: learn a factor of the whole, from 1 on.

    Source: Yin Li. Theoretical Analysis of Positional Encodings in Transformer Models: Impact on Expressiveness and
    Generalization. arXiv 2506.06398, 2025.
    """
    check_positive(hidden_size=hidden_size, length=length)
    if hidden_size >= length or truncate:
        return WaveletBasis(hidden_size, length, wavelet=wavelet, truncate=truncate, learned_gain=learned_gain)
    if wavelet != "haar":
        raise ConfigError(
            f"wavelet={wavelet!r} has no periodic form: give a length up to hidden_size={hidden_size}, or truncate=True"
        )
    return SquareWaves(hidden_size, length, learned_gain=learned_gain)


def wavelet_basis(length: int, count: int, wavelet: Family = "haar") -> Tensor:
    """Return the ``count`` coarsest orthonormal wavelets of a power of two of positions as columns, (length, count) float64.

    Built from the top: each octave doubles the positions, filters what there is and adds its own wavelets. Columns beyond
    ``length`` are 0.
    """
    low = _TAPS[wavelet]
    high = [(-1) ** m * t for m, t in enumerate(reversed(low))]

    def widened(columns: Tensor, taps: Sequence[float]) -> Tensor:
        spread = torch.stack([columns, torch.zeros_like(columns)], 1).flatten(0, 1)
        return torch.stack([t * spread.roll(m, 0) for m, t in enumerate(taps)]).sum(0)

    basis = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    while (half := basis.shape[0]) < length:
        own = torch.eye(half, max(0, min(half, count - half)), dtype=torch.float64, device="cpu")
        basis = torch.cat([widened(basis, low), widened(own, high)], 1)
    return nn.functional.pad(basis, (0, max(0, count - length)))
