"""Figures as inline SVG that follows the page: its text, its colours, light or dark, and without scripts.

Matplotlib draws with placeholder colours, which become CSS variables afterwards. The same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ropewalk.core.errors import ConfigError
from ropewalk.lab.report.html import Html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID, PAPER, SOFT = "#010101", "#010102", "#010103", "#010104"
_COLOURS = 8
_SERIES = [f"#0102{i:02x}" for i in range(_COLOURS)]
_VARIABLES = {INK: "--ink", GRID: "--grid", PAPER: "--paper", SOFT: "--soft"} | {
    colour: f"--series-{i}" for i, colour in enumerate(_SERIES)
}
_DASHES: list[Any] = ["-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1))]
_MARKERS = "osD^vPX<>d*"
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud, and takes the font of the page
    "svg.hashsalt": "ropewalk",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "path.simplify": True,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Style:
    """How an encoding looks in every figure: told apart by colour, by dashes and by marker."""

    colour: str
    dash: Any
    marker: str

    @classmethod
    def of(cls, index: int) -> Style:
        """Return the style of the encoding with this number: cycles of 8, 6 and 11, so that hundreds differ."""
        return cls(_SERIES[index % _COLOURS], _DASHES[index % len(_DASHES)], _MARKERS[index % len(_MARKERS)])

    def line(self, *, marker: bool = False) -> dict[str, Any]:
        """Return keywords of `Axes.plot`."""
        drawn = {"color": self.colour, "linestyle": self.dash}
        return {**drawn, "marker": self.marker, "markeredgecolor": PAPER, "markeredgewidth": 0.4} if marker else drawn


Styles = Mapping[str, Style]  # by encoding, in the order they were asked for


def figure(
    name: str, title: str, description: str, draw: Callable[[Axes], None], *, width: int = 420, height: int = 260
) -> Html:
    """Draw one pair of axes.

    Args:
        name: prefix of every id in the SVG, unique in the page.
        title: short, for screen readers and as a tooltip; empty: a decoration.
        description: what the figure shows, for who cannot see it.
        draw: draws into the axes.
        width: in pixels, at which text has its natural size.
        height: likewise.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise ConfigError(f"the report is drawn with matplotlib: pip install 'ropewalk[lab]' ({problem})") from None
    with rc_context(_SETTINGS):
        drawing = Figure(figsize=(width / 72, height / 72), layout="constrained")
        FigureCanvasSVG(drawing)
        draw(drawing.add_subplot())
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Html(_themed(file.getvalue(), name, title, description))


def swatch(name: str, style: Style) -> Html:
    """Draw a piece of an encoding's line, for a legend; the text beside it says whose it is."""

    def draw(axes: Axes) -> None:
        axes.axis("off")
        axes.plot([0, 1, 2], [0, 0, 0], **{**style.line(marker=True), "markevery": [1]})
        axes.set_xlim(-0.1, 2.1)

    return figure(name, "", "", draw, width=48, height=16)


def log_axis(axis: Any, values: Sequence[float]) -> None:
    """Label a logarithmic axis with plain numbers, as many as are useful."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    span = math.log10(max(values) / min(values)) if values else 1
    subs = (1.0, 2.0, 5.0) if span > 1 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=subs if span < 3 else (1.0,), numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """Write a number in few letters: 0.003, 12.5, 90k, 2M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[letter]:.3g}{letter}"
    return f"{value:.4g}".replace("-", "−")


def _themed(svg: str, name: str, title: str, description: str) -> str:
    """Make an SVG file a part of a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    svg = re.sub(r"#0102[0-9a-f]{2}|#01010[0-9a-f]", lambda found: f"var({_VARIABLES[found[0]]})", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    box = re.search(r'viewBox="([^"]*)"', svg)
    if box is None:
        raise RuntimeError("matplotlib wrote an SVG without a viewBox")
    width, height = (round(float(number)) for number in box[1].split()[2:])
    head = f'<svg viewBox="{box[1]}" width="{width}" height="{height}" '
    if title:
        head += (
            f'role="img" aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
            f'<desc id="{name}-desc">{escape(description)}</desc>'
        )
    else:
        head += 'aria-hidden="true">'
    return head + svg[svg.index(">") + 1 :].strip()
