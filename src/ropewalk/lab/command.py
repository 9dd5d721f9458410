"""``ropewalk compare`` and ``ropewalk report``. Nothing here imports torch before there is work for it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.core.errors import ConfigError
from ropewalk.lab.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.lab.compare import Runner, Watcher
    from ropewalk.lab.settings import Settings


@dataclass(frozen=True, slots=True)
class Options:
    """What the user said beside the settings: where and how to run, and what to print."""

    out: Path | None
    device: str | None
    ray: str | None
    cpus: float | None
    gpus: float | None
    track: tuple[str, ...]
    rank: int | None
    retry_failed: bool
    quiet: bool
    as_json: bool
    command: str


Run = Callable[["Settings", Options], None]

_MODEL, _TRAINING, _RUNNING = "Model", "Training", "Running"


def comparison(run: Run, doc: str) -> Callable[..., None]:
    """Return the command that reads settings and options and hands them on."""

    def command(
        encodings: Annotated[
            list[str] | None,
            typer.Argument(
                help="Encodings as in `ropewalk list`, with arguments and composition: 'rope(base=500000)', 'rope + alibi', "
                "or layers: 'rope:3,nope:1'. Default: rope alibi nope."
            ),
        ] = None,
        task: Annotated[
            str | None,
            typer.Option(
                help="text (language modelling), or a generated task: copy, addition, 'needle(depth=0.5)', ..."
            ),
        ] = None,
        data: Annotated[
            list[str] | None,
            typer.Option(
                help="Files, folders, globs, .jsonl, .parquet, or hf:NAME. Several: --data a b, or repeated. Default: the "
                "source of Python's standard library."
            ),
        ] = None,
        text_column: Annotated[
            str | None, typer.Option(help="Column of tables that holds the text. Default: text.")
        ] = None,
        tokenizer: Annotated[str | None, typer.Option(help="A tokenizer.json. Default: bytes.")] = None,
        train_length: Annotated[
            int | None, typer.Option(help="Tokens of a training sequence, or the largest size of a task. Default: 256.")
        ] = None,
        eval_lengths: Annotated[
            str | None, typer.Option(help="Lengths that are measured, as 512,1024. Default: once, twice, four times.")
        ] = None,
        layers: Annotated[
            list[str] | None, typer.Option(help="A pattern of layers, compared as one more encoding: 'rope:3,nope:1'.")
        ] = None,
        config: Annotated[
            Path | None,
            typer.Option(
                help="A TOML file with these options, those of running left out, and warmup; the command line wins."
            ),
        ] = None,
        size: Annotated[
            str | None,
            typer.Option(
                help="tiny (2 layers, 128 wide), small (4, 256), medium (8, 512). Default: tiny.",
                rich_help_panel=_MODEL,
            ),
        ] = None,
        hidden_size: Annotated[int | None, typer.Option(help="Width.", rich_help_panel=_MODEL)] = None,
        num_layers: Annotated[int | None, typer.Option(help="Layers.", rich_help_panel=_MODEL)] = None,
        num_heads: Annotated[int | None, typer.Option(help="Query heads.", rich_help_panel=_MODEL)] = None,
        num_kv_heads: Annotated[int | None, typer.Option(help="Key heads.", rich_help_panel=_MODEL)] = None,
        head_dim: Annotated[int | None, typer.Option(help="Width of a head.", rich_help_panel=_MODEL)] = None,
        feed_forward: Annotated[
            int | None, typer.Option(help="Inner width of the SwiGLU.", rich_help_panel=_MODEL)
        ] = None,
        qk_norm: Annotated[
            bool | None, typer.Option("--qk-norm/", help="RMSNorm on q and k.", rich_help_panel=_MODEL)
        ] = None,
        encoder: Annotated[
            bool | None,
            typer.Option(
                "--encoder/",
                help="Bidirectional attention and one answer a sequence: the class of a text, or a task with one answer.",
                rich_help_panel=_MODEL,
            ),
        ] = None,
        tokens: Annotated[
            int | None,
            typer.Option(help="Budget of training, equal for all. Default: 500,000.", rich_help_panel=_TRAINING),
        ] = None,
        batch_size: Annotated[
            int | None, typer.Option(help="Sequences a step. Default: 8.", rich_help_panel=_TRAINING)
        ] = None,
        lr: Annotated[
            float | None, typer.Option(help="Peak learning rate. Default: 0.003.", rich_help_panel=_TRAINING)
        ] = None,
        lr_sweep: Annotated[
            str | None,
            typer.Option(
                help="Try these rates for each encoding on the first seed, keep the best by validation loss: 0.001,0.003,0.01.",
                rich_help_panel=_TRAINING,
            ),
        ] = None,
        weight_decay: Annotated[
            float | None, typer.Option(help="Of matrices. Default: 0.1.", rich_help_panel=_TRAINING)
        ] = None,
        seeds: Annotated[
            int | None, typer.Option(help="How many seeds. Default: 2.", rich_help_panel=_TRAINING)
        ] = None,
        first_seed: Annotated[
            int | None, typer.Option(help="Counted from here. Default: 0.", rich_help_panel=_TRAINING)
        ] = None,
        windows: Annotated[
            int | None, typer.Option(help="Sequences measured at each length. Default: 128.", rich_help_panel=_TRAINING)
        ] = None,
        precision: Annotated[
            str | None, typer.Option(help="auto (bf16 on a GPU that has it), fp32, bf16.", rich_help_panel=_TRAINING)
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option(
                help="Folder of the run. Default: a name made of the settings, so that the same command goes on with it.",
                rich_help_panel=_RUNNING,
            ),
        ] = None,
        device: Annotated[
            str | None,
            typer.Option(help="cpu, cuda, cuda:1. Default: a GPU where there is one.", rich_help_panel=_RUNNING),
        ] = None,
        ray: Annotated[
            str | None,
            typer.Option(
                help="Run trials on Ray. Alone, or auto: on the cluster this machine belongs to, else on this machine; local: "
                "on this machine; or a cluster's address.",
                metavar="[ADDRESS]",
                rich_help_panel=_RUNNING,
            ),
        ] = None,
        cpus: Annotated[
            float | None, typer.Option(help="With --ray: CPUs a trial. Default: 1.", rich_help_panel=_RUNNING)
        ] = None,
        gpus: Annotated[
            float | None,
            typer.Option(help="With --ray: GPUs a trial. Default: 1 where there are any.", rich_help_panel=_RUNNING),
        ] = None,
        track: Annotated[
            list[str] | None,
            typer.Option(help="Also log to tensorboard or wandb. Repeatable.", rich_help_panel=_RUNNING),
        ] = None,
        checkpoint_every: Annotated[
            int | None, typer.Option(help="Steps between checkpoints. Default: 50.", rich_help_panel=_RUNNING)
        ] = None,
        rank: Annotated[
            int | None,
            typer.Option(help="Order the table by this length. Default: the trained one.", rich_help_panel=_RUNNING),
        ] = None,
        retry_failed: Annotated[
            bool, typer.Option("--retry-failed", help="Try trials again that failed before.", rich_help_panel=_RUNNING)
        ] = False,
        quiet: Annotated[
            bool, typer.Option("--quiet", "-q", help="No progress, only the table.", rich_help_panel=_RUNNING)
        ] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print a summary as JSON and nothing else.", rich_help_panel=_RUNNING)
        ] = False,
    ) -> None:
        from ropewalk.lab.settings import Settings

        shape = {
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "feed_forward": feed_forward,
        }
        said: dict[str, Any] = {
            "encodings": [*(encodings or ()), *(layers or ())],
            "task": task,
            "data": data,
            "text_column": text_column,
            "tokenizer": tokenizer,
            "train_length": train_length,
            "eval_lengths": None if eval_lengths is None else numbers("--eval-lengths", eval_lengths, int),
            "size": size,
            "qk_norm": qk_norm,
            "encoder": encoder,
            "tokens": tokens,
            "batch_size": batch_size,
            "lr": lr,
            "lr_sweep": None if lr_sweep is None else numbers("--lr-sweep", lr_sweep, float),
            "weight_decay": weight_decay,
            "seeds": seeds,
            "first_seed": first_seed,
            "windows": windows,
            "precision": precision,
            "checkpoint_every": checkpoint_every,
        }
        settings = Settings.from_dict(merged(read_config(config), said, shape))
        check_rank(settings, rank)
        invoked = " ".join(["ropewalk", *map(shlex.quote, sys.argv[1:])])
        run(
            settings,
            Options(
                out=out,
                device=device,
                ray=ray,
                cpus=cpus,
                gpus=gpus,
                track=tuple(track or ()),
                rank=rank,
                retry_failed=retry_failed,
                quiet=quiet,
                as_json=as_json,
                command=invoked,
            ),
        )

    command.__doc__ = doc
    return command


def merged(config: Mapping[str, Any], said: Mapping[str, Any], shape: Mapping[str, int | None]) -> dict[str, Any]:
    """Put the command line over the configuration file."""
    from ropewalk.lab.settings import SHAPE, several

    config = dict(config)
    table = config.pop("shape", {})
    if not isinstance(table, dict):
        raise ConfigError(f"[shape] is a table of {', '.join(SHAPE)}; got {table!r}")
    sizes = {**table, **{name: config.pop(name) for name in SHAPE if name in config}}
    sizes.update((name, value) for name, value in shape.items() if value is not None)
    given = {name: value for name, value in said.items() if value not in (None, [], ())}
    if layers := several(config.pop("layers", [])):
        config["encodings"] = [*several(config.get("encodings", [])), *layers]
    return {**config, **given, "shape": sizes}


def check_rank(settings: Settings, rank: int | None) -> None:
    """Fail before anything is trained if nothing is measured at the length that is to order the table."""
    from ropewalk.lab.workloads import resolved

    if rank is not None and rank not in (lengths := resolved(settings).eval_lengths):
        raise ConfigError(f"--rank is one of the lengths that are measured, {', '.join(map(str, lengths))}; got {rank}")


def read_config(path: Path | None) -> dict[str, Any]:
    """Read a TOML file; dashes in names are underscores."""
    if path is None:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"--config {path} cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"--config {path} is not TOML: {problem}") from None
    return {name.replace("-", "_"): value for name, value in content.items()}


def numbers(option: str, text: str, kind: type[int] | type[float]) -> list[float]:
    """Read numbers between commas."""
    try:
        return [kind(part.strip().replace("_", "")) for part in text.split(",") if part.strip()]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{option} takes {what} between commas, as 512,1024; got {text!r}") from None


def compare(settings: Settings, options: Options) -> None:
    """Run a comparison and print what came out."""
    from ropewalk.lab.compare import compare as run
    from ropewalk.lab.compare import default_folder
    from ropewalk.lab.progress import Bars, Several

    folder = options.out or default_folder(settings)
    watchers: list[Watcher] = [] if options.quiet or options.as_json else [Bars()]
    if options.track:
        from ropewalk.lab.track import Trackers

        watchers.append(Trackers(options.track, folder))
    with Several(watchers) as watcher:
        outcome = run(
            settings,
            folder,
            runner=_runner(settings, options, folder),
            watcher=watcher,
            command=options.command,
            retry_failed=options.retry_failed,
        )
    conclude(folder, options.rank, options.as_json)
    if outcome.failed:
        raise typer.Exit(1)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, as `ropewalk compare` printed it.")],
    rank: Annotated[int | None, typer.Option(help="Order the table by this length. Default: the trained one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON and nothing else.")] = False,
) -> None:
    """Print the table of a run again, and rebuild its report.html."""
    conclude(folder, rank, as_json)


def conclude(folder: Path, rank: int | None, as_json: bool) -> None:
    """Write the report of a run and print its table, or a summary as JSON."""
    from ropewalk.lab import summary, table
    from ropewalk.lab.report import write_report

    results = summary.Results.read(folder)
    try:
        path = write_report(folder, rank=rank)
    except OSError as problem:
        raise RunError(f"the report of {folder} cannot be written: {problem}") from None
    if as_json:
        found = {**summary.as_json(results, rank=rank), "folder": str(folder), "report": str(path)}
        print(json.dumps(found, indent=2))
        return
    console = make_console()
    console.print(table.render(results, width=console.width, rank=rank))
    console.print(f"\nreport: {path}", soft_wrap=True)


def make_console() -> Console:
    """Return a console that leaves text as it is; a pipe gets lines of 100 cells."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, markup=False, emoji=False, width=100)


def _runner(settings: Settings, options: Options, folder: Path) -> Runner:
    if options.ray is not None:
        from ropewalk.lab.on_ray import RayRunner

        return RayRunner(folder, settings, options.ray, cpus=options.cpus, gpus=options.gpus)
    from ropewalk.lab.local import LocalRunner
    from ropewalk.lab.place import pick_device

    pick_device(options.device)  # a device that is not there is no matter of a trial
    return LocalRunner(folder, settings, options.device)
