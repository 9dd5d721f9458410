"""``python -m ropewalk.hf``: other frequencies and encodings for checkpoints on disk, without writing code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Other frequencies or another encoding for checkpoints of transformers, and export to engines without ropewalk.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Checkpoint = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder with config.json and *.safetensors.")]
What = Annotated[
    list[str],
    typer.Argument(
        metavar="WHAT...",
        help="Schedules and encodings, one after the other: 'yarn(factor=4)', 'clipped(planes=8)', 'rope + alibi'.",
    ),
]
To = Annotated[Path, typer.Option("--to", help="A new folder.")]


BESIDES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*")
"""Files of a checkpoint that the model does not write."""


def main() -> None:
    """Run the commands of this module by themselves."""
    from ropewalk.cli import run_app

    run_app(app, "python -m ropewalk.hf")


@app.command("spectrum")
def spectrum(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A folder with a config.json, or that file.")
    ],
    length: Annotated[float | None, typer.Option(help="Tokens of the context, for types that depend on it.")] = None,
) -> None:
    """Print the frequencies that a configuration asks for, layer type by layer type."""
    from ropewalk import hf
    from ropewalk.integrations.transformers.config_file import read_config

    made = hf.spectrum(read_config(checkpoint), length=length)
    for layer_type, of in made.items():
        turning = [of.wavelengths()[i] for i in of.turning()]
        ends = f"wavelengths {min(turning):.4g} to {max(turning):.4g} tokens" if turning else "none turns"
        still = len(of.inv_freq) - len(turning)
        print(
            f"{layer_type}: {len(of.inv_freq)} planes, {still} still, {ends}, attention factor {of.attention_factor:.6g}"
        )
        print(f"  {of.origin or 'no origin known'}")


@app.command("apply")
def apply(checkpoint: Checkpoint, what: What, to: To) -> None:
    """Apply schedules and encodings to a checkpoint, and save it for `hf.load`."""
    from ropewalk.integrations.transformers.saved import check_new, whole

    check_new(to)  # before anything is loaded
    model = _changed(checkpoint, what)
    with whole(to) as made:
        model.save_pretrained(made)
        _copy_tokenizer(checkpoint, made)
    print(f"{to}: load it with ropewalk.hf.load")


@app.command("export")
def export(
    checkpoint: Checkpoint,
    to: To,
    what: Annotated[list[str] | None, typer.Argument(metavar="[WHAT...]", help="Schedules to apply first.")] = None,
    max_length: Annotated[int | None, typer.Option(help="The context it is for, as max_position_embeddings.")] = None,
    verify: Annotated[bool, typer.Option(help="Load it in another process, without ropewalk, and compare.")] = True,
) -> None:
    """Write a checkpoint that engines without ropewalk load with the same frequencies."""
    from ropewalk import hf
    from ropewalk.integrations.transformers.saved import check_new

    check_new(to)
    print(hf.export(_changed(checkpoint, what or []), to, max_length=max_length, verify=verify))
    _copy_tokenizer(checkpoint, to)


def _changed(checkpoint: Path, what: list[str]) -> Any:
    from ropewalk import hf

    model = hf.load(checkpoint, dtype="auto")
    for change in what:
        hf.apply(model, change)
    return model


def _copy_tokenizer(source: Path, to: Path) -> None:
    """Take along what a checkpoint has besides the model."""
    for pattern in BESIDES:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copy(file, to / file.name)
