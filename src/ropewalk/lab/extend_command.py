"""``ropewalk extend``. Nothing here imports torch before there is work for it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.lab.command import make_console, numbers

if TYPE_CHECKING:
    from ropewalk.lab.extend.driver import Outcome
    from ropewalk.lab.extend.summary import Summary

_MEASURING, _TUNING, _RUNNING = "Measuring", "Tuning", "Running"


def extend(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A folder with config.json and safetensors, or a .gguf file. It is only read."
        ),
    ],
    to: Annotated[str, typer.Option(help="The wanted context: 4x the trained one, or tokens, as 131072.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Schedules and encodings, between commas or repeated: 'yarn,ntk', 'string_shifted(shift=2000)', in a row with "
            "'>': 'ntk > clipped'. Arguments that are left out follow from the checkpoint. Default: pi, ntk, yarn."
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="longrope: search a factor for each plane by the loss on the text.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Files, folders, globs, .jsonl, .parquet, or hf:NAME. Several: repeated. Default: the source of Python's "
            "standard library."
        ),
    ] = None,
    text_column: Annotated[str, typer.Option(help="Column of tables that holds the text.")] = "text",
    windows: Annotated[int, typer.Option(help="Windows of text at each length.", rich_help_panel=_MEASURING)] = 16,
    scored: Annotated[
        int | None,
        typer.Option(
            help="Tokens at the end of a window whose loss counts. Default: a quarter of the trained length.",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    needles: Annotated[
        int,
        typer.Option(
            help="Texts, each with a hidden sentence at every depth, at each length.", rich_help_panel=_MEASURING
        ),
    ] = 4,
    depths: Annotated[
        str, typer.Option(help="Where they are, from 0 to 1.", rich_help_panel=_MEASURING)
    ] = "0,0.25,0.5,0.75,1",
    definitions: Annotated[
        int, typer.Option(help="Definitions of the text's own code asked for.", rich_help_panel=_MEASURING)
    ] = 8,
    control: Annotated[
        bool,
        typer.Option(
            help="Also ask what the text does not answer, to see what having read it is worth; twice the passes.",
            rich_help_panel=_MEASURING,
        ),
    ] = True,
    search_iterations: Annotated[int, typer.Option(help="Of the search.", rich_help_panel=_MEASURING)] = 4,
    search_population: Annotated[
        int, typer.Option(help="Sets of factors at its start.", rich_help_panel=_MEASURING)
    ] = 16,
    search_windows: Annotated[
        int, typer.Option(help="Windows that each set is scored on.", rich_help_panel=_MEASURING)
    ] = 2,
    lm_eval: Annotated[
        list[str] | None,
        typer.Option(
            help="Tasks, groups or tags of the package lm-eval, or YAML files that describe some, for every method; between "
            "commas or repeated.",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    tune: Annotated[
        int, typer.Option(help="Steps of training with each method, and measure again.", rich_help_panel=_TUNING)
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Train all parameters instead of adapters.", rich_help_panel=_TUNING)
    ] = False,
    recipe: Annotated[
        str,
        typer.Option(
            help="endprompt, endprompt_random or pose: short sequences at positions of the long context; full: long sequences; "
            "anchor: long ones whose documents share their first token alone.",
            rich_help_panel=_TUNING,
        ),
    ] = "endprompt",
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate. Default: 0.0002, with --full 0.00002.", rich_help_panel=_TUNING),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences a step.", rich_help_panel=_TUNING)] = 8,
    rank: Annotated[int, typer.Option(help="Of the adapters.", rich_help_panel=_TUNING)] = 8,
    gradient_checkpointing: Annotated[
        bool,
        typer.Option("--gradient-checkpointing", help="Less memory, a third more time.", rich_help_panel=_TUNING),
    ] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.", rich_help_panel=_TUNING)] = 20,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. Default: a name made of the settings, so that the same command goes on with it.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
    choose: Annotated[
        str | None,
        typer.Option(
            help="The method whose model is written ('yarn, tuned' after tuning). Default: the lowest loss at the wanted length.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
    write: Annotated[bool, typer.Option(help="Write the chosen model.", rich_help_panel=_RUNNING)] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Extend a model that was extended before.", rich_help_panel=_RUNNING)
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, cuda:1. Default: a GPU where there is one.", rich_help_panel=_RUNNING),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="auto (as in the checkpoint), float32, bfloat16, float16.", rich_help_panel=_RUNNING)
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.", rich_help_panel=_RUNNING)] = 0,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try methods again that failed before.", rich_help_panel=_RUNNING)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, only the table.", rich_help_panel=_RUNNING)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a summary as JSON and nothing else.", rich_help_panel=_RUNNING)
    ] = False,
) -> None:
    """Give a trained model a longer context, and say what that costs.

    Every method is measured at the trained and at longer lengths: loss by position, hidden sentences, definitions far above. The
    same command goes on with a run that was interrupted. Exit status: 0, 1 if a method failed, 2 for bad input.
    """
    from ropewalk.catalog.expression import split_list
    from ropewalk.lab.extend import Extension
    from ropewalk.lab.extend import extend as run
    from ropewalk.lab.extend.driver import default_folder

    methods = [name for one in method or () for name in split_list(one)]
    settings = Extension(
        checkpoint,
        to,
        methods=tuple(methods or (() if search else ("pi", "ntk", "yarn"))),
        search=search,
        data=tuple(text or ()),
        text_column=text_column,
        windows=windows,
        scored=scored,
        needles=needles,
        depths=tuple(numbers("--depths", depths, float)),
        definitions=definitions,
        control=control,
        search_iterations=search_iterations,
        search_population=search_population,
        search_windows=search_windows,
        tune=tune,
        full=full,
        recipe=recipe,
        lr=lr,
        batch_size=batch_size,
        rank=rank,
        gradient_checkpointing=gradient_checkpointing,
        checkpoint_every=checkpoint_every,
        lm_eval=tuple(name for names in lm_eval or () for name in names.split(",") if name.strip()),
        choose=choose,
        force=force,
        dtype=dtype,
        seed=seed,
    )
    silent = quiet or as_json
    outcome = run(
        settings,
        out or default_folder(settings),
        device=device,
        say=(lambda line: None) if silent else (lambda line: print(line, file=sys.stderr, flush=True)),
        command=" ".join(["ropewalk", *map(shlex.quote, sys.argv[1:])]),
        write=write,
        retry_failed=retry_failed,
    )
    _conclude(outcome, as_json)
    if outcome.failed:
        raise typer.Exit(1)


def _conclude(outcome: Outcome, as_json: bool) -> None:
    """Write the report, and print the table or a summary as JSON."""
    from rich.table import Table
    from rich.text import Text

    from ropewalk.lab.extend import summary
    from ropewalk.lab.extend.report import write_report
    from ropewalk.lab.runs import read_settings

    made = summary.summarise(outcome.records, read_settings(outcome.folder))
    path = write_report(outcome.folder, outcome.chosen, outcome.written)
    if as_json:
        found = {
            **summary.as_json(made),
            "chosen": outcome.chosen,
            "written": outcome.written,
            "failed": outcome.failed,
            "folder": str(outcome.folder),
            "report": str(path),
        }
        print(json.dumps(found, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold")
    for column in _columns(made):
        table.add_column(column, justify="right", no_wrap=True)
    for row in made.rows:
        table.add_row(Text(row.name), *_cells(made, row))
    console = make_console()
    console.print(table)
    for line in ["", *summary.headlines(made, outcome.chosen)]:
        console.print(line, soft_wrap=True)
    for name, reason in outcome.failed.items():
        console.print(f"{name} failed: {reason}", soft_wrap=True)
    if outcome.written is not None:
        console.print(f"\nmodel: {outcome.written['path']} ({outcome.chosen})", soft_wrap=True)
    console.print(f"report: {path}", soft_wrap=True)


def _columns(made: Summary) -> list[str]:
    columns = [column for n in made.lengths for column in (f"loss at\n{n}", "against\nunchanged")]
    if any(row.needles for row in made.rows):
        columns.append(f"found at\n{made.wanted}")
    return columns


def _cells(made: Summary, row: object) -> list[str]:
    from ropewalk.lab.extend.summary import Row, percent, written

    assert isinstance(row, Row)
    cells = [text for n in made.lengths for text in (written(row.losses.get(n)), written(row.gaps.get(n), signed=True))]
    if any(r.needles for r in made.rows):
        cells.append(percent(row.needles[made.wanted]) if made.wanted in row.needles else "–")
    return cells
