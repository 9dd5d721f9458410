"""A run folder: the one place where a comparison keeps what it has, safe against a kill at any moment.

    settings.json             what was asked, of which data, by which command
    corpus.safetensors        the text as tokens, so that a resumed run trains on the same
    results.jsonl             one record a measurement, append-only; see `ropewalk.lab.results`
    models/TRIAL/             trained models: safetensors and a config that `ropewalk.lab.model.load` reads
    trials/TRIAL/             a trial's checkpoint and measurements so far, then ``done.json``
    report.html               made from the above

Only the driver of a run writes here, and it holds the lock. Files are replaced whole. What a trial measured is complete
in its ``done.json`` before it is appended to ``results.jsonl``; an interrupted append is completed at the next start.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol

from filelock import FileLock, Timeout
from typing_extensions import TypeVar

from ropewalk.lab.errors import RunError
from ropewalk.lab.files import sweep, write_bytes, write_json
from ropewalk.lab.results import Record
from ropewalk.lab.settings import Settings, differences
from ropewalk.lab.trial import Finished, Measured

SETTINGS = "settings.json"
"""What a run was asked to do; without it a folder holds no run."""


class Asked(Protocol):
    """What a run was asked to do."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""


AskedT = TypeVar("AskedT", bound=Asked, default=Settings)


class RunFolder(Generic[AskedT]):
    """A folder that is open for writing, as a context manager.

    Args:
        path: of the folder; made if it is not there.
        settings: of the comparison, or whatever the run is; a folder of other settings is refused.
        grows: settings that are lists, to which more may have been added since.

    Raises:
        RunError: another process works in it, it holds another comparison, or files that are none of ours.
    """

    def __init__(self, path: str | os.PathLike[str], settings: AskedT, *, grows: Sequence[str] = ()) -> None:
        self.path, self.settings, self.grows = Path(path), settings, tuple(grows)
        self._lock = FileLock(str(self.path / ".lock"))

    def __enter__(self) -> RunFolder[AskedT]:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; --out takes a folder")
        present = set(os.listdir(self.path)) if self.path.exists() else set()
        if present - {".lock"} and SETTINGS not in present and not _ours(present):
            raise RunError(f"{self.path} holds other files and no run; give --out a new folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"another process is working in {self.path}; wait for it, stop it, or give --out another folder"
            ) from None
        except OSError as problem:
            raise RunError(f"{self.path} cannot be written: {problem.strerror or problem}") from None
        try:
            self._check()
            sweep(self.path)
            self._mend()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()  # the file stays: removing it would let two processes hold two locks
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise RunError(
                f"work in {self.path} stopped: {error}; what was finished is safe, and the same command goes on with the rest"
            ) from error

    def _check(self) -> None:
        file = self.path / SETTINGS
        if not file.exists():
            return
        ours, there = self.settings.as_dict(), dict(read_settings(self.path).get("settings", {}))
        for name in self.grows:
            if name in there and set(there[name]) <= set(ours[name]):
                there[name] = ours[name]
        if changed := differences(ours, there):
            raise RunError(
                f"{self.path} holds a run with other settings ({'; '.join(changed)}); give --out another folder, or the "
                "same settings to go on with it"
            )

    # ---- what was asked ---------------------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Whether nothing was begun here."""
        return not (self.path / SETTINGS).exists()

    @property
    def corpus(self) -> Path:
        """Where the tokens are kept."""
        return self.path / "corpus.safetensors"

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write down what was asked."""
        write_json(self.path / SETTINGS, {"settings": self.settings.as_dict(), **facts})

    # ---- trials -----------------------------------------------------------------------------------------------

    def trial(self, name: str) -> Path:
        """Return the folder of a trial."""
        folder = self.path / "trials" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def outcome(self, name: str) -> dict[str, Any] | None:
        """Return what a finished or failed trial left: status and records; None: it is not over."""
        file = self.path / "trials" / name / "done.json"
        if not file.exists():
            return None
        return _object(file, ("status", "records"), f"remove the folder {file.parent} to run this trial again")

    def checkpoint(self, name: str) -> bytes | None:
        """Return the last checkpoint of a trial."""
        file = self.path / "trials" / name / "checkpoint.safetensors"
        return file.read_bytes() if file.exists() else None

    def keep_checkpoint(self, name: str, content: bytes) -> None:
        """Replace the checkpoint of a trial."""
        write_bytes(self.trial(name) / "checkpoint.safetensors", content)

    def measured(self, name: str) -> list[Measured]:
        """Return what a trial had measured before it was interrupted."""
        lines = _lines(self.path / "trials" / name / "measured.jsonl", has=("name", "records"))
        return [Measured(line["name"], tuple(line["records"])) for line in lines]

    def keep_measured(self, name: str, measured: Measured) -> None:
        """Append one measurement of a trial that is still going on."""
        line = {"name": measured.name, "records": list(measured.records)}
        _append(self.trial(name) / "measured.jsonl", [line])

    def finish(self, name: str, records: Sequence[Record], model: Finished | None) -> None:
        """Close a trial that came to its end."""
        if model is not None:
            folder = self.path / "models" / name
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / "model.safetensors", model.model)
            write_json(folder / "config.json", model.config.as_dict())
        self._close(name, "finished", records)
        (self.trial(name) / "measured.jsonl").unlink(missing_ok=True)
        if model is not None:  # otherwise the checkpoint is what the trial was for
            (self.trial(name) / "checkpoint.safetensors").unlink(missing_ok=True)

    def fail(self, name: str, records: Sequence[Record]) -> None:
        """Close a trial that cannot go on."""
        self._close(name, "failed", records)

    def attempt(self, name: str) -> int:
        """Return how often a trial failed before."""
        return len(list((self.path / "trials" / name).glob("failed-*.json")))

    def reopen(self, name: str) -> None:
        """Put a failed trial back into the queue; what it had reached stays, and so do the records of its failure."""
        folder = self.path / "trials" / name
        os.replace(folder / "done.json", folder / f"failed-{self.attempt(name)}.json")

    def _close(self, name: str, status: str, records: Sequence[Record]) -> None:
        attempt = self.attempt(name)
        records = [{**record, "attempt": attempt} for record in records]
        write_json(self.trial(name) / "done.json", {"status": status, "records": records})
        _append(self.path / "results.jsonl", records)

    def _mend(self) -> None:
        """Complete what an interruption left half done."""
        results = self.path / "results.jsonl"
        present = Counter((record["trial"], record["attempt"]) for record in _lines(results, mend=True, has=_EVERY))
        trials = self.path / "trials"
        for folder in sorted(trials.iterdir()) if trials.exists() else ():
            _lines(folder / "measured.jsonl", mend=True)
            outcome = self.outcome(folder.name)
            if outcome is not None:
                _append(results, outcome["records"][present[folder.name, self.attempt(folder.name)] :])

    def drop_checkpoints(self) -> None:
        """Remove checkpoints that nothing can go on from any more; a failed trial may be tried again."""
        for file in self.path.glob("trials/*/checkpoint.safetensors"):
            outcome = self.outcome(file.parent.name)
            if outcome is not None and outcome["status"] == "finished":
                file.unlink()


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of ``settings.json``."""
    file = path / SETTINGS
    if not file.exists():
        raise RunError(f"{path} is no folder of a run: it has no settings.json")
    return _object(file, ("settings", "workload"), "give --out a new folder")


def read_results(path: Path) -> list[Record]:
    """Return the records of a run, of each trial's last attempt; a line that is being written is left out."""
    records = _lines(path / "results.jsonl", has=_EVERY)
    last: dict[str, int] = {}
    for record in records:
        last[record["trial"]] = max(last.get(record["trial"], 0), record["attempt"])
    return [record for record in records if record["attempt"] == last[record["trial"]]]


# What every record has.
_EVERY = ("kind", "trial", "encoding", "task", "seed", "lr", "attempt")


def _object(file: Path, has: Sequence[str], remedy: str) -> dict[str, Any]:
    """Read a file of JSON that holds one object with these names."""
    try:
        content: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise RunError(f"{file} cannot be read: {problem}; {remedy}") from None
    return _checked(content, has, f"{file}", remedy)


def _checked(content: object, has: Sequence[str], where: str, remedy: str) -> dict[str, Any]:
    if not isinstance(content, dict) or any(name not in content for name in has):
        raise RunError(f"{where} is no object with {', '.join(has)}; was it edited? {remedy[0].upper()}{remedy[1:]}")
    return content


def _lines(file: Path, mend: bool = False, has: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read JSON lines. A last line without its end was being written when the process died: it is ignored, or cut off."""
    if not file.exists():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if mend and len(whole) < len(content):
        os.truncate(file, len(whole))
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as problem:
            raise RunError(f"{file}, line {number} is not JSON ({problem}); was it edited?") from None
        rows.append(_checked(row, has, f"{file}, line {number}", "take the line out"))
    return rows


def _append(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    content = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with open(file, "ab") as handle:
        handle.write(content.encode())
        handle.flush()
        os.fsync(handle.fileno())


def _ours(names: set[str]) -> bool:
    """Whether a folder without settings holds only what a run writes before them."""
    return all(
        name in (".lock", "corpus.safetensors") or name.startswith(".corpus") or name.startswith(".settings")
        for name in names
    )
