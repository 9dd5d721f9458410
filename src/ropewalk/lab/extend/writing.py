"""The extended model, written whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ropewalk.integrations.transformers.export import CannotExport, export
from ropewalk.lab.extend.methods import is_static
from ropewalk.lab.files import write_json

MODEL = "model"
"""Folder of the extended model in the folder of a run."""

NOTE = "extended.json"
"""What was done, beside the weights."""


def write_model(model: Any, tokenizer: Any, folder: Path, wanted: int, about: dict[str, Any]) -> dict[str, Any]:
    """Write a model and its tokenizer into the folder ``model`` of a run.

    Where other frequencies are all that was done, plain transformers loads what is written, which is tried in a process that
    cannot import ropewalk. Anything else comes back with `ropewalk.hf.load`.

    Args:
        model: as it is to be.
        tokenizer: is written beside it.
        folder: of the run.
        wanted: tokens of the wanted context.
        about: what to keep beside the weights.

    Returns:
        path, loads_with, difference (of the logits in plain transformers; None where they were not compared) and lost.
    """
    target, partial = folder / MODEL, folder / f".{MODEL}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    told: dict[str, Any] = {"path": str(target), "loads_with": "transformers", "difference": None, "lost": []}
    try:
        written = False
        if is_static(model):
            try:
                made = export(model, partial, max_length=wanted)
                told |= {"difference": made.difference, "lost": list(made.lost)}
                written = True
            except CannotExport as problem:
                shutil.rmtree(partial, ignore_errors=True)
                told["lost"] = [f"plain transformers cannot say it: {problem}"]
        if not written:
            model.save_pretrained(partial)
            told["loads_with"] = "ropewalk.hf.load"
        tokenizer.save_pretrained(partial)
        write_json(partial / NOTE, {**about, **told})
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return told
