"""From a file to the texts in it."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError
from ropewalk.lab.data.extras import need

_HEAD = 8192  # bytes that show whether a file is text
_SURROGATE = re.compile("[\ud800-\udfff]")

# What is appended to the file's name, the text (of whatever type the table has), and the share of the file before it.
Rows = Iterator[tuple[str, Any, float]]


class NotText(ConfigError):
    """A file that is not UTF-8."""


def read_file(path: Path, column: str, named: bool) -> Rows:
    """Yield the texts of a file: one, or one a row of a .jsonl, .jsonl.gz or .parquet.

    Args:
        path: of the file.
        column: of the text in a table.
        named: the user named this file, so that it is read whatever is in it.

    Raises:
        NotText: a plain file that is not UTF-8, or holds NUL where the user named a folder.
        ConfigError: the file cannot be read; a table without the column; a broken line.
    """
    name = path.name.lower()
    with _readable(path):
        if name.endswith(".jsonl"):
            yield from _json_lines(path, column, zipped=False)
        elif name.endswith(".jsonl.gz"):
            yield from _json_lines(path, column, zipped=True)
        elif name.endswith(".parquet"):
            yield from _parquet(path, column)
        else:
            yield "", _plain(path, named), 0.0


def clean(text: str) -> str:
    """Return a text as every machine has it: without a byte-order mark, lines that end in LF, and no lone surrogates.

    A lone surrogate (half a character, as programs leave it that cut texts) has no UTF-8 and becomes U+FFFD.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return _SURROGATE.sub("\ufffd", text) if _SURROGATE.search(text) else text


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as problem:  # a broken .gz raises any of these
        raise ConfigError(f"{str(path)!r} cannot be read: {problem or type(problem).__name__}") from problem


def _plain(path: Path, named: bool) -> str:
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if b"\0" in head and not named:  # binary; the rest may be large
            raise NotText(f"{str(path)!r} is not text")
        raw = head + file.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise NotText(
            f"{str(path)!r} is not UTF-8 text: {problem.reason} at byte {problem.start}. Convert it to UTF-8 first"
        ) from None


def _json_lines(path: Path, column: str, zipped: bool) -> Rows:
    size = path.stat().st_size or 1
    with path.open("rb") as raw:
        lines: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw
        for number, line in enumerate(lines, 1):
            if not line.strip() or (number == 1 and line.strip() == b"\xef\xbb\xbf"):
                continue
            where = f"{str(path)!r}, line {number}"
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as problem:
                raise ConfigError(
                    f"{where} is not UTF-8: {problem.reason} at byte {problem.start} of the line"
                ) from None
            except (ValueError, RecursionError) as problem:
                raise ConfigError(f"{where} is not JSON: {problem}. Every line must be one whole JSON object") from None
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{where} is a JSON {type(row).__name__}; every line must be an object with a column {column!r}"
                )
            if column not in row:
                raise ConfigError(
                    f"{where} has no column {column!r} of text; its columns are: {', '.join(row) or 'none'}"
                )
            yield f":{number}", row[column], min(raw.tell() / size, 1.0)


def _parquet(path: Path, column: str) -> Rows:
    library = need("pyarrow.parquet", f"{str(path)!r}")
    arrow = need("pyarrow", f"{str(path)!r}")
    try:
        with library.ParquetFile(path) as table:
            if column not in table.schema_arrow.names:
                names = ", ".join(table.schema_arrow.names) or "none"
                raise ConfigError(f"{str(path)!r} has no column {column!r} of text; its columns are: {names}")
            number, total = 0, table.metadata.num_rows
            for block in table.iter_batches(batch_size=1024, columns=[column]):
                for text in block.column(0).to_pylist():
                    number += 1
                    yield f":{number}", text, number / total
    except arrow.ArrowException as problem:
        raise ConfigError(f"{str(path)!r} is not a parquet file that can be read: {problem}") from problem
