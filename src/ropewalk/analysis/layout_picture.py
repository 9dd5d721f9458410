"""Which pair turns by which axis, and where the tokens of a small example are, as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text
from torch import Tensor

from ropewalk.analysis.picture import COLOURS, target_of
from ropewalk.catalog import Record
from ropewalk.coordinates import blocks
from ropewalk.coordinates.allocation import Allocation, Row, runs
from ropewalk.coordinates.conditions import condition_blocks
from ropewalk.coordinates.layout import layout
from ropewalk.coordinates.references import reference_layout
from ropewalk.rotary.condition_rope import ConditionRoPE
from ropewalk.rotary.modality_rope import ModalityRoPE, Segment
from ropewalk.rotary.multi_axis import MultiAxisRoPE
from ropewalk.rotary.r_rope import ReferenceRoPE
from ropewalk.rotary.rope_dhr import RoPEDHR

IDLE = "·"

# No grid is square, and frames are told from rows.
SAMPLE = (("text", blocks.Text(2)), ("video", blocks.Video(2, 2, 3, seconds=1.0)), ("text", blocks.Text(2)))
TILED = (("text", blocks.Text(2)), ("tiles", blocks.Tiles(1, 2, 2, 3)), ("text", blocks.Text(2)))
EDITED = (
    ("text", blocks.Text(2)),
    ("ref_source", Segment("ref_source", 1, 2, 3)),
    ("text", blocks.Text(2)),
    ("noise", Segment("noise", 1, 2, 3)),
)
REFERENCES = tuple(zip(("ref 1", "ref 2", "video"), reference_layout((2, 2, 3), [(1, 2), (3, 1)]), strict=True))
CONDITIONS = tuple(
    zip(("video", "ref", "empty", "trajectory"), condition_blocks((2, 1, 3), 1, 2, with_traj=True), strict=True)
)
Example = tuple[tuple[str, blocks.Block], ...]


@dataclass(frozen=True)
class LayoutPicture:
    """What is drawn.

    Attributes:
        name: of the encoding.
        allocation: which pair turns by which axis.
        kinds: (name, tokens) of the blocks of the example.
        coordinates: (S, axes) of its tokens.
        cursor: coordinate of the token that decoding continues with; None: nothing is decoded after these.
    """

    name: str
    allocation: Allocation
    kinds: tuple[tuple[str, int], ...]
    coordinates: Tensor
    cursor: float | None


def layout_picture(encoding: MultiAxisRoPE | Record, head_dim: int = 32) -> LayoutPicture | None:
    """Place the tokens of a small example; None for a record of another kind of encoding."""
    if isinstance(encoding, Record):
        if encoding.traits.domain not in ("layout", "references", "conditions"):
            return None
        made = encoding.build(head_dim=head_dim, num_kv_heads=4)
        name = encoding.name
    else:
        made, name = encoding, type(encoding).__name__
    if not isinstance(made, MultiAxisRoPE):
        return None
    example: Example = SAMPLE
    for kind, other in (
        (RoPEDHR, TILED),
        (ModalityRoPE, EDITED),
        (ReferenceRoPE, REFERENCES),
        (ConditionRoPE, CONDITIONS),
    ):
        example = other if isinstance(made, kind) else example
    where = layout([block for _, block in example])
    cursor = made.scheme.follows(where.key)
    return LayoutPicture(
        name,
        made.allocation,
        tuple((kind, block.length) for kind, block in example),
        made.scheme.coordinates(where.query)[0],
        None if cursor is None else float(cursor[0]),
    )


# ---- text ------------------------------------------------------------------------------------------------------------


def draw_layout(what: LayoutPicture, width: int = 80) -> list[Text]:
    """Draw the allocation, and below it the tokens: a column a token, a line an axis."""
    each_axis = "each axis " if what.allocation.ladder == "own" else ""
    lines = [Text(f"pairs, {each_axis}from the fastest to the slowest", style="bold")]
    for head, row in enumerate(what.allocation.rows):
        line = Text(f"key head {head}  " if what.allocation.heads else "")
        for axis in row:
            line.append(*_letter(what.allocation, axis))
        lines.append(line)
        if not what.allocation.heads:
            said = (f"{_plural(n, 'pair')} {name}" for name, _, n in runs(row, what.allocation.names))
            together = ", ".join(said)
            if len(together) <= width:
                lines.append(Text(together, style="dim"))
    lines += [Text(), Text("tokens of an example", style="bold")]
    cells = [[_short(float(c)) for c in axis] for axis in what.coordinates.T]
    wide = max(3, *(len(cell) + 1 for axis in cells for cell in axis))  # room for a name above two tokens
    label = max(len(name) for name in what.allocation.names) + 1
    each = max(1, (width - label) // wide)
    kinds = [(kind, i == 0) for kind, n in what.kinds for i in range(n)]
    for start in range(0, len(kinds), each):
        part = range(start, min(start + each, len(kinds)))
        titles = Text(" " * label)
        for i in part:
            if kinds[i][1] or i == start:
                titles.append(_title(kinds, i, part.stop, wide), style="dim")
        lines.append(titles)
        for axis, name in enumerate(what.allocation.names):
            line = Text(f"{name:<{label}}", style="bold")
            for i in part:
                line.append(f"{cells[axis][i]:>{wide}}", style=COLOURS[axis % len(COLOURS)])
            lines.append(line)
    if what.cursor is None:
        return lines
    caption = f"video of 2 frames, 2 × 3 tokens each; decoding goes on at {_short(what.cursor)} on every axis"
    if what.kinds[1][0] != "video":
        caption = f"grids of 2 × 3 tokens; decoding goes on at {_short(what.cursor)}"
    return [*lines, Text(caption, style="dim")]


def _letter(allocation: Allocation, axis: int | None) -> tuple[str, str]:
    return (IDLE, "dim") if axis is None else (allocation.names[axis], COLOURS[axis % len(COLOURS)])


def _title(kinds: list[tuple[str, bool]], i: int, stop: int, wide: int) -> str:
    """Return the name of a block above its tokens, cut off where the next one begins."""
    end = next((j for j in range(i + 1, stop) if kinds[j][1]), stop)
    room = (end - i) * wide
    return f" {kinds[i][0]}"[:room].ljust(room)


def _plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _short(value: float) -> str:
    return f"{value:g}"


# ---- pictures --------------------------------------------------------------------------------------------------------


def save_layout(what: LayoutPicture, path: str | Path, *, dpi: int = 150) -> None:
    """Save the same as a picture: pairs above, coordinates below.

    Raises:
        ConfigError: matplotlib is not installed, the folder does not exist, or the suffix names no format.
    """
    target, figure_of = target_of(path)
    rows = what.allocation.rows
    figure: Any = figure_of(figsize=(9.0, 3.6 + 0.25 * len(rows)), layout="constrained")
    top, bottom = figure.subplots(2, 1, gridspec_kw={"height_ratios": [0.5 + 0.25 * len(rows), 3]})
    _draw_pairs(top, what.allocation)
    _draw_tokens(bottom, what)
    figure.suptitle(what.name, fontsize=13, fontweight="bold")
    figure.savefig(target, dpi=dpi)


def _colour(axis: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab10"](axis % 10)


def _draw_pairs(axis: Any, allocation: Allocation) -> None:
    def draw(y: int, row: Row) -> None:
        for i, a in enumerate(row):
            colour = "0.92" if a is None else _colour(a)
            axis.barh(y, 0.94, left=i - 0.47, height=0.8, color=colour)
            axis.text(i, y, IDLE if a is None else allocation.names[a], ha="center", va="center", fontsize=8,
                      color="0.4" if a is None else "white")  # fmt: skip

    for y, row in enumerate(allocation.rows):
        draw(y, row)
    axis.set_xlim(-0.6, allocation.pairs - 0.4)
    axis.invert_yaxis()
    axis.set_yticks(range(len(allocation.rows)) if allocation.heads else [])
    axis.set_ylabel("key head" if allocation.heads else "", fontsize=9)
    first = "the fastest of each first" if allocation.ladder == "own" else "the fastest first"
    axis.set_title(f"axis of each pair of channels, {first}", fontsize=10)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)


def _draw_tokens(axis: Any, what: LayoutPicture) -> None:
    n, names = len(what.coordinates), what.allocation.names
    for a, name in enumerate(names):
        shift = 0.14 * (a - (len(names) - 1) / 2)  # axes that agree stay visible
        axis.plot(
            [i + shift for i in range(n)],
            what.coordinates[:, a].tolist(),
            "o",
            color=_colour(a),
            label=name,
            markersize=5,
        )
    start = 0
    for i, (kind, tokens) in enumerate(what.kinds):
        if kind != "text":
            axis.axvspan(start - 0.5, start + tokens - 0.5, color="0.9" if i % 2 else "0.95", zorder=0)
        axis.text(start + (tokens - 1) / 2, 1.01, kind, transform=axis.get_xaxis_transform(), ha="center", fontsize=9)
        start += tokens
    if what.cursor is not None:
        axis.axhline(what.cursor, color="0.6", linestyle="--", linewidth=1)
        axis.text(n - 0.4, what.cursor, " cursor", va="center", fontsize=8, color="0.4")
    axis.set_xlim(-0.6, n - 0.4)
    axis.set_xlabel("token, in the order of the sequence")
    axis.set_ylabel("coordinate")
    axis.legend(frameon=False, fontsize=9, loc="best")
    axis.spines[["top", "right"]].set_visible(False)
