"""``ropewalk inspect``. Nothing here imports torch before there is work for it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.analysis.inspection.configuration import Inspection
    from ropewalk.analysis.inspection.findings import Finding, Section, Table

HELP = """Find what is wrong with a model's positions, from its configuration alone, and with --text from its weights too.

Exit status: 0, 1 if there are errors, 2 for bad input."""

_ROWS = 12
_LOOKS = {"error": "bold red", "warning": "bold yellow", "note": "dim"}


def inspect(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_CONFIG", help="A config.json, a folder with one, a .gguf file or a folder with one."
        ),
    ],
    context: Annotated[int | None, typer.Option(help="Tokens wanted. Default: what the configuration is for.")] = None,
    dtype: Annotated[
        str, typer.Option(help="fp32, bf16 or fp16: what becomes of tables that are computed in it.")
    ] = "fp32",
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text files to measure the weights with; loads the model. Repeatable.", metavar="FILE"),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of a piece of text.")] = 512,
    texts: Annotated[int, typer.Option(help="Pieces that are read.")] = 8,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="A folder for report.html and inspection.json.", metavar="DIR")
    ] = None,
) -> None:
    """Inspect a configuration, or a model."""
    from ropewalk.analysis.inspection.configuration import inspect_config, parse_dtype

    read = [_text(file) for file in text or ()]  # before anything is loaded
    _check_out(out)
    values, gguf = _config(model)
    found = inspect_config(
        values, context=context, dtype=parse_dtype(dtype), subject=_subject(model), compare_engines=not gguf
    )
    console = None if as_json else _console()
    if console is not None:
        _print_sections(console, found.sections)
    if read:
        measured = []
        options = {"max_tokens": tokens, "max_texts": texts, "context": context, "seed": seed}
        for section in _measured(model, gguf, read, options):
            measured.append(section)
            if console is not None:
                _print_sections(console, [section])
        found = found.with_sections(measured)
    if console is None:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print_findings(console, found)
    if out is not None:
        _write(out, found, console)
    if found.errors:
        raise typer.Exit(1)


# ---- what is read --------------------------------------------------------------------------------------------------


def _config(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the configuration that a path names, and whether it is that of a GGUF file."""
    from ropewalk.integrations.gguf_config import gguf_config
    from ropewalk.integrations.transformers.config_file import read_config
    from ropewalk.integrations.transformers.gguf import MAGIC

    if not path.exists():
        raise ConfigError(f"{path} does not exist; give a config.json, a folder with one, or a .gguf file")
    if path.is_dir():
        if (path / "config.json").exists():
            return read_config(path), False
        if any(path.glob("*.gguf")):
            return gguf_config(path), True
        raise ConfigError(f"{path} holds no config.json and no .gguf file")
    with path.open("rb") as opened:
        is_gguf = opened.read(len(MAGIC)) == MAGIC
    return (gguf_config(path), True) if is_gguf or path.suffix == ".gguf" else (read_config(path), False)


def _subject(path: Path) -> str:
    whole = path.resolve()
    return whole.parent.name if whole.name == "config.json" and whole.parent.name else whole.name


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{file} cannot be read as text ({problem})") from None


def _measured(path: Path, gguf: bool, texts: list[str], options: dict[str, Any]) -> Any:
    """Return the sections of a model's weights, as they come."""
    from ropewalk import hf
    from ropewalk.integrations.transformers.gguf import load_gguf, quantisation

    if gguf:
        loaded, tokenizer = load_gguf(path)
        remark = f"Weights are {quantisation(path)}, dequantised."
        return hf.measure(loaded, tokenizer, texts, remark=remark, **options)
    folder = path if path.is_dir() else path.parent
    from transformers import AutoTokenizer

    loaded = hf.load(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as problem:
        raise ConfigError(f"{folder} has no tokenizer that can be loaded ({problem}); --text needs one") from None
    return hf.measure(loaded, tokenizer, texts, **options)


# ---- what is said --------------------------------------------------------------------------------------------------


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    return Console(highlight=False, markup=False, emoji=False, width=100) if piped else console


def _print_sections(console: Console, sections: Sequence[Section]) -> None:
    from rich.text import Text

    for section in sections:
        if section.name.startswith("Engines"):
            continue  # its table is the same for every model; its findings are printed with the others
        for table in section.tables:
            console.print(Text.assemble((section.name, "bold"), f": {table.title.lower()}"))
            _print_table(console, table)
            console.print()


def _print_table(console: Console, table: Table) -> None:
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in table.header:
        drawn.add_column(title, overflow="fold")
    for row in _some(table.rows):
        drawn.add_row(*map(Text, row))
    console.print(drawn)
    if len(table.rows) > _ROWS:
        console.print(Text(f"({_ROWS} of {len(table.rows)} rows)", style="dim"))
    if table.note:
        console.print(Text(table.note, style="dim"))


def _some(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the first and the last row and some between them, where there are many."""
    if len(rows) <= _ROWS:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (_ROWS - 1))] for i in range(_ROWS)]


def _print_findings(console: Console, found: Inspection) -> None:
    from rich.text import Text

    for finding in found.findings:
        _print_finding(console, finding)
    counts = {kind: sum(f.severity == kind for f in found.findings) for kind in _LOOKS}
    said = ", ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in counts.items())
    console.print(Text(f"{found.subject}: {said}", style="bold"))


def _print_finding(console: Console, finding: Finding) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text.assemble((f"{finding.severity}: ", _LOOKS[finding.severity]), finding.title))
    for line in (finding.evidence, f"change: {finding.fix}" if finding.fix else ""):
        if line:
            console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


# ---- what is written -----------------------------------------------------------------------------------------------


def _check_out(out: Path | None) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; --out is a folder")


def _write(out: Path, found: Inspection, console: Console | None) -> None:
    from ropewalk.lab.files import write_json
    from ropewalk.lab.report.inspection import write_inspection

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "inspection.json", found.as_dict())
        path = write_inspection(out, found)
    except OSError as problem:
        raise ConfigError(f"{out} cannot be written to ({problem})") from None
    if console is not None:
        from rich.text import Text

        console.print(Text(f"wrote {path}"), soft_wrap=True)
