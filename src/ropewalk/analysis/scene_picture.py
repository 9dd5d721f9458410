"""Where the tokens of a small example are and what they attend to, as text and as a picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.text import Text
from torch import Tensor

from ropewalk.analysis.attention_map import AttentionMap, attention_map
from ropewalk.analysis.picture import COLOURS, FINE, STEPS, Ink, relative, steps_of, target_of
from ropewalk.analysis.scenes import Scene, scenes
from ropewalk.catalog import Record

ASKS = "@"
"""The query, where what it attends to is drawn on a plane."""

TICKS = 5
"""Keys from one number above them to the next."""


@dataclass(frozen=True)
class ScenePicture:
    """What is drawn: an example, and attention in it.

    Attributes:
        name: of the encoding.
        scene: the example.
        attention: among its tokens, if all of them had the same content.
    """

    name: str
    scene: Scene
    attention: AttentionMap

    @property
    def weights(self) -> Tensor:
        """(Q, K) over the largest of each row, of the first head."""
        return relative(self.attention)[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys."""
        return self.scene.keys or self.scene.queries

    @property
    def own(self) -> bool:
        """Whether queries are the first keys, as in self-attention."""
        return self.keys[: len(self.scene.queries)] == self.scene.queries


def scene_pictures(entry: Record, head_dim: int = 64) -> list[ScenePicture]:
    """Return the examples of an encoding with what their tokens attend to; [] where a row of tokens says all."""
    made = []
    for scene in scenes(entry):
        encoding = (
            entry.build(head_dim=head_dim, num_heads=4, num_kv_heads=4, **scene.options) if scene.options else entry
        )
        what = attention_map(encoding, head_dim=head_dim, causal=scene.causal, positions=scene.positions, each="head")
        made.append(ScenePicture(entry.name, scene, replace(what, name=entry.name)))
    return made


# ---- text ------------------------------------------------------------------------------------------------------------


def draw_scene(what: ScenePicture, width: int = 80, ink: Ink = FINE) -> list[Text]:
    """Draw a line a query: its name, what is known of it, and its attention, a column a key; then what lies on a plane."""
    scene = what.scene
    lines = [Text(part, style="bold") for part in textwrap.wrap(scene.caption, width)]
    table = _table(scene.queries, scene.facts)
    seen = len(what.keys)
    room = width - table[0].cell_len - 2
    wide = 2 if room >= 2 * seen else 1
    if room >= wide * seen:
        lines.append(_beside(table[0], Text(_numbers(seen, wide), style="dim")))
        for i, (line, shades) in enumerate(zip(table[1:], _shades(what, ink), strict=True)):
            drawn = "".join(shade * wide for shade in shades).rstrip()
            lines.append(_beside(line, Text(drawn, style=COLOURS[i % 2])))
    else:
        lines += table
    if scene.keys:
        lines += [Text(), Text("keys", style="bold"), *_table(scene.keys, scene.key_facts)]
    lines += _planes(what, width, ink)
    return [*lines, *(Text(part, style="dim") for said in _caption(what, ink) for part in textwrap.wrap(said, width))]


def _table(names: Sequence[str], facts: Mapping[str, Sequence[object]]) -> list[Text]:
    """Return a heading and a line a token: its number, its name, what is known of it."""
    columns = [[title, *map(_short, values)] for title, values in facts.items()]
    number, name = len(str(len(names) - 1)), max(map(len, names))
    lines = []
    for i in range(len(names) + 1):
        line = Text(f"{i - 1 if i else '':>{number}} ", style="dim")
        line.append(f"{names[i - 1] if i else '':<{name}}")
        for c, column in enumerate(columns):
            line.append(f"{column[i]:>{1 + max(map(len, column))}}", style=COLOURS[c % len(COLOURS)] if i else "dim")
        lines.append(line)
    return lines


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _beside(left: Text, right: Text) -> Text:
    return Text.assemble(left, "  ", right)


def _numbers(count: int, wide: int) -> str:
    """Return a line with the number of every fifth key above its column."""
    return "".join(f"{n:<{TICKS * wide}}" for n in range(0, count, TICKS)).rstrip()


def _shades(what: ScenePicture, ink: Ink) -> Iterator[list[str]]:
    """Yield a row of shades a query; blank where it does not look."""
    steps = torch.tensor(steps_of(what.attention)[1:], dtype=torch.float64)
    level = torch.bucketize(what.weights + 1e-9, steps, right=True).tolist()
    for row, weights in zip(level, what.attention.weights[0].tolist(), strict=True):
        yield [ink.shades[s] if w > 0 else " " for s, w in zip(row, weights, strict=True)]


def _planes(what: ScenePicture, width: int, ink: Ink) -> list[Text]:
    """Draw what some queries attend to where the keys are, one below the other."""
    scene, shades = what.scene, list(_shades(what, ink))
    lines: list[Text] = []
    for query in scene.looks:
        grid = _grid(what, query, shades[query])
        title = f"seen by {query} {scene.queries[query]}" + (f", which is at {ASKS}" if what.own else "")
        lines += [Text(), Text(title, style="bold")]
        lines += [Text(f"  {row.rstrip()}", style=COLOURS[0]) for row in grid]
    return lines


def _grid(what: ScenePicture, query: int, shades: Sequence[str]) -> list[str]:
    plane = what.scene.plane
    rows, columns = (max(cell[a] + cell[2] for cell in plane) for a in (0, 1))
    grid = [[" "] * (2 * columns) for _ in range(rows)]
    for key, ((row, column, side), shade) in enumerate(zip(plane, shades, strict=True)):
        for r in range(row, row + side):
            grid[r][2 * column : 2 * (column + side)] = [shade] * (2 * side)
        if what.own and key == query:
            grid[row][2 * column] = ASKS
    return ["".join(row) for row in grid]


def _caption(what: ScenePicture, ink: Ink) -> list[str]:
    steps = steps_of(what.attention)
    alike = steps[0] >= 1 - 1e-6
    said = ["all tokens have the same content; queries downwards, keys to the right"]
    if alike:
        return ["each query attends to all keys alike", *said]
    digits = 0 if steps == list(STEPS) else 1 + max(0, -math.floor(math.log10(max(1 - steps[0], 1e-6))) - 1)
    below = "  ".join(f"{shade} <{100 * s:.{digits}f}%" for shade, s in zip(ink.shades, steps[1:], strict=False))
    shown = [f"weight over the largest of its row: {below}  {ink.shades[-1]}", *said]
    return [*shown, "learned numbers that start near 0 are drawn at random"] if what.attention.drawn else shown


# ---- pictures --------------------------------------------------------------------------------------------------------


def save_scenes(pictures: Sequence[ScenePicture], path: str | Path, *, dpi: int = 150) -> None:
    """Save examples as one picture, a row each: what is known of the tokens, attention, and what queries see on the plane.

    Raises:
        ConfigError: matplotlib is not installed, the folder does not exist, or the suffix names no format.
    """
    target, figure_of = target_of(path)
    panels = max(1 + bool(_drawn(p.scene)) + len(p.scene.looks) for p in pictures)
    tall = max(len(p.scene.queries) for p in pictures)
    height = 1.4 + max(3.2, 0.19 * tall)
    figure: Any = figure_of(figsize=(1.0 + 4.4 * panels, height * len(pictures)), layout="constrained")
    figure.suptitle(pictures[0].name, fontsize=13, fontweight="bold")
    parts = figure.subfigures(len(pictures), 1, squeeze=False)[:, 0]
    for part, picture in zip(parts, pictures, strict=True):
        part.suptitle(textwrap.fill(picture.scene.caption, 55 * panels), fontsize=10, color="0.3")
        axes = part.subplots(1, panels, squeeze=False)[0]
        left = list(axes)
        image = _draw_attention(left.pop(0), picture)
        bar = part.colorbar(image, ax=axes[0], shrink=0.6, aspect=24, ticks=[0, 0.5, 1])
        bar.set_label("weight over the row's largest", fontsize=7)
        bar.outline.set_visible(False)
        if _drawn(picture.scene):
            _draw_facts(left.pop(0), picture.scene)
        for query in picture.scene.looks:
            _draw_plane(left.pop(0), picture, query)
        for axis in left:
            axis.set_axis_off()
    figure.savefig(target, dpi=dpi)


def _drawn(scene: Scene) -> dict[str, list[float]]:
    """Return the facts of queries that are numbers."""
    made = {}
    for name, values in scene.facts.items():
        try:
            made[name] = [float(str(v)) for v in values]
        except ValueError:
            continue
    return made


def _draw_attention(axis: Any, picture: ScenePicture) -> Any:
    weights = picture.weights.masked_fill(picture.attention.weights[0] == 0, torch.nan)
    image = axis.imshow(weights.numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    axis.set_yticks(range(len(picture.scene.queries)), _plain(picture.scene.queries), fontsize=6)
    axis.set_xticks(range(len(picture.keys)), _plain(picture.keys), fontsize=6, rotation=90)
    axis.set_xlabel("key", fontsize=8)
    axis.set_ylabel("query", fontsize=8)
    axis.spines[:].set_visible(False)
    axis.set_title("attention among tokens of equal content", fontsize=9)
    return image


def _plain(names: Sequence[str]) -> list[str]:
    """Keep signs that would begin a formula in a figure."""
    return [name.replace("$", r"\$") for name in names]


def _draw_facts(axis: Any, scene: Scene) -> None:
    from matplotlib import colormaps

    drawn = _drawn(scene)
    for a, (name, values) in enumerate(drawn.items()):
        shift = 0.16 * (a - (len(drawn) - 1) / 2)  # lines that agree stay visible
        places = [i + shift for i in range(len(values))]
        axis.plot(values, places, "o", color=colormaps["tab10"](a % 10), label=name, markersize=4)
    axis.set_yticks(range(len(scene.queries)), _plain(scene.queries), fontsize=6)
    axis.set_ylim(len(scene.queries) - 0.5, -0.5)
    axis.set_title("where they are", fontsize=9)
    axis.grid(axis="y", color="0.93", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=7, loc="best")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_plane(axis: Any, picture: ScenePicture, query: int) -> None:
    from matplotlib import colormaps

    plane, weights = picture.scene.plane, picture.weights[query].tolist()
    for key, ((row, column, side), weight) in enumerate(zip(plane, weights, strict=True)):
        seen = bool(picture.attention.weights[0, query, key] > 0)
        colour = colormaps["viridis"](weight) if seen else "0.93"
        mine = picture.own and key == query
        axis.add_patch(_square(column, row, side, colour, "red" if mine else "white"))
        name = picture.keys[key].replace(" ", "\n")
        axis.text(column + side / 2, row + side / 2, name, ha="center", va="center", fontsize=5 + side,
                  color="black" if weight > 0.6 or not seen else "white")  # fmt: skip
    axis.set_xlim(-0.1, max(c + side for _, c, side in plane) + 0.1)
    axis.set_ylim(max(r + side for r, _, side in plane) + 0.1, -0.1)
    axis.set_aspect("equal")
    axis.set_axis_off()
    axis.set_title(f"seen by {picture.scene.queries[query]}" + (" (red)" if picture.own else ""), fontsize=9)


def _square(x: float, y: float, side: float, colour: Any, edge: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x + 0.04, y + 0.04), side - 0.08, side - 0.08, facecolor=colour, edgecolor=edge, linewidth=1.6)
