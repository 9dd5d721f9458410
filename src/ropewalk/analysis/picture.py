"""Attention maps as text and as pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.text import Text
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from ropewalk.analysis.attention_map import AttentionMap
from ropewalk.core.errors import ConfigError

MAP_WIDTH, HEIGHT = 24, 12
"""Characters of a map; a character is about twice as high as wide, so that maps are square."""

NARROWEST_CHART = 24
GAP = 3
LABEL = 6
COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue")

STEPS = (0.0, 0.03, 0.12, 0.35, 0.7)
"""Weight over the largest of its row from which on a shade is used, where the weights go down to nothing."""


@dataclass(frozen=True)
class Ink:
    """Characters to draw with: five shades from a key that is hardly seen on, and how curves are drawn."""

    shades: str
    braille: bool


FINE = Ink("·░▒▓█", braille=True)
PLAIN = Ink(".:+%@", braille=False)


def ink_for(encoding: str | None) -> Ink:
    """Return the finest characters that a stream of this encoding can show."""
    try:
        (FINE.shades + "⣿").encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return FINE


# ---- text ------------------------------------------------------------------------------------------------------------


def draw_text(what: AttentionMap, width: int = 80, ink: Ink = FINE) -> list[Text]:
    """Draw the first map (and the last, where they differ) and the logit by distance, as lines.

    Panels stand side by side as far as ``width`` allows, the rest below.
    """
    panels = [_map_panel(what, head, title, ink) for head, title in _shown(what)]
    used = len(panels) * (MAP_WIDTH + GAP)
    if what.sequence:
        room = min(width, 80) - used
        panels.append(_chart_panel(what, room if room >= NARROWEST_CHART else min(width, 60), ink))
    lines: list[Text] = []
    row: list[list[Text]] = []
    for panel in panels:
        if row and sum(_width(p) + GAP for p in row) + _width(panel) > width:
            lines += [*_beside(row), Text()]
            row = []
        row.append(panel)
    lines += _beside(row)
    caption = [part for line in _caption(what, ink) for part in textwrap.wrap(line, width, break_on_hyphens=False)]
    return [*lines, *(Text(line, style="dim") for line in caption)]


def _shown(what: AttentionMap) -> list[tuple[int, str]]:
    if what.count == 1:
        return [(0, "attention")]
    if what.alike:
        return [(0, f"attention, every {what.each}")]
    last = what.count - 1
    return [(0, f"attention, {what.each} 0"), (last, f"{what.each} {last}")]


def relative(what: AttentionMap) -> Tensor:
    """Return weights over the largest of their row."""
    return what.weights / what.weights.amax(-1, keepdim=True).clamp(min=1e-300)


def steps_of(what: AttentionMap) -> list[float]:
    """Return from which weight on, over the largest of the row, each shade is used: even steps where all are of a size."""
    least = float(relative(what)[what.weights > 0].min()) if bool((what.weights > 0).any()) else 0.0
    if least < STEPS[3]:
        return list(STEPS)
    return [least + (1 - least) * n / len(STEPS) for n in range(len(STEPS))]


def _caption(what: AttentionMap, ink: Ink) -> list[str]:
    steps = steps_of(what)
    said = [f"{what.length} tokens of equal content, queries downwards, keys to the right"]
    if steps[0] < 1 - 1e-6:
        digits = next((n for n in range(6) if len({f"{100 * s:.{n}f}" for s in (*steps, 1.0)}) == len(steps) + 1), 6)
        below = "  ".join(f"{shade} <{100 * s:.{digits}f}%" for shade, s in zip(ink.shades, steps[1:], strict=False))
        said.insert(0, f"weight over the largest of its row: {below}  {ink.shades[-1]}")
    else:
        said.insert(0, "each query attends to all keys alike")
    if what.each == "content":
        said.append("each content prefers distances of its own: some of them, in the first head")
    if what.drawn:
        said.append("learned numbers that start near 0 are drawn at random")
    return said


def _map_panel(what: AttentionMap, head: int, title: str, ink: Ink) -> list[Text]:
    size = (HEIGHT, MAP_WIDTH)
    steps = torch.tensor(steps_of(what)[1:], dtype=torch.float64)
    level = torch.bucketize(_pooled(relative(what)[head], size) + 1e-9, steps, right=True)
    visible = _pooled((what.weights[head] > 0).double(), size) > 0
    lines = [Text(title.ljust(MAP_WIDTH), style="bold")]
    for shades, there in zip(level.tolist(), visible.tolist(), strict=True):
        row = "".join(ink.shades[s] if v else " " for s, v in zip(shades, there, strict=True))
        lines.append(Text(row, style=COLOURS[head % len(COLOURS)]))
    return lines


def _pooled(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the largest value under each character; a map smaller than the drawing is repeated."""
    return adaptive_max_pool2d(values[None], size)[0]


def _chart_panel(what: AttentionMap, width: int, ink: Ink) -> list[Text]:
    curves = what.by_distance()
    curves = curves[:1] if what.alike else curves
    wide = width - LABEL - 5
    finite = curves[curves.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    flat = high - low < 1e-6
    if flat:
        low, high = low - 1, high + 1
    grid: list[list[tuple[str, int]]] = [[(" ", -1)] * wide for _ in range(HEIGHT - 1)]
    ends: dict[int, list[int]] = {}
    for head, curve in enumerate(curves):
        fraction = ((curve - low) / (high - low)).tolist()
        _plot(grid, fraction, head, ink)
        if fraction[-1] == fraction[-1]:
            ends.setdefault(_row_of(fraction[-1]), []).append(head)
    first, last = int(what.distances[0]), int(what.distances[-1])
    lines = [Text("logit by distance".ljust(width), style="bold")]
    for y, cells in enumerate(grid):
        label = ""
        if y == 0 and not flat:
            label = _number(high)
        elif y == HEIGHT - 2 and not flat:
            label = _number(low)
        elif flat and y == _row_of(0.5):
            label = _number((low + high) / 2)
        line = Text(f"{label:>{LABEL}} ", style="dim")
        for character, head in cells:
            line.append(character, style=COLOURS[head % len(COLOURS)] if head >= 0 else "")
        names = ends.get(y, []) if not what.alike else []
        line.append(f" {_names(names):3}", style="dim")
        lines.append(line)
    axis = f"{first}{str(last).rjust(wide - len(str(first)))}"
    lines.append(Text(f"{'':{LABEL}} {axis}    ", style="dim"))
    return lines


def _row_of(fraction: float) -> int:
    return min(HEIGHT - 2, int((1 - fraction) * (HEIGHT - 1)))


def _names(numbers: Sequence[int]) -> str:
    """Return which curves end here, in three characters."""
    if len(numbers) < 3:
        return ",".join(map(str, numbers))
    together = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]}-{numbers[-1]}" if together else f"{numbers[0]}.."


def _number(value: float) -> str:
    text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return text.replace("-0.00", "0.00") if len(text) <= LABEL else f"{value:.0e}"


# Dot (column, row) of a Braille cell, two wide and four high.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def _plot(grid: list[list[tuple[str, int]]], fraction: Sequence[float], head: int, ink: Ink) -> None:
    """Draw a curve into a grid of characters: Braille dots, or one digit a column."""
    across, down = (2, 4) if ink.braille else (1, 1)
    height, width = len(grid) * down, len(grid[0]) * across
    before: int | None = None
    for x in range(width):
        value = _at(fraction, x / max(width - 1, 1))
        if value != value:
            before = None
            continue
        y = min(height - 1, int((1 - value) * height))
        # Join to the last dot, so that a steep curve is a line and not a row of dots.
        start, stop = (y, y) if before is None else (min(before + 1, y), y) if before < y else (y, max(before - 1, y))
        for dot in range(start, stop + 1):
            old, owner = grid[dot // down][x // across]
            if ink.braille:
                bits = (ord(old) - 0x2800 if old != " " else 0) | _DOTS[x % 2][dot % 4]
                grid[dot // down][x // across] = (chr(0x2800 + bits), head)
            elif owner < 0:
                grid[dot // down][x // across] = (str(head % 10), head)
        before = y


def _at(values: Sequence[float], fraction: float) -> float:
    """Return a curve between its points, linearly."""
    place = fraction * (len(values) - 1)
    i = min(int(place), max(len(values) - 2, 0))
    if len(values) == 1 or place == i:
        return values[i]
    return values[i] + (place - i) * (values[i + 1] - values[i])


def _width(panel: Sequence[Text]) -> int:
    return max(line.cell_len for line in panel)


def _beside(panels: Sequence[Sequence[Text]]) -> list[Text]:
    """Join panels line by line."""
    lines = []
    for y in range(max((len(p) for p in panels), default=0)):
        line = Text()
        for panel in panels:
            part = panel[y] if y < len(panel) else Text()
            if line.cell_len or panel is not panels[0]:
                line.append(" " * GAP)
            line.append_text(part)
            line.append(" " * (_width(panel) - part.cell_len))
        line.rstrip()
        lines.append(line)
    return lines


# ---- PNG -------------------------------------------------------------------------------------------------------------


def target_of(path: str | Path) -> tuple[Path, Any]:
    """Return where a picture goes, checked, and what makes figures."""
    target = Path(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "pictures are drawn with matplotlib, which is not installed: pip install matplotlib"
        ) from None
    formats = FigureCanvasAgg.get_supported_filetypes()
    if target.suffix.lstrip(".").lower() not in formats:
        raise ConfigError(f"{target.name!r} ends in no format of pictures; use .png (or .svg, .pdf)")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"the folder {str(target.parent)!r} of {target.name!r} does not exist; make it first")
    return target, Figure


def save_picture(what: AttentionMap, path: str | Path, *, dpi: int = 150) -> None:
    """Save the map as a picture: weights, logit by distance, and where a query looks.

    Raises:
        ConfigError: matplotlib is not installed, the folder does not exist, or the suffix names no format.
    """
    target, figure_of = target_of(path)
    shown = _shown(what)
    panels = len(shown) + (2 if what.sequence else 0)
    figure: Any = figure_of(figsize=(3.6 * panels + 0.4, 3.9), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis, (head, title) in zip(axes, shown, strict=False):
        image = _draw_map(axis, what, head, title)
    bar = figure.colorbar(image, ax=axes[len(shown) - 1], shrink=0.75, aspect=24, ticks=[0, 0.5, 1])
    bar.set_label("weight over the row's largest", fontsize=8)
    bar.outline.set_visible(False)
    if what.sequence:
        logits = what.by_distance()
        _draw_curves(axes[-2], what, logits, "logit against distance 0")
        if float(logits.nan_to_num(0.0).abs().max()) < 1e-6:
            axes[-2].set_ylim(-1, 1)  # a straight line, not its rounding errors
        weights = what.profile()
        _draw_curves(axes[-1], what, weights, f"weights of query {_query(what)}")
        axes[-1].set_ylim(0, 1.15 * max(float(weights.nan_to_num(0.0).max()), 1e-9))
        if not what.alike:
            axes[-1].legend(frameon=False, fontsize=8)
    figure.suptitle(what.name, fontsize=13, fontweight="bold")
    figure.savefig(target, dpi=dpi)


def _query(what: AttentionMap) -> int:
    return what.length - 1 if what.causal else what.length // 2


def _draw_map(axis: Any, what: AttentionMap, head: int, title: str) -> Any:
    shown = relative(what)[head].masked_fill(what.weights[head] == 0, torch.nan)
    image = axis.imshow(shown.numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("key")
    axis.set_ylabel("query")
    axis.spines[:].set_visible(False)
    return image


def _draw_curves(axis: Any, what: AttentionMap, curves: Tensor, title: str) -> None:
    """Draw a curve a map; a single one where all are alike."""
    from matplotlib import colormaps

    heads = 1 if what.alike else what.count
    for head in range(heads):
        colour = colormaps["viridis"](0.85 * head / max(heads - 1, 1))
        axis.plot(
            what.distances.numpy(), curves[head].numpy(), color=colour, linewidth=1.8, label=f"{what.each} {head}"
        )
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("distance i − j")
    axis.grid(color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
