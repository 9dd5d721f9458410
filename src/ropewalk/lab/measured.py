"""The measurements of one run, to be asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ropewalk.lab.results import Record
from ropewalk.lab.runs import read_results, read_settings


class Results:
    """The records of one run and what was asked for.

    Numbers that are not finite are taken out and listed among the failures: they are no measurements, and one diverged
    trial must not hide the others.

    Args:
        records: as in `ropewalk.lab.results`.
        settings: as in ``settings.json``; what is read of it: `settings`, `workload`, and, where they are there, `rank` and
            `reference` (see `board`).

    Attributes:
        records: the measurements.
        failures: `failed` records, one for each trial that ended early and each measurement that is not finite.
        refusals: `refused` records, one for each encoding and measurement.
    """

    def __init__(self, records: Iterable[Record], settings: Mapping[str, Any] | None = None) -> None:
        self.settings: Mapping[str, Any] = settings or {}
        self.asked: Mapping[str, Any] = self.settings.get("settings") or {}
        self.records: list[Record] = []
        self.failures: list[Record] = []
        refusals: dict[tuple[str, str], Record] = {}
        for record in _latest(records):
            if record["kind"] == "failed":
                self.failures.append(record)
            elif record["kind"] == "refused":
                refusals.setdefault((record["encoding"], record["what"]), record)
            elif (bad := _not_finite(record)) is not None:
                self.failures.append({**record, "kind": "failed", "reason": bad})
            else:
                self.records.append(record)
        self.refusals = list(refusals.values())

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read the folder of a run, finished or not."""
        return cls(read_results(folder), read_settings(folder))

    def of(self, kind: str, **fields: object) -> list[Record]:
        """Return the records of a kind whose fields have these values."""
        return [r for r in self.records if r["kind"] == kind and all(r.get(name) == v for name, v in fields.items())]

    @cached_property
    def encodings(self) -> list[str]:
        """Encodings in the order they were asked for."""
        return list(
            dict.fromkeys([*self.asked.get("encodings", ()), *(r["encoding"] for r in self.records + self.failures)])
        )

    @property
    def task(self) -> str:
        """The task, or "text"."""
        return str(next((r["task"] for r in self.records), self.asked.get("task", "text")))

    @property
    def size_name(self) -> str | None:
        """What sizes count: tokens of text, digits or pairs of a task; None if nothing says."""
        return "tokens" if self.task == "text" else (self.settings.get("workload") or {}).get("size_name")

    @cached_property
    def metric(self) -> str:
        """Kind of record that the encodings are ranked by: "exact" where answers are right or wrong, else "loss"."""
        return "exact" if self.of("exact") else "loss"

    @cached_property
    def split(self) -> str:
        """Split of the losses: "test", or "validation" as long as nothing was tested."""
        return "test" if self.of("loss", split="test") else "validation"

    @cached_property
    def sizes(self) -> list[int]:
        """Lengths of text, or sizes of a task, that were scored."""
        return sorted({r[_size(self.metric)] for r in self.scores()})

    @cached_property
    def trained(self) -> int | None:
        """The trained length of text, or the largest trained size of a task; None if nothing says."""
        if self.metric == "exact":
            return max((r["size"] for r in self.of("exact") if r["trained"]), default=None)
        length = self.asked.get("train_length")
        return None if length is None else int(length)

    def scores(self, encoding: str | None = None, size: int | None = None) -> list[Record]:
        """Return the records that rank, of one encoding and size or of all."""
        fields: dict[str, object] = {"split": self.split} if self.metric == "loss" else {}
        if encoding is not None:
            fields["encoding"] = encoding
        if size is not None:
            fields[_size(self.metric)] = size
        return self.of(self.metric, **fields)

    @cached_property
    def missing(self) -> list[str]:
        """Trials that were asked for and have neither scores nor a failure, as "encoding, seed n"."""
        seeds = self.asked.get("seeds")
        if seeds is None:
            return []
        first = self.asked.get("first_seed", 0)
        seen = {(r["encoding"], r["seed"]) for r in self.scores()}
        # A learning rate that failed is no failure of the encoding, unless none is left to train it with.
        rates = len(self.asked.get("lr_sweep") or ())
        in_sweep = [f["encoding"] for f in self.failures if not f["trial"].endswith(f"-s{f['seed']}")]
        seen |= {(f["encoding"], f["seed"]) for f in self.failures if f["trial"].endswith(f"-s{f['seed']}")}
        beyond_hope = {name for name in in_sweep if in_sweep.count(name) == rates}
        wanted = [
            (name, seed) for name in self.encodings for seed in range(first, first + seeds) if name not in beyond_hope
        ]
        return [f"{name}, seed {seed}" for name, seed in wanted if (name, seed) not in seen]


def _size(metric: str) -> str:
    return "size" if metric == "exact" else "length"


# What tells records of a kind apart, within a trial.
_KEYS: dict[str, tuple[str, ...]] = {
    "loss": ("split", "length"),
    "positions": ("length",),
    "retrieval": ("length", "depth", "metric"),
    "definition": ("length", "metric"),
    "lm-eval": ("what", "metric"),
    "exact": ("size",),
    "places": ("size", "side"),
    "seam": ("size",),
    "speed": ("what", "length"),
    "memory": ("what", "length"),
    "learned": ("name",),
    "fixed": ("name",),
    "sweep": ("lr",),
    "refused": ("what",),
    "failed": ("reason",),
}


def _latest(records: Iterable[Record]) -> list[Record]:
    """Keep the later of records that measure the same: a trial that was resumed may repeat itself."""
    kept: dict[tuple[object, ...], Record] = {}
    for record in records:
        key = (record["kind"], record["trial"], *(record.get(name) for name in _KEYS.get(record["kind"], ())))
        kept[key] = record
    return list(kept.values())


def _not_finite(record: Record) -> str | None:
    """Return the reason why a record is no measurement, or None."""
    for name, value in record.items():
        if name == "context" or _all_finite(value):
            continue
        where = ", ".join(f"{key} {record[key]}" for key in _KEYS.get(record["kind"], ()) if key in record)
        return f"{name} of {record['kind']}{f' ({where})' if where else ''} is not a finite number"
    return None


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_all_finite, value.values()))
    if isinstance(value, list):
        return all(map(_all_finite, value))
    return True
