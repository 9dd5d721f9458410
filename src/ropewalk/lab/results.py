"""Measurements: the records that a trial yields and that ``results.jsonl`` keeps, one a line.

Every record is a JSON object with ``kind`` and, from the trial it belongs to:

    trial      its name, unique in a run: "rope-s0"
    encoding   the name the user gave: "rope(base=500000)"
    task       "text" or the name of a task
    seed, lr   of the trial
    context    everything else that is needed to repeat it: versions, settings, data hash, hardware, command

What the kinds add:

    model      parameters, extra_parameters (the encoding's own), encodings (one name a layer)
    curve      step, tokens, loss: lists of equal length, mean training loss since the entry before;
               validation_step, validation_loss: lists of equal length
    loss       split ("validation" or "test"), length, last: mean loss in nats over the last `last` tokens of windows of
               `length` tokens; mean; documents: {name: [mean, tokens]}. The scored tokens are the same at every length.
    positions  length, edges (n + 1 positions), loss (n): mean loss of the tokens between two edges of a window
    retrieval  length, depth in [0, 1], metric ("accuracy" in [0, 1], or "nats gained": what knowing the needle saves, for
               models that were trained on text), value, count
    exact      size (the task's own length), trained (whether training had this size), exact (fraction of answers right as
               a whole), token (fraction of answer tokens right), items: [0 or 1, ...] one an example
    speed      what ("train", "prefill" or "decode"), length, tokens_per_second (median), low, high (quartiles)
    memory     what ("saved for backward", "cache"), length, bytes
    learned    name, shape, before, after: flat lists of a trained number of the encoding, at most 512 of them
    fixed      name, shape, values: flat list of a number an encoding derives from its settings (frequencies, slopes)
    sweep      lr, validation_loss, chosen: one learning rate of ``--lr-sweep``
    refused    what, reason: a measurement the encoding refuses; the others stand
    failed     reason: the trial has no other records

A run's folder also holds ``settings.json``, an object with `settings` (what `Settings.as_dict` gives) and, where they are known,
`command` (a string, or a list of arguments), `data` (facts about the text), `rank` and `reference` (see
`ropewalk.lab.summary`). The report shows all of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ropewalk.core.errors import RopewalkError

Record = dict[str, Any]

RESULTS, SETTINGS = "results.jsonl", "settings.json"
KINDS = (
    *("model", "curve", "loss", "positions", "retrieval", "exact", "speed", "memory", "learned", "fixed", "sweep"),
    "failed",
)
_TRIAL = ("trial", "encoding", "task", "seed")


class MeasurementError(RopewalkError, ValueError):
    """Measurements that are malformed, not numbers, or not made on the same documents."""


def read_results(folder: Path) -> list[Record]:
    """Return the records of a run, in the order they were written.

    A last line that was cut off is left out: the run is still writing it, or was stopped there.

    Raises:
        MeasurementError: if there are no results, or a line is no record.
    """
    path = folder / RESULTS
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise MeasurementError(f"{path} does not exist; give the folder of a run of `ropewalk compare`") from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise MeasurementError(f"{path}, line {number}, is no JSON: {error}") from None
        records.append(_checked(record, f"{path}, line {number}"))
    return records


def read_settings(folder: Path) -> dict[str, Any]:
    """Return what a run was asked for; empty if it was not written down."""
    path = folder / SETTINGS
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise MeasurementError(f"{path} is no JSON: {error}") from None
    if not isinstance(settings, dict):
        raise MeasurementError(f"{path} holds a JSON object; got {type(settings).__name__}")
    return settings


def _checked(record: Any, where: str) -> Record:
    if not isinstance(record, dict):
        raise MeasurementError(f"{where}: a record is a JSON object; got {type(record).__name__}")
    if record.get("kind") not in KINDS:
        raise MeasurementError(f"{where}: kind is one of {', '.join(KINDS)}; got {record.get('kind')!r}")
    if missing := [name for name in _TRIAL if name not in record]:
        raise MeasurementError(
            f"{where}: a record of kind {record['kind']!r} says which trial it is of; no {missing[0]!r}"
        )
    return record
