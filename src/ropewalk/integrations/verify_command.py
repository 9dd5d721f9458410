"""``ropewalk verify``. Nothing here imports torch before there is work for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.core.errors import ConfigError

if TYPE_CHECKING:
    from ropewalk.analysis.verify import Verdict

DTYPES = ("float32", "bfloat16", "float16", "float64")

VERIFY = """Is a rotation what it claims to be? Measured from what goes in and what comes out.

Give a function (module:name or file.py:name) or a dump (.safetensors, .npz with q, k, q_rot, k_rot, positions) and --like, or
two checkpoints of one model with --hf. A function is your own code: its module is imported, from the current directory
first, and it is run. Exit status: 0, 1 if there is a difference, 2 for bad input."""


def verify(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[FUNCTION|DUMP]", help="module:function, file.py:function, or a .safetensors or .npz file."
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="The config.json of the model that it should be, or its folder."),
    ] = None,
    hf: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="PATH_A PATH_B", help="Two checkpoints of one model, compared layer by layer."),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            help="What the function takes, in order: 'q,k,positions', 'x,cos,sin,unsqueeze_dim=1'. Default: found out."
        ),
    ] = None,
    layout: Annotated[str | None, typer.Option(help="bhsd or bshd. Default: found out where shapes tell.")] = None,
    dtype: Annotated[
        str, typer.Option(help=f"Tensors that a function is called with: {', '.join(DTYPES)}.")
    ] = "float32",
    pairing: Annotated[str | None, typer.Option(help="half or interleaved, to overrule the configuration.")] = None,
    layer_type: Annotated[str | None, typer.Option(help="Where layers differ, such as full_attention.")] = None,
    length: Annotated[float | None, typer.Option(help="Tokens of the context, where frequencies depend on it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Compare, print what was found, and end with its status."""
    if (hf is None) == (what is None):
        raise ConfigError("give a function or a dump and --like, or two checkpoints with --hf")
    if hf is not None:
        from ropewalk.hf import verify_models

        found = verify_models(*hf)
        _print(found, found.as_dict(), as_json)
        raise typer.Exit(0 if found.same else 1)
    assert what is not None
    if like is None:
        raise ConfigError(f"say what {what} should be: --like config.json")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown; allowed are {', '.join(DTYPES)}")
    verdict = _verify(
        what, like, call=call, layout=layout, dtype=dtype, pairing=pairing, layer_type=layer_type, length=length
    )
    _print(verdict, verdict.as_dict(), as_json)
    raise typer.Exit(0 if verdict.same else 1)


def _verify(what: str, like: Path, *, dtype: str, **options: Any) -> Verdict:
    import torch

    from ropewalk.analysis.verify import read_dump
    from ropewalk.analysis.verify import verify as run
    from ropewalk.analysis.verify.calling import load_function

    dump = what.endswith((".safetensors", ".npz")) or ":" not in what
    subject = read_dump(what) if dump else load_function(what)
    return run(subject, like, dtype=getattr(torch, dtype), **options)


def _print(found: object, values: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) if as_json else found)
