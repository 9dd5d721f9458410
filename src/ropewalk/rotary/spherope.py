"""SpheRoPE: the columns of a picture wrap around and its first and last rows are poles, in models trained on flat pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation, share_out
from ropewalk.coordinates.blocks import Image, Table, Video
from ropewalk.coordinates.layout import layout
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.coordinates.whole_video import demand
from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest
from ropewalk.core.rotation import Pairing, tables
from ropewalk.frequencies.spectrum import check_base, geometric
from ropewalk.rotary.axial import axis_widths
from ropewalk.rotary.multi_axis import MultiAxisRoPE
from ropewalk.rotary.vector_rope import key_heads

Variant = Literal["flux1", "flux2", "ltx"]


def sphere(row: Tensor, column: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return (cos θ cos φ, cos θ sin φ) of a cell of an equirectangular picture: θ from pole to pole, φ once around.

    θ = π row / (rows − 1) − π/2 has both ends, φ = 2π column / columns − π has the first: column ``columns`` is column 0.

    Raises:
        PositionError: a row above the first or below the last, where the latitude would be beyond a pole.
    """
    demand(
        ((row >= 0) & (row <= (rows - 1).clamp(min=0))).all(),
        "rows of a panorama run from 0, a pole, to rows - 1, the other; a row beyond them has a latitude out of range: count "
        "rows from 0 and give the height of the whole panorama",
    )
    latitude = math.pi * row / (rows - 1).clamp(min=1) - math.pi / 2
    longitude = 2 * math.pi * column / columns.clamp(min=1) - math.pi
    return latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin()


# ---- where the cells of a panorama are: the angle of every pair ------------------------------------------------------


class Panorama(Scheme):
    """Angles of every pair of channels. Every image and video is a panorama; reference images are flat, as in the host model."""

    def advance(self, table: Table) -> Tensor:
        return torch.zeros_like(table["tokens"])

    def at(self, cells: Cells) -> Tensor:
        return torch.where(cells.visual[..., None], self.place(cells), self.text(cells))

    def text(self, cells: Cells) -> Tensor:
        """Return the angles of tokens that are of no picture, broadcastable: nothing turns them."""
        return torch.zeros_like(cells.position)[..., None]


@dataclass(frozen=True)
class FluxPanorama(Panorama):
    """As FLUX.1 has it; see `SpheRoPE`.

    Args:
        widths: channels of time, height and width.
        base: of their frequencies.
        max_error: see `SpheRoPE`.
        time: of pictures.
        step: time between reference images.
    """

    widths: tuple[int, ...]
    base: float = 10_000.0
    max_error: float = 0.06
    time: float = 1.0
    step: float = 1.0

    def __post_init__(self) -> None:
        check_base(self.base)
        if not (math.isfinite(self.max_error) and self.max_error >= 0):
            raise ConfigError(
                f"max_error is the share by which a frequency may be changed, 0 or more; got {self.max_error!r}"
            )
        if not math.isfinite(self.time):
            raise ConfigError(f"time_position is a finite number; got {self.time!r}")

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(f"{axis}{i}" for axis, n in zip("thwl", self.widths, strict=False) for i in range(n // 2))

    def place(self, cells: Cells) -> Tensor:
        reference, row, column = cells["reference"], cells.row, cells.column
        time = torch.where(reference > 0, self.step * reference, self.time) + cells.frame
        flat = column[..., None] * self._ladder(2, column)
        around = self.width(row, column, cells["rows"], cells["columns"])
        return torch.cat(
            [
                time[..., None] * self._ladder(0, time),
                row[..., None] * self._ladder(1, row),
                torch.where((reference > 0)[..., None], flat, around),
            ],
            -1,
        )

    def _ladder(self, axis: int, like: Tensor) -> Tensor:
        width = self.widths[axis]
        return torch.tensor(
            geometric(width, self.base).inv_freq if width else (), dtype=torch.float64, device=like.device
        )

    # ---- the width band ---------------------------------------------------------------------------------------

    def width(self, row: Tensor, column: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the angles of the pairs of width, (b, S) each → (b, S, n) float64."""
        w = self._ladder(2, column)
        whole, wraps = self._harmonics(columns.clamp(min=1)[..., None] * w / (2 * math.pi))
        x, y = (c[..., None] for c in self.chart(row, column, rows, columns))
        even = torch.arange(len(w), device=w.device) % 2 == 0
        around = column[..., None] * whole * (2 * math.pi / columns.clamp(min=1))[..., None]
        return torch.where(wraps, around, torch.where(even, x, y) * w)

    def chart(self, row: Tensor, column: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coordinates X and Y on a sphere of the circumference of the picture."""
        x, y = sphere(row, column, rows, columns)
        radius = columns / (2 * math.pi)
        return radius * x, radius * y

    def _harmonics(self, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Whole turns over the width of each pair, and whether it takes them: (..., n)."""
        whole = turns.round()
        close = (turns - whole).abs() / (turns + 1e-8) <= self.max_error
        wraps = ((turns >= 1) & close).long().cumprod(-1)  # up to the first that does not
        return self.stretched(whole, wraps), wraps > 0

    def stretched(self, whole: Tensor, wraps: Tensor) -> Tensor:
        """Return the whole turns, for hosts that run beyond the width of training."""
        return whole

    def split(self, columns: int) -> int:
        """Return how many pairs of width take whole turns around a picture of so many columns, the first ones."""
        check_positive(columns=columns)
        w = self._ladder(2, torch.empty(0, device="cpu"))
        return int(self._harmonics(columns * w / (2 * math.pi))[1].sum())


@dataclass(frozen=True)
class Flux2Panorama(FluxPanorama):
    """As FLUX.2 has it, with a fourth axis that counts text; see `SpheRoPEFlux2`."""

    base: float = 2000.0
    time: float = 0.0
    step: float = 10.0
    scale: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.scale) and self.scale >= 1):
            raise ConfigError(
                f"scale is how much wider pictures are than those of training, at least 1; got {self.scale!r}"
            )

    def place(self, cells: Cells) -> Tensor:
        made = super().place(cells)
        return torch.cat([made, made.new_zeros(*made.shape[:-1], self.widths[3] // 2)], -1)

    def text(self, cells: Cells) -> Tensor:
        counted = cells.text[..., None] * self._ladder(3, cells.position)
        return torch.cat([counted.new_zeros(*counted.shape[:-1], sum(self.widths[:3]) // 2), counted], -1)

    def chart(self, row: Tensor, column: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        x, y = sphere(row, column, rows, columns)
        radius = columns / self.scale
        return radius * (x + 1), radius * (y + 1)

    def stretched(self, whole: Tensor, wraps: Tensor) -> Tensor:
        last = wraps.sum(-1, keepdim=True) - 1
        step = torch.arange(whole.shape[-1], dtype=torch.float64, device=whole.device) / last.clamp(min=1)
        return (whole / torch.where(last > 0, self.scale**step, 1.0)).round().clamp(min=1)


@dataclass(frozen=True)
class LTXPanorama(Panorama):
    """As LTX has it, over the channels of all heads together; see `SpheRoPELTX`."""

    heads: int
    pairs: int
    base: float = 10_000.0
    threshold: float = 1.0
    radius: float = 1.0
    patch: int = 1
    pixels: int = 32
    extent: float = 2048.0
    seconds: float = 20.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_positive(heads=self.heads, pairs=self.pairs, patch=self.patch, pixels=self.pixels)
        for name in ("threshold", "radius", "extent", "seconds"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name} is a positive number; got {getattr(self, name)!r}")
        if self.number < 2:
            raise ConfigError(f"{2 * self.heads * self.pairs} channels of all heads are too few; give 12 or more")

    @property
    def number(self) -> int:
        """Frequencies of an axis."""
        return self.heads * self.pairs // 3

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(f"p{i}" for i in range(self.heads * self.pairs))

    def _ladder(self, like: Tensor) -> Tensor:
        steps = torch.arange(self.number, dtype=torch.float64, device=like.device) / (self.number - 1)
        return math.pi / 2 * self.base**steps

    def _along(self, cell: Tensor) -> Tensor:
        """Where a row or column is, from −1 to 1 over the largest extent of training, in pixels."""
        return 2 * (cell * self.patch + self.patch / 2) * self.pixels / self.extent - 1

    def place(self, cells: Cells) -> Tensor:
        w = self._ladder(cells.position)
        time = 2 * cells.seconds / self.seconds - 1
        flat = self._along(cells.column)[..., None] * w
        around = self.width(cells.row, cells.column, cells["rows"], cells["columns"])
        width = torch.where((cells["reference"] > 0)[..., None], flat, around)
        # One pair of each axis in turn; pairs that are left over stand first and do not turn.
        axes = torch.stack([time[..., None] * w, self._along(cells.row)[..., None] * w, width], -1).flatten(-2)
        return torch.nn.functional.pad(axes, (self.heads * self.pairs - 3 * self.number, 0))

    def width(self, row: Tensor, column: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the angles of the pairs of width, (b, S) each → (b, S, n) float64."""
        w = self._ladder(column)
        columns = columns.clamp(min=1)
        span = 2 * columns * self.patch * self.pixels / self.extent
        total = span[..., None] * w
        cycles = total / (2 * math.pi)
        too_much = total - 2 * math.pi * cycles.round()
        around = self._along(column)[..., None] * w - (column / columns)[..., None] * too_much
        radius = self.radius * span / 2
        x, y = ((radius * c)[..., None] * w for c in sphere(row, column, rows, columns))
        even = torch.arange(len(w), device=w.device) % 2 == 0
        return torch.where(cycles >= self.threshold, around, torch.where(even, x, y))


def _each_pair(scheme: Scheme, heads: int = 1) -> Allocation:
    """Every pair of every head turns by the angle that the scheme gives it."""
    pairs = len(scheme.axes) // heads
    return Allocation(tuple(tuple(range(h * pairs, (h + 1) * pairs)) for h in range(heads)), scheme.axes, "own")


# ---- the encodings -------------------------------------------------------------------------------------------------


class SpheRoPE(MultiAxisRoPE):
    """Pair i of width turns by c · 2π k̂_i / W for i < s, after that by X ω_i (i even) or Y ω_i (i odd);  time and height as ever.

    k_i = W ω_i / 2π are the turns of a pair over W columns, k̂_i the nearest whole number, and s the first pair with k_i < 1 or
    |k_i − k̂_i| / k_i > max_error. Fast pairs then wrap around exactly. Slow ones, which cannot, turn by the place of the cell on
    a sphere of that circumference: X = W/2π cos θ cos φ, Y = W/2π cos θ sin φ, which wraps as well, and which is one point at
    each pole. For panoramas from models trained on flat pictures, without training.

    Args:
        head_dim: width of a head.
        widths: channels of time, height and width; None: 1/8, 7/16 and 7/16, as FLUX.1 has (16, 56, 56) of 128.
        base: of the frequencies.
        max_error: by which share a frequency may be changed.
        time_position: of pictures. 1 as in the released code; FLUX.1 itself has 0.
        pairing: "interleaved" as in the host.

    Shapes: positions of a layout, which says how large the panorama is: ``rw.layout([rw.Text(512), rw.Image(32, 64)])``. Every
    image and video is a panorama, except reference images (``rw.Image(..., reference=n)``), which are flat, at time n. Frames
    are one time apart. Text does not turn. Positions (b, S, d/2) are taken as the angles they are.

    Raises:
        ConfigError: channels that are not shared out in pairs, a max_error below 0.
        PositionError: plain positions, which do not say how wide the panorama is.

    Source: SpheRoPE: Zero-Shot Optimization-Free 360° Panorama Generation with Spherical RoPE. arXiv 2606.32033, 2026; from its
    code. `ropewalk.lab.panorama` has what goes with it: noise, guidance, decoding.
    """

    def __init__(
        self,
        head_dim: int,
        widths: Sequence[int] | None = None,
        base: float = 10_000.0,
        *,
        max_error: float = 0.06,
        time_position: float = 1.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        if widths is None:
            check_positive(head_dim=head_dim)
            widths = [2 * n for n in share_out(head_dim // 2, eighths=(3.5, 3.5))]
        scheme = FluxPanorama(axis_widths(head_dim, 3, widths), float(base), float(max_error), float(time_position))
        super().__init__(head_dim, _each_pair(scheme), scheme, base=base, pairing=pairing)


class SpheRoPEFlux2(MultiAxisRoPE):
    """`SpheRoPE` for FLUX.2: pair i < s of width makes max(1, round(k̂_i / scale^{i/(s−1)})) turns, and
    X = (cos θ cos φ + 1) W/scale,
    Y likewise.

    There are four axes, of which the last counts text. The slower of the pairs that wrap are slowed down to what the model knows
    from pictures ``scale`` times narrower, and X and Y are in the range of its columns.

    Args:
        head_dim: width of a head.
        widths: channels of time, height, width and text; None: equal shares.
        base: of the frequencies.
        scale: how much wider the panorama is than pictures of training, at least 1.
        max_error: see `SpheRoPE`.
        pairing: "interleaved" as in the host.

    Shapes, errors, source: see `SpheRoPE`. Pictures are at time 0 and reference image n, which is flat, at time 10 n, as in the
    host; text is counted on its own axis, pictures left out.
    """

    def __init__(
        self,
        head_dim: int,
        widths: Sequence[int] | None = None,
        base: float = 2000.0,
        *,
        scale: float = 2.0,
        max_error: float = 0.06,
        pairing: Pairing = "interleaved",
    ) -> None:
        scheme = Flux2Panorama(
            axis_widths(head_dim, 4, widths), float(base), max_error=float(max_error), scale=float(scale)
        )
        super().__init__(head_dim, _each_pair(scheme), scheme, base=base, pairing=pairing)


class SpheRoPELTX(MultiAxisRoPE):
    """`SpheRoPE` for LTX: pair i of width turns by p ω_i − (c/W)(T_i − 2π round(T_i/2π)) where T_i ≥ 2π, else by X ω_i or Y ω_i.

    ω_i = π/2 · base^{i/(n−1)} rises; p, from −1 to 1 over 2048 pixels, is the place of a column, and T_i = span · ω_i the turn of
    a picture that spans so much. The excess over whole turns is taken back evenly; X and Y have the radius span/2. Time, height
    and width take turns over the pairs of all heads together, n = ⌊H d / 6⌋ each; pairs left over stand first and do not turn.

    Args:
        head_dim: width d of a head.
        num_heads: heads H of the model.
        num_kv_heads: key heads; None: as many.
        base: of the frequencies.
        threshold: turns from which on a pair takes whole ones.
        radius: factor on X and Y.
        patch: latent cells of a side of a token.
        pixels: pixels of a side of a latent cell.
        extent: pixels from −1 to 1.
        seconds: of video from −1 to 1 on the axis of time.
        pairing: "interleaved" as in the host.

    Shapes, errors, source: see `SpheRoPE`. Frames are at the times of the layout, ``rw.Video(..., seconds=...)``, which are the
    host's (the middle of a latent frame); without, a second apart.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        base: float = 10_000.0,
        *,
        num_kv_heads: int | None = None,
        threshold: float = 1.0,
        radius: float = 1.0,
        patch: int = 1,
        pixels: int = 32,
        extent: float = 2048.0,
        seconds: float = 20.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        heads = key_heads(num_heads, num_kv_heads, "LTX deals its frequencies out over all heads together")
        axis_widths(head_dim, 1)
        scheme = LTXPanorama(
            heads,
            head_dim // 2,
            float(base),
            float(threshold),
            float(radius),
            patch,
            pixels,
            float(extent),
            float(seconds),
        )
        super().__init__(head_dim, _each_pair(scheme, heads), scheme, base=base, pairing=pairing)


# ---- tables for models that take them --------------------------------------------------------------------------------

_CLASSES: dict[str, type[MultiAxisRoPE]] = {"flux1": SpheRoPE, "flux2": SpheRoPEFlux2, "ltx": SpheRoPELTX}


def spherical_axial_rope(
    rows: int,
    columns: int,
    variant: Variant = "flux1",
    head_dim: int = 128,
    *,
    seconds: Sequence[float] | None = None,
    repeat: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the tokens of a panorama, row by row, float32: (S, d/2) each, (H, S, d/2) for LTX.

    Args:
        rows: of tokens.
        columns: of tokens.
        variant: the host: "flux1", "flux2" or "ltx".
        head_dim: width d of a head.
        seconds: times of the frames of a video; None: a picture.
        repeat: each number twice, (S, d), as hosts want it whose tables are as wide as a head.
        options: of `SpheRoPE`, `SpheRoPEFlux2` or `SpheRoPELTX`.
    """
    if variant not in get_args(Variant):
        known = get_args(Variant)
        raise ConfigError(f"variant is one of {', '.join(known)}; got {variant!r}.{suggest(variant, known)}")
    made = _CLASSES[variant](head_dim, **options)
    picture = Image(rows, columns) if seconds is None else Video(len(seconds), rows, columns, tuple(seconds))
    angles = made.angles(made.coordinates(layout([picture]).key, ()))[0]
    cos, sin = tables(angles, torch.float32)
    return (cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)) if repeat else (cos, sin)


def substitute(stock: tuple[Tensor, Tensor], panorama: tuple[Tensor, Tensor], start: int) -> tuple[Tensor, Tensor]:
    """Return a host's cos and sin, (..., S, n), with the rows of the generated picture, from ``start`` on, replaced.

    Text and reference images keep their rows.

    Raises:
        ShapeError: tables of other widths, or more rows than there are.
    """
    made = []
    for table, rows in zip(stock, panorama, strict=True):
        stop = start + rows.shape[-2]
        if table.shape[-1] != rows.shape[-1] or not 0 <= start <= stop <= table.shape[-2]:
            raise ShapeError(
                f"{rows.shape[-2]} rows of {rows.shape[-1]} numbers do not fit in a table {tuple(table.shape)} from row {start} "
                "on; tables as wide as a head have each number twice: repeat=True"
            )
        rows = rows.to(table).expand(*table.shape[:-2], *rows.shape[-2:])
        made.append(torch.cat([table[..., :start, :], rows, table[..., stop:, :]], -2))
    return made[0], made[1]
