"""From what the user names (files, folders, globs, data sets) to a sorted list of things to read.

Nothing is read here but folders, so that a misspelt path is found before an hour of tokenising.
"""

from __future__ import annotations

import glob
import os
import platform
import stat
import sysconfig
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError, suggest
from ropewalk.lab.data.hub import HUB, HubData, load_hub

Source = str | os.PathLike[str]

# Folders and files of an installed standard library that are no part of it, are tests, or are generated tables.
_NOT_LIBRARY = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "__pycache__",
    "sitecustomize.py",
    "usercustomize.py",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file to read.

    Attributes:
        path: where it is.
        key: its path within its source, with "/"; decides the split.
        name: the key, preceded by the folder's name where several folders were given.
        size: in bytes.
        named: the user named this very file, so that it must hold text.
    """

    path: Path
    key: str
    name: str
    size: int
    named: bool


def find(sources: Sequence[Source]) -> tuple[list[File], list[HubData], list[str]]:
    """Find everything that is to be read; no source means Python's standard library.

    Args:
        sources: files, folders (with all that is in them), globs, and data sets as hf:NAME[:CONFIG][@SPLIT].

    Returns:
        files and data sets, sorted, so that the order in which they were named or listed does not matter, and what
        to call the sources in a report.

    Raises:
        ConfigError: a source that does not exist, cannot be read, or matches nothing.
    """
    if isinstance(sources, str | os.PathLike):
        sources = (sources,)
    if not sources:
        return list(_sorted(_library())), [], [f"standard library of Python {platform.python_version()}"]
    texts = sorted({os.fspath(source) for source in sources})
    hub = [text for text in texts if text.startswith(HUB) and not os.path.lexists(text)]
    places = [_place(text) for text in texts if text not in hub]
    # Folders come first, outermost first: a file inside that is named as well keeps its name within the folder.
    places.sort(key=lambda place: (place.named, str(place.root), place.pattern or ""))
    several = len({place.root for place in places if not place.named}) > 1
    found: dict[str, File] = {}
    for place in places:
        for path, key in place.files():
            real = os.path.realpath(path)
            if real in found:
                found[real] = replace(found[real], named=found[real].named or place.named)
                continue
            name = f"{_clean(place.root.name)}/{key}" if several and not place.named else key
            found[real] = File(path, key, name, _size(path), place.named)
    return list(_sorted(found.values())), [load_hub(text) for text in hub], texts


@dataclass(frozen=True, slots=True)
class _Place:
    """A file, a folder, or a folder and a pattern below it."""

    root: Path
    pattern: str | None = None
    named: bool = False

    def files(self) -> Iterator[tuple[Path, str]]:
        """Yield the paths and keys of the files."""
        if self.named:
            yield self.root, _clean(self.root.name)
            return
        if self.pattern is None:
            yield from ((path, _key(path, self.root)) for path in _walk(self.root))
            return
        matches = glob.glob(self.pattern, root_dir=self.root, recursive=True)
        if not matches:
            raise ConfigError(f"nothing matches {self.pattern!r} in the folder {str(self.root)!r}")
        for match in map(self.root.joinpath, sorted(matches)):
            below = _walk(match) if match.is_dir() else (match,) if match.is_file() else ()
            yield from ((path, _key(path, self.root)) for path in below)


def _place(text: str) -> _Place:
    """Read one source. A path that exists is itself, whatever letters are in it."""
    if not text:
        raise ConfigError("a source of data is a path, a glob or hf:NAME; got an empty string")
    path = Path(os.path.abspath(os.path.expanduser(text)))
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if glob.has_magic(text):
            return _glob(path)
        raise ConfigError(_missing(text, path)) from None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{text!r} cannot be read: {problem}") from problem
    if stat.S_ISDIR(mode):
        return _Place(path)
    if not stat.S_ISREG(mode):
        raise ConfigError(
            f"{text!r} is neither a file nor a folder (a pipe or a device?); save its text to a file first"
        )
    return _Place(path, named=True)


def _glob(path: Path) -> _Place:
    """Split a pattern after its longest beginning that exists: brackets may be part of a folder's name."""
    root = path.parent
    while not root.is_dir():
        root = root.parent
    return _Place(root, str(path.relative_to(root)))


def _missing(text: str, path: Path) -> str:
    try:
        near = suggest(path.name, os.listdir(path.parent))
    except OSError:
        near = ""
    return f"there is no file or folder {text!r}.{near} A data set of the Hugging Face hub is spelled {HUB}NAME[:CONFIG][@SPLIT]"


def _walk(folder: Path, skip: Callable[[str], bool] = lambda name: name.startswith(".")) -> Iterator[Path]:
    """Yield the regular files below a folder, through links, but through no folder twice."""
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            at = here.stat()
            if (at.st_dev, at.st_ino) in seen:
                continue
            seen.add((at.st_dev, at.st_ino))
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as problem:
            raise ConfigError(f"the folder {str(here)!r} cannot be read: {problem}") from problem
        folders = []
        for entry in entries:
            if skip(entry.name):
                continue
            try:
                if entry.is_dir():
                    folders.append(Path(entry.path))
                elif entry.is_file():
                    yield Path(entry.path)
            except OSError:  # a link to itself
                continue
        waiting += reversed(folders)


def _library() -> Iterator[File]:
    """Yield the modules of the standard library, about the same on every machine."""
    root = Path(sysconfig.get_path("stdlib"))

    def skip(name: str) -> bool:
        return name in _NOT_LIBRARY or name.startswith((".", "_sysconfigdata", "config-"))

    paths = [path for path in _walk(root, skip) if path.suffix == ".py"] if root.is_dir() else []
    if not paths:
        raise ConfigError(
            f"this Python has no source of its standard library in {str(root)!r}; name your own text as data"
        )
    for path in paths:
        key = _key(path, root)
        yield File(path, key, key, _size(path), named=False)


def _sorted(files: Any) -> Iterator[File]:
    """Sort by name, and number those of one name: files of different folders that were named one by one."""
    seen: Counter[str] = Counter()
    for file in sorted(files, key=lambda file: (file.name, str(file.path))):
        seen[file.name] += 1
        count = seen[file.name]
        yield file if count == 1 else replace(file, name=f"{file.name}~{count}")


def _key(path: Path, root: Path) -> str:
    return _clean(path.relative_to(root).as_posix())


def _clean(name: str) -> str:
    """Spell a path as every machine does: composed letters, and no bytes that are not UTF-8."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "replace"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as problem:
        raise ConfigError(f"{str(path)!r} cannot be read: {problem}") from problem
