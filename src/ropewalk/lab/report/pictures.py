"""Curves and points of the report: which numbers go into which axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk.lab.measured import Results
from ropewalk.lab.report.figures import INK, PAPER, Styles, figure, log_axis, short
from ropewalk.lab.report.html import Html, element
from ropewalk.lab.results import Record
from ropewalk.lab.summary import Board, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 120  # of a curve: more cannot be seen and would only be heavy
_COSTS = {"train": "training speed", "decode": "decoding speed", "memory": "memory"}


@dataclass(frozen=True)
class Curve:
    """Mean over seeds of values at the same places, and their range."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]

    @classmethod
    def over(cls, seeds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Curve:
        """Average (x, y) of several seeds where they are all there: one that is still training is shorter."""
        places = [x for x in seeds[0][0] if all(x in set(xs) for xs, _ in seeds[1:])]
        at = [dict(zip(xs, ys, strict=True)) for xs, ys in seeds]
        columns = [[values[x] for values in at] for x in places]
        return cls(
            [float(x) for x in places],
            [sum(column) / len(column) for column in columns],
            [min(column) for column in columns],
            [max(column) for column in columns],
        )


def training(results: Results, styles: Styles) -> list[Html]:
    """Training and validation loss against steps."""
    pictures = []
    for what, x_name, y_name, text in (
        ("Training", "step", "loss", "Training loss, averaged since the point before."),
        ("Validation", "validation_step", "validation_loss", "Validation loss at the trained length."),
    ):
        curves = {}
        for name in styles:
            seeds = [_thin(r[x_name], r[y_name]) for r in results.of("curve", encoding=name) if r.get(x_name)]
            if seeds and (curve := Curve.over(seeds)).x:
                curves[name] = curve
        if curves:
            draw = _lines(curves, styles, "step", "nats a token", band=True)
            ends = ", ".join(f"{name} {curve.mean[-1]:.3f}" for name, curve in curves.items())
            pictures.append(_captioned(f"curve-{x_name}", f"{what} loss", f"{text} At the end: {ends}.", text, draw))
    return pictures


def positions(results: Results, board: Board, styles: Styles) -> list[Html]:
    """Loss against the position in the longest windows, and how far it is from the reference's."""
    records = results.of("positions")
    if not records:
        return []
    length = max(r["length"] for r in records)
    by_seed: dict[str, dict[int, Record]] = {name: {} for name in styles}
    for r in records:
        if r["length"] == length:
            by_seed[r["encoding"]][r["seed"]] = r
    curves = {
        name: Curve.over([(r["edges"], _closed(r["loss"])) for r in seeds.values()])
        for name, seeds in by_seed.items()
        if seeds
    }
    beyond = results.trained is not None and results.trained < length
    text = f"Loss of the tokens at each position of windows of {length} tokens."
    if beyond:
        text += (
            " Right of the mark are positions that training never reached: a line that rises there does not extrapolate, one "
            "that goes on falling uses the longer context."
        )
    pictures = [
        _by_position("positions", "Loss against position", text, curves, results.trained, styles, "nats a token")
    ]
    own = by_seed.get(board.reference or "", {})
    gaps = {}
    for name, seeds in by_seed.items():
        shared = [seed for seed in seeds if seed in own]
        if shared and name != board.reference:
            # Some places of the windows are harder than others, for every encoding: in a difference that drops out.
            gaps[name] = Curve.over(
                [
                    (seeds[n]["edges"], _closed([a - b for a, b in zip(seeds[n]["loss"], own[n]["loss"], strict=True)]))
                    for n in shared
                ]
            )
    if gaps:
        text = (
            f"The same, less the loss of {board.reference}: above zero, it has the lower one. Shades: range over seeds."
        )
        pictures.append(
            _by_position(
                "position-gaps", "Difference by position", text, gaps, results.trained, styles, "nats a token", gap=True
            )
        )
    return pictures


def by_size(results: Results, board: Board, styles: Styles) -> list[Html]:
    """Loss at every length, or exact matches at every size, with intervals."""
    if len(board.sizes) < 2:
        return []
    unit = 100 if board.metric == "exact" else 1

    def draw(axes: Axes) -> None:
        for row in _in_order(board, styles):
            points = [(size, score) for size, score in row.scores.items() if score is not None]
            if not points:
                continue
            x = [size for size, _ in points]
            half = [score.half_width * unit if math.isfinite(score.half_width) else 0 for _, score in points]
            y = [score.mean * unit for _, score in points]
            style = styles[row.encoding]
            axes.plot(x, y, **style.line(marker=True))
            axes.errorbar(x, y, yerr=half, fmt="none", ecolor=style.colour, elinewidth=0.9, capsize=2)
        _size_axis(axes, board)
        if board.metric == "exact":
            axes.set_ylim(-4, 104)
            axes.set_ylabel("exact matches, %")
        else:
            _loss_axis(axes, [s.mean for row in board.rows for s in row.scores.values() if s is not None])
        _mark_trained(axes, board.trained)

    text = "; ".join(
        f"{row.encoding}: " + ", ".join(f"{board.text(score)} at {size}" for size, score in row.scores.items() if score)
        for row in board.rows
        if row.score is not None
    )
    if board.metric == "exact":
        return [
            _captioned("exact", "Exact matches by size", text, "Answers right as a whole, by size of the task.", draw)
        ]
    caption = (
        "Loss of the same tokens with more and more text before them. Bars are 95 % intervals; most of their width is "
        "the choice of documents, which all encodings share."
    )
    return [_captioned("lengths", "Loss at each length", text, caption, draw)]


def tokens(results: Results, styles: Styles) -> list[Html]:
    """Fraction of answer tokens that are right, beside the exact matches."""
    curves = {}
    for name in styles:
        records = results.of("exact", encoding=name)
        if records:
            sizes = sorted({r["size"] for r in records})
            by_seed = {r["seed"]: {} for r in records}  # type: dict[int, dict[float, float]]
            for r in records:
                by_seed[r["seed"]][r["size"]] = 100 * r["token"]
            curves[name] = Curve.over(
                [([x for x in sizes if x in at], [at[x] for x in sizes if x in at]) for at in by_seed.values()]
            )
    if not curves or max(len(curve.x) for curve in curves.values()) < 2:
        return []
    lines = _lines(curves, styles, results.size_name or "size", "answer tokens right, %", marker=True)

    def draw(axes: Axes) -> None:
        lines(axes)
        axes.set_ylim(-4, 104)
        _ticks_at_sizes(axes, sorted({x for curve in curves.values() for x in curve.x}))
        _mark_trained(axes, results.trained)

    alt = "; ".join(
        f"{name}: " + ", ".join(f"{y:.0f} % at {x:g}" for x, y in zip(c.x, c.mean, strict=True))
        for name, c in curves.items()
    )
    return [
        _captioned(
            "tokens", "Answer tokens right by size", alt, "Answer tokens that are right, by size of the task.", draw
        )
    ]


def costs(board: Board, styles: Styles) -> list[Html]:
    """Quality beside speed and beside memory."""
    what_memory = next((w for w in ("saved for backward", "cache") if w in board.lengths), "memory")
    axes_of: list[tuple[str, str, str, Callable[[Row], float | None]]] = [
        ("train", f"training, tokens/s at {board.lengths.get('train')} tokens", "Further right is faster.", lambda r: r.train),
        ("decode", f"decoding, tokens/s at {board.lengths.get('decode')} tokens", "Further right is faster.", lambda r: r.decode),
        ("memory", f"{what_memory}, MiB at {board.lengths.get(what_memory)} tokens", "Further left needs less memory.",
         lambda r: None if r.memory is None else r.memory / 2**20),
    ]  # fmt: skip
    pictures = []
    for what, label, direction, value in axes_of:
        rows = [
            (row, row.score.mean, cost)
            for row in _in_order(board, styles)
            if row.score is not None and (cost := value(row)) is not None
        ]
        if rows:
            pictures.append(_scatter(board, styles, what, label, direction, rows))
    return pictures


def sweeps(results: Results, styles: Styles) -> list[Html]:
    """Validation loss against the learning rate."""
    curves, chosen = {}, {}
    for name in styles:
        records = results.of("sweep", encoding=name)
        if records:
            trained_with = {r["lr"] for r in results.scores(name)}
            by_rate: dict[float, list[float]] = {}
            for r in records:
                by_rate.setdefault(r["lr"], []).append(r["validation_loss"])
            rates = sorted(by_rate)
            columns = [by_rate[rate] for rate in rates]
            means = [sum(column) / len(column) for column in columns]
            curves[name] = Curve(rates, means, [min(c) for c in columns], [max(c) for c in columns])
            chosen[name] = [i for i, rate in enumerate(rates) if rate in trained_with]
    if not curves:
        return []
    lines = _lines(curves, styles, "learning rate", "validation loss, nats a token", marker=True)

    def draw(axes: Axes) -> None:
        lines(axes)
        axes.set_xscale("log")
        log_axis(axes.xaxis, [x for curve in curves.values() for x in curve.x])
        for name, curve in curves.items():
            for at in chosen[name]:
                axes.plot(curve.x[at], curve.mean[at], "o", markersize=11, markerfacecolor="none", markeredgecolor=INK)

    alt = "; ".join(
        f"{name}: " + ", ".join(f"{y:.3f} at {x:g}" for x, y in zip(c.x, c.mean, strict=True))
        for name, c in curves.items()
    )
    caption = (
        "Rings mark the learning rate that each encoding was then trained with. Where the lowest loss is at an end of the "
        "range, a better rate may lie outside."
    )
    return [_captioned("sweep", "Learning-rate sweep", alt, caption, draw)]


def _ticks_at_sizes(axes: Axes, sizes: Sequence[float]) -> None:
    """Use a logarithmic axis whose ticks are the sizes themselves, leaving out those that would overlap."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    kept: list[float] = []
    for size in sorted(sizes, reverse=True):
        if not kept or math.log(kept[-1] / size) > 0.09 * math.log(sizes[-1] / sizes[0]):
            kept.append(size)
    axes.set_xticks(kept, [short(size) for size in kept])
    axes.xaxis.set_minor_locator(NullLocator())


def _size_axis(axes: Axes, board: Board) -> None:
    _ticks_at_sizes(axes, board.sizes)
    axes.set_xlabel(board.size_name or "size" if board.metric == "exact" else "tokens before and with the scored ones")


def _scatter(
    board: Board, styles: Styles, what: str, label: str, direction: str, rows: list[tuple[Row, float, float]]
) -> Html:
    unit = 100 if board.metric == "exact" else 1

    def draw(axes: Axes) -> None:
        for row, mean, cost in rows:
            style = styles[row.encoding]
            axes.plot(cost, mean * unit, marker=style.marker, color=style.colour, markersize=9, markeredgecolor=PAPER)
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.set_xlabel(label)
        axes.set_ylabel("exact matches, %" if board.metric == "exact" else "nats a token")
        axes.margins(0.12)
        if board.metric == "exact":
            axes.set_ylim(-4, 104)

    alt = "; ".join(f"{row.encoding}: {short(cost)}, {board.text(row.score)}" for row, _, cost in rows)
    quality = "higher" if board.metric == "exact" else "lower"
    caption = f"{direction} Of two encodings, {quality} is better; quality is what ranks, {board.ranked_by}."
    return _captioned(f"cost-{what}", f"Quality and {_COSTS[what]}", alt, caption, draw)


def _by_position(
    name: str,
    title: str,
    caption: str,
    curves: Mapping[str, Curve],
    trained: int | None,
    styles: Styles,
    unit: str,
    *,
    gap: bool = False,
) -> Html:
    """Draw what is known between edges of positions as steps."""

    def draw(axes: Axes) -> None:
        if gap:
            axes.axhline(0, color=INK, linewidth=0.8)
        for encoding, curve in curves.items():
            style = styles[encoding]
            axes.plot(curve.x, curve.mean, drawstyle="steps-post", **style.line())
            middles = [(a + b) / 2 for a, b in itertools.pairwise(curve.x)]
            axes.plot(middles, curve.mean[:-1], **{**style.line(marker=True), "linestyle": "none"})
            if gap and curve.low != curve.high:
                axes.fill_between(
                    curve.x, curve.low, curve.high, step="post", color=style.colour, alpha=0.14, linewidth=0
                )
        axes.set_xlim(0, max(curve.x[-1] for curve in curves.values()))
        axes.set_xlabel("position in the window")
        axes.set_ylabel(unit)
        if not gap:
            _loss_axis(axes, [value for curve in curves.values() for value in curve.mean])
        _mark_trained(axes, trained)

    ends = ", ".join(f"{encoding} {curve.mean[0]:.2f} → {curve.mean[-1]:.2f}" for encoding, curve in curves.items())
    return _captioned(name, title, f"{title}, from the first to the last positions: {ends}.", caption, draw)


def _closed(values: Sequence[float]) -> list[float]:
    """Repeat the last value, so that there is one for each edge."""
    return [*values, values[-1]]


def _captioned(name: str, title: str, alt: str, caption: str, draw: Callable[[Axes], None]) -> Html:
    return element("figure", figure(name, title, alt, draw), element("figcaption", element("b", title), ". ", caption))


def _lines(
    curves: Mapping[str, Curve], styles: Styles, x: str, y: str, *, band: bool = False, marker: bool = False
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for name, curve in curves.items():
            style = styles[name]
            every = max(1, len(curve.x) // 6)
            axes.plot(curve.x, curve.mean, **style.line(marker=True), markevery=1 if marker else every)
            if band and curve.low != curve.high:
                axes.fill_between(curve.x, curve.low, curve.high, color=style.colour, alpha=0.14, linewidth=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)

    return draw


def _loss_axis(axes: Axes, values: Sequence[float]) -> None:
    """Use a logarithmic axis where one loss would press the others flat."""
    axes.set_ylabel("nats a token")
    if min(values) > 0 and max(values) > 2 * min(values):
        axes.set_yscale("log")
        log_axis(axes.yaxis, values)


def _mark_trained(axes: Axes, trained: int | None) -> None:
    if trained is None:
        return
    axes.axvline(trained, color=INK, linewidth=1, linestyle=(0, (3, 2)))
    axes.annotate(
        f"trained: {trained}", (trained, 1), xycoords=("data", "axes fraction"), xytext=(3, 2), textcoords="offset points",
        fontsize=10, va="bottom", ha="left" if trained < sum(axes.get_xlim()) / 2 else "right", annotation_clip=False,
    )  # fmt: skip


def _thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Average neighbours so that few enough points are left; each stands at the last of its places."""
    step = math.ceil(len(x) / _POINTS)
    starts = range(0, len(x), step)
    return (
        [float(x[min(s + step, len(x)) - 1]) for s in starts],
        [sum(y[s : s + step]) / len(y[s : s + step]) for s in starts],
    )


def _in_order(board: Board, styles: Styles) -> list[Row]:
    rows = {row.encoding: row for row in board.rows}
    return [rows[name] for name in styles if name in rows]
