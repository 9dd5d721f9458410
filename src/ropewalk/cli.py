"""The command line: ``ropewalk list``, ``ropewalk show NAME``.

Listing imports no torch: records are plain data, and docstrings are read from the source.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ropewalk import __version__
from ropewalk.catalog import (
    KINDS,
    TRAITS,
    CatalogWarning,
    Record,
    catalog,
    namesakes,
    normalise,
    record,
    shared,
)
from ropewalk.core.errors import ConfigError, RopewalkError, UnknownNameError, suggest
from ropewalk.integrations.inspect_command import HELP as INSPECT
from ropewalk.integrations.inspect_command import inspect
from ropewalk.integrations.verify_command import VERIFY, verify
from ropewalk.lab.command import compare, comparison, report
from ropewalk.lab.extend_command import extend
from ropewalk.lab.reproduce_command import evidence, reproduce

app = typer.Typer(
    help="Positional encodings for PyTorch: what there is, what each one claims, and which one to train with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMPARE = """Train small models that differ in nothing but the encoding, and measure what differs.

The same command goes on with a run that was interrupted. Exit status: 0, 1 if a trial failed, 2 for bad input."""

# One letter a trait keeps the table within 80 columns.
_LETTERS = dict(zip(TRAITS, "RNCSLX", strict=True))
_LEGEND = ", ".join(f"{letter} {name.replace('_', ' ')}" for name, letter in _LETTERS.items())

_NEEDS = {
    "x": "x, the layer's input: rw.Attention(q, k, v, x=x)",
    "cameras": "positions that carry a camera for each token",
    "grid": "positions with axes: rw.grid_positions(rows, columns)",
    "segments": "positions by segment: rw.segment_positions(ids, separators)",
    "layout": "positions of a layout: rw.layout([rw.Text(3), rw.Image(2, 5), rw.Text(4)])",
    "code": "positions by function and class: rw.code_positions(source, offsets)",
    "headings": "positions of road users: rw.heading_positions(xy, heading)",
    "speakers": "frames with speakers: rw.speaker_positions(activity)",
    "spectra": "positions by wavelength: rw.spectrum_positions(wavelength), rw.patch_spectrum(wavelength, flux, 8).positions",
    "formulas": "tokens with paths: rw.formula_positions([rw.latex_position_forest(tokens)])",
    "hierarchy": "positions by paragraph: rw.hierarchical_positions(paragraph_ends, sentence_ends)",
    "coupling": 'coupled positions: rw.coupled_positions([rw.couple("addition", "653", "49")])',
    "switching": "tokens with languages: rw.switching_positions([tags])",
    "references": "a video and its reference images: rw.reference_coords((2, 4, 6), [(3, 2), (2, 2)])",
    "conditions": "a video and its conditions: rw.condition_coords((2, 4, 6), 1, 3, t_ref=40, t_invalid=60)",
    "events": "a video and the captions of its events: rw.event_layout(rw.read_entities(records), 8, 4, 2.0).positions",
    "depth": "pictures with depth: rw.depth_axis(rw.centered_grid_ids([(4, 6), (4, 6)]), depth)",
    "mixed_resolution": "tokens of several resolutions: rw.mixed_resolution_positions(mask, 2), mask: which cells are divided",
    "shared_grid": "a target and its references: rw.shared_grid_positions((4, 6), [(4, 6)])",
    "denoising": "the step of denoising beside positions with axes: rw.at_step(rw.grid_positions(2, 4, 6), step, steps)",
}


_TEXT = ("sequence", "segments", "layout", "hierarchy", "formulas", "coupling", "switching")
"""Domains of tokens that are written one after the other, and so decoded."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; an error of ropewalk's own is one line on stderr and exit status 2."""
    run_app(app, "ropewalk", argv)


def run_app(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> None:
    """Run a command line as `main` does, for commands that are started by themselves."""
    for stream in (sys.stdout, sys.stderr):
        # Names and formulas are not ASCII: a terminal that cannot show a letter gets "?" and not a traceback.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with _plain_warnings():
            app(args=spread(sys.argv[1:] if argv is None else argv), prog_name=name)
    except RopewalkError as error:
        _complain(str(error))
        raise SystemExit(2) from None


def spread(arguments: Sequence[str], option: str = "--data") -> list[str]:
    """Let an option take several values, as shells expand globs: ``--data a b`` -> ``--data a --data b``.

    And let ``--ray`` stand alone: ``--ray`` -> ``--ray auto``.
    """
    out: list[str] = []
    inside = False
    for argument, after in zip(arguments, [*arguments[1:], "-"], strict=True):
        if inside and not argument.startswith("-") and out[-1] != option:
            out.append(option)
        inside = argument == option or (inside and not argument.startswith("-"))
        out.append(argument)
        if argument == "--ray" and after.startswith("-"):
            out.append("auto")
    return out


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # Without a docstring: it would replace the application's help text.
    pass


@app.command("list", help=f"List the encodings there are. Traits: {_LEGEND}.")
def list_encodings(
    kind: Annotated[str | None, typer.Option(help=f"Only this kind: {', '.join(KINDS)}.")] = None,
    search: Annotated[str | None, typer.Option(help="Only records that contain this text.")] = None,
    trait: Annotated[
        list[str] | None,
        typer.Option(help=f"Only encodings with this trait: {', '.join(TRAITS)}. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print full records as JSON.")] = False,
) -> None:
    """Print a table of the records asked for, or the records themselves."""
    chosen = sorted(_matching(kind, search, trait or []), key=lambda entry: entry.slug)
    if as_json:
        _print_json([entry.as_dict() for entry in chosen])
        return
    console = _console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("slug", no_wrap=True, style="bold")
    table.add_column("name", overflow="fold")
    for title in ("kind", "year", "arXiv", "traits"):
        table.add_column(title, no_wrap=True)
    for entry in chosen:
        letters = "".join(letter if getattr(entry.traits, name) else "-" for name, letter in _LETTERS.items())
        row = (entry.slug, entry.name, entry.kind, str(entry.year), entry.arxiv or "-", letters)
        table.add_row(*map(Text, row))
    console.print(table)
    if console.is_terminal:  # a pipe gets rows and nothing else
        console.print(Text(f"{len(chosen)} encodings. Traits: {_LEGEND}.", style="dim"))


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of an encoding, as `ropewalk list` prints it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    with_map: Annotated[bool, typer.Option("--map/--no-map", help="Draw what it does to attention.")] = True,
    length: Annotated[
        int | None, typer.Option(help="Tokens of that, drawn at random where no example of its own has so many.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Save that as a picture.", metavar="FILE")] = None,
) -> None:
    """Show one encoding: formula, paper, traits, use and what it does to attention."""
    try:
        entry = record(name)
    except UnknownNameError:
        candidates = shared(name)
        if not candidates:
            raise
        _complain(f"{name!r} may mean several methods:")
        for candidate in candidates:
            print(f"  {candidate}: {candidate.summary}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        if png is not None:
            raise ConfigError("--json prints the record and nothing else: call again without it for the picture")
        _print_json({**entry.as_dict(), "doc": _doc(entry)})
        return
    console = _console()
    console.print(Text.assemble((entry.name, "bold"), f"  ({entry.slug}, {entry.kind})"))
    console.print(Text(entry.summary))
    for title, lines, code in _sections(entry):
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            # Code and formulas keep their lines: a wrapped formula reads as another one.
            console.print(
                Padding(Text(line), (0, 0, 0, 2), expand=False) if not code else Text(f"  {line}"),
                soft_wrap=code,
            )
    if with_map or png is not None:
        _show_map(entry, console, length, with_map, png)


def _show_map(entry: Record, console: Console, length: int | None, as_text: bool, png: Path | None) -> None:
    """Draw an example with names, or where the tokens of a layout are, or a map of any tokens; of a given length the last."""
    try:
        from ropewalk.analysis.attention_map import attention_map  # with torch, which nothing else here needs
        from ropewalk.analysis.layout_picture import draw_layout, layout_picture, save_layout
        from ropewalk.analysis.picture import draw_text, ink_for, save_picture
        from ropewalk.analysis.scene_picture import draw_scene, save_scenes, scene_pictures

        width = min(console.width, 80) - 2
        if length is None:
            examples = scene_pictures(entry)
            placed = layout_picture(entry)
            if png is not None and examples:
                save_scenes(examples, png)
            elif png is not None and placed is not None:
                save_layout(placed, png)
            if placed is not None:
                _print_picture(console, "Coordinates", draw_layout(placed, width), as_text, None if examples else png)
            for i, example in enumerate(examples):
                last = i == len(examples) - 1
                lines = draw_scene(example, width, ink_for(console.encoding))
                _print_picture(console, "Example", lines, as_text, png if last else None)
            if examples or placed is not None:
                return
        what = attention_map(entry, 48 if length is None else length)
        if png is not None:
            save_picture(what, png)
    except (RopewalkError, ImportError) as problem:  # a record of another package, or no torch
        if png is not None:
            raise ConfigError(f"no picture of {entry.slug}: {problem}") from None
        console.print()
        console.print(Text(f"(no attention map: {problem})"))
        return
    lines = draw_text(what, min(console.width, 80) - 2, ink_for(console.encoding)) if as_text else []
    _print_picture(console, "Attention", lines, as_text, png)


def _print_picture(console: Console, title: str, lines: list[Text], as_text: bool, png: Path | None) -> None:
    if as_text:
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text("  ").append_text(line), soft_wrap=True)
    if png is not None:
        console.print()
        console.print(Text(f"saved {png}"), soft_wrap=True)


app.command("compare")(comparison(compare, COMPARE))
app.command("report")(report)
app.command("extend")(extend)
app.command("reproduce")(reproduce)
app.command("evidence")(evidence)
app.command("verify", help=VERIFY)(verify)
app.command("inspect", help=INSPECT)(inspect)


def _sections(entry: Record) -> Iterator[tuple[str, list[str], bool]]:
    """Yield what `show` prints below the name: title, lines, whether they are code."""
    doc = _doc(entry)
    yield "Formula", [f"({entry.factory} has no readable docstring)"] if doc is None else _opening(doc), True
    paper = [f"{entry.paper} ({entry.year})", entry.authors, entry.url or "no arXiv id known"]
    yield "Paper", paper, False
    yield "Traits", _traits(entry), False
    if entry.needs:
        yield "Needs", [_NEEDS.get(need, need) for need in entry.needs], False
    yield "Use", _usage(entry), True
    if others := namesakes(entry.slug):
        yield "Not to be confused with", [f"{other}: {other.summary}" for other in others], False
    if entry.evidence:
        yield "Evidence", [f"ropewalk reproduce {Path(entry.evidence).stem}  (writes {entry.evidence})"], False


def _traits(entry: Record) -> list[str]:
    traits = entry.traits
    held = [name.replace("_", " ") for name in TRAITS if getattr(traits, name)]
    reach = "no largest position" if traits.max_position is None else f"positions up to {traits.max_position}"
    causal = {"any": "causal or not", "only": "causal only", "never": "never causal"}[traits.causal]
    training = {"scratch": "trained from scratch", "drop-in": "drops into a trained model"}[traits.training]
    return [
        ", ".join(held),
        f"domain: {traits.domain}; {causal}; {reach}; {training}",
        *(f"equals {case}" for case in traits.reduces_to),
    ]


def _usage(entry: Record) -> list[str]:
    arguments = "".join(f", {name}={value!r}" for name, value in entry.defaults.items())
    lines = ["import ropewalk as rw", f'encoding = rw.build("{entry.slug}"{arguments})']
    if entry.kind == "embedding":
        lines.append("x = encoding.embed(x, positions)")
        if "segments" not in entry.needs:  # what orders segments acts in attention too
            return lines
    problem = "q, k, v"
    if set(entry.needs) - {"x"}:
        problem += ", positions"
    if "x" in entry.needs:
        problem += ", x=x"
    if entry.traits.causal == "never" or entry.traits.domain not in _TEXT:
        problem += ", causal=False"
    return [*lines, f"out = rw.attend(encoding(rw.Attention({problem})))"]


def _matching(kind: str | None, search: str | None, traits: Iterable[str]) -> list[Record]:
    wanted = [_one_of("trait", normalise(name), TRAITS) for name in traits]
    if kind is not None:
        kind = _one_of("kind", normalise(kind), KINDS)
    text = (search or "").casefold()
    return [
        entry
        for entry in catalog()
        if kind in (None, entry.kind)
        and all(getattr(entry.traits, name) for name in wanted)
        and text in " ".join(_searchable(entry)).casefold()
    ]


def _searchable(entry: Record) -> tuple[str, ...]:
    return entry.slug, entry.name, entry.summary, entry.paper, entry.authors, entry.arxiv or ""


def _one_of(what: str, name: str, choices: Sequence[str]) -> str:
    if name in choices:
        return name
    raise ConfigError(f"no {what} is called {name!r}; there are {', '.join(choices)}.{suggest(name, choices)}")


def _opening(doc: str) -> list[str]:
    """Return the first paragraph, with the indented ones that follow it: the formula."""
    kept: list[str] = []
    for paragraph in doc.split("\n\n"):
        if kept and not paragraph.startswith((" ", "\t")):
            break
        kept += ["", *paragraph.splitlines()] if kept else paragraph.splitlines()
    return kept


def _doc(entry: Record) -> str | None:
    try:
        return entry.doc()
    except ConfigError:  # another package may ship no source; its record can still be shown
        return None


def _console() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    # A pipe has no width: rows stay whole, for grep and awk.
    return Console(highlight=False, markup=False, emoji=False, width=1000)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _complain(message: str) -> None:
    print(textwrap.shorten(f"ropewalk: {message}", width=10_000), file=sys.stderr)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print the catalog's warnings as lines for people, without the source line they come from."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", CatalogWarning)
        warnings.showwarning = lambda message, *_, **__: _complain(f"warning: {message}")
        yield
