"""Retrieval by depth and length, a heat-map an encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.lab.report.figures import PAPER, figure
from ropewalk.lab.report.html import Html, element, join
from ropewalk.lab.results import Record
from ropewalk.lab.summary import fixed_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def retrieval(records: Sequence[Record], encodings: Iterable[str]) -> Html | None:
    """One heat-map an encoding, by depth and length, on one scale of colours, of the metric of the first record."""
    if not records:
        return None
    from matplotlib import colormaps

    metric = records[0]["metric"]
    cells = {
        name: _average(r for r in records if r["encoding"] == name and r["metric"] == metric) for name in encodings
    }
    cells = {name: grid for name, grid in cells.items() if grid}
    every = [value for grid in cells.values() for value in grid.values()]
    # Noise about zero must not fill the whole scale.
    low, high = (0.0, 1.0) if metric == "accuracy" else (min(0.0, *every), max(0.1, *every))
    lengths = sorted({length for grid in cells.values() for length, _ in grid})
    depths = sorted({depth for grid in cells.values() for _, depth in grid})
    ramp = colormaps["cividis"]

    def drawing(grid: Mapping[tuple[int, float], float]) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            axes.grid(False)
            for (length, depth), value in grid.items():
                x, y = lengths.index(length), depths.index(depth)
                colour = ramp((value - low) / (high - low) if high > low else 0.0)
                axes.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], facecolor=colour, edgecolor=PAPER, linewidth=0.8)
                light = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 0.5
                text = f"{100 * value:.0f}" if metric == "accuracy" else fixed_point(value, 2)
                axes.text(
                    x + 0.5,
                    y + 0.5,
                    text,
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="#000000" if light else "#ffffff",
                )
            axes.set_xlim(0, len(lengths))
            axes.set_ylim(len(depths), 0)
            axes.set_xticks([i + 0.5 for i in range(len(lengths))], [str(n) for n in lengths])
            axes.set_yticks([i + 0.5 for i in range(len(depths))], [f"{100 * depth:.0f} %" for depth in depths])
            axes.tick_params(length=0)
            axes.set_xlabel("length")
            axes.set_ylabel("depth")
            for spine in axes.spines.values():
                spine.set_visible(False)

        return draw

    figures = []
    for i, (name, grid) in enumerate(cells.items()):
        worst = min(grid, key=lambda key: grid[key])
        low_high = (
            f"{grid[worst]:.2f} at worst (length {worst[0]}, depth {worst[1]:g}), {max(grid.values()):.2f} at best"
        )
        alt = f"{metric} of {name}: {low_high}"
        svg = figure(
            f"retrieval-{i}", f"Retrieval, {name}", alt, drawing(grid), width=290, height=40 + 30 * len(depths)
        )
        figures.append(element("figure", element("figcaption", element("b", name)), svg))
    stops = ", ".join(_hex(ramp(i / 6)) for i in range(7))
    label = (lambda v: f"{100 * v:.0f} %") if metric == "accuracy" else (lambda v: f"{fixed_point(v, 2)} nats")
    scale = element(
        "p",
        element("span", metric),
        element("span", label(low)),
        element("i", style=f"background: linear-gradient(90deg, {stops})"),
        element("span", label(high)),
        class_="ramp",
    )
    place = "Depth is where in the text the needle lies: 0 % at its start, farthest from the question."
    return join(scale, element("p", place, class_="soft note"), element("div", figures, class_="figures small"))


def _average(records: Iterable[Record]) -> dict[tuple[int, float], float]:
    cells: dict[tuple[int, float], list[Record]] = {}
    for r in records:
        cells.setdefault((r["length"], r["depth"]), []).append(r)
    return {key: sum(r["value"] for r in found) / len(found) for key, found in cells.items()}


def _hex(colour: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour[:3])
