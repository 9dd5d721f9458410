"""Data sets of the Hugging Face hub, as rows of text. No code of a data set is ever run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ropewalk.core.errors import ConfigError
from ropewalk.lab.data.extras import need

HUB = "hf:"


@dataclass(frozen=True, slots=True)
class HubData:
    """One split of a data set.

    Attributes:
        name: as the user spelled it, without "/", which would be a folder.
        rows: the loaded split.
        size: in bytes, about.
    """

    name: str
    rows: Any
    size: int

    def texts(self, column: str) -> Iterator[tuple[str, Any, float]]:
        """Yield the number of a row, its text, and the share of rows that came before it."""
        if column not in self.rows.column_names:
            names = ", ".join(self.rows.column_names)
            raise ConfigError(f"{self.name} has no column {column!r} of text; its columns are: {names}")
        for number, row in enumerate(self.rows.select_columns([column])):
            yield f"/{number}", row[column], number / len(self.rows)


def load_hub(source: str) -> HubData:
    """Load hf:NAME[:CONFIG][@SPLIT]; without a split it is "train".

    Raises:
        ConfigError: the package datasets is missing; the name is a path here; the data set cannot be loaded.
    """
    name, _, split = source.removeprefix(HUB).partition("@")
    name, _, config = name.partition(":")
    if not name:
        raise ConfigError(f"a data set is spelled {HUB}NAME[:CONFIG][@SPLIT]; got {source!r}")
    if os.path.exists(name):  # datasets would read, and older versions would run, what lies here
        raise ConfigError(
            f"{source!r} names a data set, but {name!r} is a path here; leave out {HUB!r} to read the path"
        )
    load = need("datasets", f"the data set {source!r}").load_dataset
    options: dict[str, Any] = {"split": split or "train"}
    if "trust_remote_code" in inspect.signature(load).parameters:  # older versions, where it could be on
        options["trust_remote_code"] = False
    try:
        rows = load(name, config or None, **options)
    except Exception as problem:  # its errors share no root: missing names, no network, bad files
        raise ConfigError(f"the data set {source!r} cannot be loaded: {type(problem).__name__}: {problem}") from problem
    return HubData(source.replace("/", "--"), rows, rows.data.nbytes)
