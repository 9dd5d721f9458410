"""Spatial RoPE scaling: height and width turn more slowly in the first steps of denoising a video."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ropewalk.coordinates.denoising import progress_of
from ropewalk.coordinates.grid import grid_positions
from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, check_axes, full_precision
from ropewalk.core.errors import ConfigError, check_positive, suggest
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_rotary_width
from ropewalk.rotary.axial import AxialRoPE

Phase = Literal["linear", "wrapped"]

ABLATIONS = {
    "no_f": (0.0, 1.0, 1.0),
    "no_h": (1.0, 0.0, 1.0),
    "no_w": (1.0, 1.0, 0.0),
    "only_f": (1.0, 0.0, 0.0),
    "only_hw": (0.0, 1.0, 1.0),
}
"""Scales of (t, row, col) with which some axes do not turn at all."""


class SpatialRoPEScale(AxialRoPE):
    """Pair r of axis a turns by λ_a p_a · base^(−2r/d_a) in the steps of a window, and by p_a · base^(−2r/d_a) in all others.

    In the first steps of denoising a video it is decided where things move; a token prefers its own row and column in other
    frames then, so that an early wrong place draws its neighbours along. Smaller angles of height and width make it look
    farther. Time is left alone, and so are all later steps: outside the window the model is the original one, bit by bit.

    Args:
        head_dim: width d of a head, at least 6.
        scales: λ of (t, row, col), none negative; `ABLATIONS` has those with which axes do not turn.
        window: (a, b): steps with a ≤ progress < b; (0, 0.1) are the first 5 of 50, (0, 1) all, and (0, 0) none.
        widths: channels d_a; None: those of Wan, a third of the pairs, rounded down, for rows and for columns, the rest for time.
        base: of the frequencies.
        phase: "linear", the formula; "wrapped": λ times the angle modulo 2π in (−π, π], as the released code has it, which jumps
            at every turn and is no function of distances.
        scaled_heads: key heads that are scaled, counted from 0; None: all.
        num_kv_heads: key heads, where ``scaled_heads`` is given.
        pairing: "interleaved" as in Wan.

    Shapes: positions (b, S, 3) of (t, row, col), which say at which step they are (`ropewalk.at_step`, `ropewalk.at_progress`).
    A cache holds keys as the layer made them: a step of the window and one outside turn them differently.

    Raises:
        ConfigError: scales that are negative or not three, a window that ends before it begins, heads that do not exist.
        NeedsColumn: positions that say no step.

    Source: Yueyan Li, Haibo Wang, Caixia Yuan, Xiaojie Wang. Why Do Video Diffusion Models Violate Physics? Unveiling the Flaws
    in Attention Mechanisms. arXiv 2609.23658, 2026.
    """

    stores = "raw"

    def __init__(
        self,
        head_dim: int,
        scales: Sequence[float] = (1.0, 0.7, 0.7),
        window: tuple[float, float] = (0.0, 0.1),
        *,
        widths: Sequence[int] | None = None,
        base: float = 10_000.0,
        phase: Phase = "linear",
        scaled_heads: Sequence[int] | None = None,
        num_kv_heads: int | None = None,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(
            head_dim, 3, widths=wan_widths(head_dim) if widths is None else widths, base=base, pairing=pairing
        )
        self.scales, self.phase = _scales(scales), phase
        if phase not in ("linear", "wrapped"):
            raise ConfigError(f"phase is 'linear' or 'wrapped'; got {phase!r}.{suggest(phase, ('linear', 'wrapped'))}")
        start, stop = (float(x) for x in window)
        if not 0 <= start <= stop <= 1:
            raise ConfigError(f"window {window!r}: steps from a to below b of denoising, 0 ≤ a ≤ b ≤ 1")
        self.window = (start, stop)
        check_positive(num_kv_heads=num_kv_heads)
        self.heads: tuple[bool, ...] = (True,)
        if scaled_heads is not None:
            if num_kv_heads is None:
                raise ConfigError("scaled_heads are some of the key heads: give num_kv_heads=")
            if not set(scaled_heads) <= set(range(num_kv_heads)):
                raise ConfigError(f"scaled_heads {list(scaled_heads)} of {num_kv_heads} key heads, counted from 0")
            self.heads = tuple(h in scaled_heads for h in range(num_kv_heads))

    def active(self, tokens: Tokens) -> Tensor:
        """Return whether each row is in the window, (b,)."""
        progress = progress_of(tokens)
        return (self.window[0] <= progress) & (progress < self.window[1])

    def scale(self, tokens: Tokens) -> Tensor:
        """Return λ inside the window, (b, heads or 1, 3)."""
        return torch.tensor(self.scales, dtype=torch.float64, device=tokens.device)[None, None]

    def scaled(self, angles: Tensor, tokens: Tokens) -> Tensor:
        """Return the angles (b, S, P) as they are at the step of the tokens, (b, heads or 1, S, P)."""
        heads = torch.tensor(self.heads, device=angles.device)
        inside = self.active(tokens)[:, None] & heads  # (b, heads)
        scale = torch.where(inside[..., None], self.scale(tokens), 1.0)
        pairs = [axis for axis, width in enumerate(self.widths) for _ in range(width // 2)]
        scale, angles = scale[..., pairs][:, :, None], angles[:, None]
        if self.phase == "linear":
            return angles * scale
        wrapped = math.pi - (math.pi - angles).remainder(2 * math.pi)  # (−π, π]
        return torch.where(scale == 1.0, angles, wrapped * scale)

    def tables(self, tokens: Tokens, chain: Chain, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        def make() -> tuple[Tensor, Tensor]:
            position = self.coordinates(tokens, chain)
            check_axes(self, position, self.axes)
            angles = self.scaled(self.angles(position), tokens)
            return rotation.tables(angles, dtype, self.magnitude, self.pairing)

        if any(m.learned for m in chain) or any(True for _ in self.parameters()):
            return make()
        return tokens.memo(lambda: ("rotary", self.key(), tuple(m.key for m in chain), dtype), make)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scales={list(self.scales)}, window={list(self.window)}, phase={self.phase}"


class LearnedSpatialRoPEScale(SpatialRoPEScale):
    """log λ = μ + g(e_τ): scales of height and width that are learned, as a function of the progress τ inside the window.

    g is Linear, SiLU, Linear on a sinusoidal embedding of τ, and its last layer starts at zero, so that nothing is scaled at
    first. The authors found that training leaves it there: motion is a small part of the loss.

    Args:
        head_dim: width d of a head.
        window: see `SpatialRoPEScale`.
        widths: likewise.
        base: likewise.
        phase: likewise.
        num_kv_heads: key heads that learn scales of their own; None: all have the same.
        hidden: width of the layer between.
        pairing: see `SpatialRoPEScale`.

    Shapes, errors, source: see `SpatialRoPEScale`.
    """

    WIDTH = 256

    def __init__(
        self,
        head_dim: int,
        window: tuple[float, float] = (0.0, 0.1),
        *,
        widths: Sequence[int] | None = None,
        base: float = 10_000.0,
        phase: Phase = "linear",
        num_kv_heads: int | None = None,
        hidden: int = 128,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(head_dim, (1.0, 1.0, 1.0), window, widths=widths, base=base, phase=phase, pairing=pairing)
        check_positive(num_kv_heads=num_kv_heads, hidden=hidden)
        heads = 1 if num_kv_heads is None else num_kv_heads
        self.heads = (True,) * heads
        self.mean = nn.Parameter(torch.zeros(heads, 2))
        self.net = nn.Sequential(nn.Linear(self.WIDTH, hidden), nn.SiLU(), nn.Linear(hidden, 2 * heads))
        last = self.net[2]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def log_scale(self, progress: Tensor) -> Tensor:
        """Return log λ of (row, col), (b, heads, 2)."""
        rate = 10_000.0 ** (-torch.arange(self.WIDTH // 2, device=progress.device) / (self.WIDTH // 2))
        angles = 1000.0 * progress.double()[:, None] * rate
        embedded = torch.cat([angles.cos(), angles.sin()], -1).to(self.mean.dtype)
        with full_precision(embedded):
            return self.mean + self.net(embedded).unflatten(-1, (-1, 2))

    def scale(self, tokens: Tokens) -> Tensor:
        space = self.log_scale(progress_of(tokens)).double().exp()
        return torch.cat([torch.ones_like(space[..., :1]), space], -1)

    def penalty(self, progress: Tensor, weight: float = 1e-4) -> Tensor:
        """Return what is added to the loss to hold log λ at 0: ``weight`` times its mean square."""
        return weight * self.log_scale(progress).square().mean()


class SpatialTemporalReweight(Encoding):
    """q and k channels of time times √a, those of rows and columns times √(1 − a): logits weigh time by a, without other phases.

    Args:
        head_dim: width d of a head.
        time: a, from 0 to 1.
        widths: channels of (t, row, col); None: those of Wan.
        pairing: of the rotation beside it.

    Source: see `SpatialRoPEScale`; from the authors' toolkit.
    """

    def __init__(
        self,
        head_dim: int,
        time: float = 0.5,
        *,
        widths: Sequence[int] | None = None,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__()
        if not 0 <= time <= 1:
            raise ConfigError(f"time is the weight of time, from 0 to 1; got {time!r}")
        self.layout = AxialRoPE(head_dim, 3, widths=wan_widths(head_dim) if widths is None else widths, pairing=pairing)
        self.time = float(time)

    def _weights(self, x: Tensor) -> Tensor:
        own = (math.sqrt(self.time), math.sqrt(1 - self.time), math.sqrt(1 - self.time))
        pairs = [w for w, width in zip(own, self.layout.widths, strict=True) for _ in range(width // 2)]
        weights = torch.tensor(pairs, dtype=x.dtype, device=x.device)
        return weights.repeat_interleave(2) if self.layout.pairing == "interleaved" else weights.repeat(2)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        self.layout.fit(p.q.shape[-1])
        weights = self._weights(p.q)
        return p.map_queries(lambda q: q * weights).map_keys(lambda k: k * weights)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem  # the weights are the same everywhere

    def extra_repr(self) -> str:
        return f"time={self.time}"


def wan_widths(head_dim: int) -> tuple[int, int, int]:
    """Return the channels of (t, row, col): c − 2⌊c/3⌋, ⌊c/3⌋ and ⌊c/3⌋ of the c pairs, 22, 21 and 21 of 64."""
    check_rotary_width(head_dim)
    third = head_dim // 6
    if not third:
        raise ConfigError(f"three axes and {head_dim} channels; each axis needs a pair, so head_dim is at least 6")
    return head_dim - 4 * third, 2 * third, 2 * third


def rope3d(
    grid: tuple[int, int, int],
    scales: Sequence[float] = (1.0, 0.7, 0.7),
    head_dim: int = 128,
    *,
    widths: Sequence[int] | None = None,
    base: float = 10_000.0,
    phase: Phase = "linear",
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of a clip with scaled axes, (frames · rows · columns, head_dim / 2) each in float64, row by row.

    Args:
        grid: frames, rows, columns.
        scales: λ of each.
        head_dim: width of a head.
        widths: see `SpatialRoPEScale`.
        base: likewise.
        phase: likewise.
    """
    made = SpatialRoPEScale(head_dim, scales, (0.0, 1.0), widths=widths, base=base, phase=phase)
    tokens = grid_positions(*grid).query
    tokens = tokens.with_sequence(progress=torch.zeros(1, dtype=torch.float64))
    cos, sin = made.tables(tokens, (), torch.float64)
    return cos[0, 0], sin[0, 0]


def _scales(scales: Sequence[float]) -> tuple[float, float, float]:
    if len(scales) != 3 or not all(math.isfinite(x) and x >= 0 for x in scales):
        raise ConfigError(f"scales {list(scales)}: one of time, of rows and of columns, none negative")
    t, row, col = (float(x) for x in scales)
    return t, row, col
