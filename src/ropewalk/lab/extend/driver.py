"""Measure, tune and write: the job of ``ropewalk extend``, which goes on where it was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.core.errors import RopewalkError
from ropewalk.integrations.transformers.apply import remove
from ropewalk.lab.compare import file_name, hardware, versions
from ropewalk.lab.data import Corpus
from ropewalk.lab.errors import RunError, TrialError
from ropewalk.lab.extend.checkpoint import Checkpoint, read_checkpoint, wanted_length
from ropewalk.lab.extend.copies import Copies
from ropewalk.lab.extend.harness import Tasks, check_methods, load_tasks
from ropewalk.lab.extend.measures import Measures, measured_lengths
from ropewalk.lab.extend.methods import Method, method
from ropewalk.lab.extend.search import search_longrope
from ropewalk.lab.extend.settings import SEARCHED, UNCHANGED, Extension, untuned
from ropewalk.lab.extend.summary import best, summarise
from ropewalk.lab.extend.text import read_text, sliding
from ropewalk.lab.extend.tuning import Tuning, check_peft
from ropewalk.lab.extend.writing import MODEL, write_model
from ropewalk.lab.place import pick_device
from ropewalk.lab.results import Record
from ropewalk.lab.runs import SETTINGS, RunFolder, read_results, read_settings
from ropewalk.lab.trial import Checkpoint as Saved
from ropewalk.lab.trial import Measured, Progress

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What an extension left.

    Attributes:
        folder: of the run.
        records: measurements.
        failed: reasons, by method.
        chosen: the method whose model was written; None: no model was.
        written: what `write_model` said of it.
    """

    folder: Path
    records: list[Record]
    failed: dict[str, str]
    chosen: str | None
    written: dict[str, Any] | None


@dataclass(frozen=True)
class Plan:
    """Everything that was checked before anything is written.

    Attributes:
        settings: as asked.
        checkpoint: what it is about.
        wanted: tokens of the wanted context.
        methods: by name; the searched one is made later.
        tasks: of lm-eval; None: none were asked for.
    """

    settings: Extension
    checkpoint: Checkpoint
    wanted: int
    methods: dict[str, Method]
    tasks: Tasks | None = None

    @property
    def lengths(self) -> list[int]:
        """Lengths that are measured."""
        return measured_lengths(self.checkpoint.trained, self.wanted)


def plan(settings: Extension) -> Plan:
    """Read the checkpoint and try every method on it, without weights.

    Raises:
        ConfigError, UnknownNameError: whatever cannot be.
    """
    checkpoint = read_checkpoint(settings.checkpoint, dtype=settings.dtype, force=settings.force)
    wanted = wanted_length(settings.to, checkpoint.trained)
    methods = {name: method(name, checkpoint, wanted) for name in settings.methods}
    if settings.tune and not settings.full:
        check_peft()
    tasks = None
    if settings.lm_eval:
        check_methods(methods)
        tasks = load_tasks(settings.lm_eval)
    return Plan(settings, checkpoint, wanted, methods, tasks)


def extend(
    settings: Extension,
    folder: str | Path,
    *,
    device: str | None = None,
    say: Say = lambda line: None,
    command: str = "",
    write: bool = True,
    retry_failed: bool = False,
) -> Outcome:
    """Do the whole job; the same call goes on with one that was interrupted.

    Args:
        settings: what to do.
        folder: where everything is kept. The checkpoint is only read.
        device: None: a GPU where there is one, else the CPU.
        say: told of everything that is done, a line each.
        command: as the user gave it.
        write: whether to write the chosen model.
        retry_failed: try methods again that failed before.

    Raises:
        ConfigError, UnknownNameError, DataError: what cannot be; nothing was written.
        RunError: the folder is in use or holds something else.
    """
    settings = _continued(settings, Path(folder))
    made = plan(settings)
    for sentence in made.checkpoint.sentences():
        say(sentence)
    if not settings.tune and (early := [name for name, m in made.methods.items() if m.for_tuning]):
        say(f"{', '.join(early)}: for models that are tuned afterwards (--tune); measured here without.")
    tokenizer = made.checkpoint.tokenizer()
    text_tokenizer = made.checkpoint.text_tokenizer(tokenizer)
    longest = made.lengths[-1]
    corpus = None
    if not (Path(folder) / SETTINGS).exists():
        corpus = read_text(settings, text_tokenizer, longest)
    model = made.checkpoint.load().to(pick_device(device))
    with RunFolder(folder, settings, grows=("methods",)) as run:
        if corpus is None:
            corpus = _kept_text(run, settings, text_tokenizer, longest)
        job = _Job(made, run, corpus, model, tokenizer, device, say, command)
        job.begin()
        for name in settings.names:
            job.trial(name, retry_failed)
        chosen = job.choose()
        written = job.write(chosen) if write and chosen is not None else None
        return Outcome(run.path, read_results(run.path), job.failed, chosen, written)


def _continued(settings: Extension, folder: Path) -> Extension:
    """Return settings with the methods that were measured here before; others may be added to a run at any time."""
    if not (folder / SETTINGS).exists():
        return settings
    before = [name for name in read_settings(folder)["settings"].get("methods") or () if name not in settings.methods]
    return replace(settings, methods=(*before, *settings.methods)) if before else settings


def _kept_text(run: RunFolder[Extension], settings: Extension, tokenizer: Any, longest: int) -> Corpus:
    """Return the text that a run began with."""
    corpus = Corpus.load(run.corpus) if run.corpus.exists() else read_text(settings, tokenizer, longest)
    if corpus.digest != read_settings(run.path)["workload"].get("digest"):
        raise RunError(f"the text is not what {run.path} began with; give --out a new folder")
    return corpus


class _Job:
    """One run that is open."""

    def __init__(
        self,
        made: Plan,
        run: RunFolder[Extension],
        corpus: Corpus,
        model: Any,
        tokenizer: Any,
        device: str | None,
        say: Say,
        command: str,
    ) -> None:
        self.plan, self.settings, self.run, self.corpus = made, made.settings, run, corpus
        self.model, self.tokenizer, self.device, self.say, self.command = model, tokenizer, device, say, command
        self.measures = Measures(made.settings, corpus, made.checkpoint.trained, made.lengths)
        self.failed: dict[str, str] = {}
        self._changed: str | None = None  # what the loaded model was given
        self._given_model: Any = model

    def begin(self) -> None:
        """Write down what was asked; the methods again where there are more than before."""
        methods = {name: str(m) for name, m in self.plan.methods.items()}
        if not self.run.is_new:
            there = read_settings(self.run.path)
            if there["workload"]["methods"].keys() != methods.keys():
                there["workload"]["methods"] = methods
                self.run.begin({name: value for name, value in there.items() if name != "settings"})
            return
        self.corpus.save(self.run.corpus)
        workload = {
            **self.corpus.describe(),
            **self.measures.describe(),
            "checkpoint": self.plan.checkpoint.describe(),
            "wanted": self.plan.wanted,
            "methods": methods,
        }
        facts = {"workload": workload, "command": self.command, "hardware": hardware(), "versions": versions()}
        self.run.begin({"task": "text", **facts})

    # ---- trials ---------------------------------------------------------------------------------------------------

    def trial(self, name: str, retry: bool = False) -> None:
        """Run what is left of one trial; one that cannot go on fails, and the others go on."""
        trial = file_name(name)
        outcome = self.run.outcome(trial)
        if outcome is not None and outcome["status"] == "failed" and retry:
            self.run.reopen(trial)
            outcome = None
        if outcome is not None:
            if outcome["status"] == "failed":
                self.failed[name] = next(r["reason"] for r in outcome["records"] if r["kind"] == "failed")
            self.say(f"{name}: {'failed before: ' + self.failed[name] if name in self.failed else 'done already'}")
            return
        try:
            records = self._measure(name, trial)
        except (RopewalkError, torch.OutOfMemoryError, MemoryError, RuntimeError) as problem:
            if isinstance(problem, RunError) or not _is_of_the_trial(problem):
                raise
            reason = f"{type(problem).__name__}: {problem}"
            self.failed[name] = reason
            self.run.fail(trial, [self._complete(name, {"kind": "failed", "reason": reason})])
            self.say(f"{name}: failed: {reason}")
            self._fresh()
            return
        self.run.finish(trial, [self._complete(name, r) for r in self.measures.joined(records)], None)

    def _measure(self, name: str, trial: str) -> list[Record]:
        done = {one.name: one for one in self.run.measured(trial)}
        records = [record for one in done.values() for record in one.records]
        jobs = [job for job in self.measures.jobs() if job.name not in done]
        model = self._prepared(name, trial, done, records)
        for job in jobs:
            began = time.perf_counter()
            found = tuple(job.run(model))
            self.run.keep_measured(trial, Measured(job.name, found))
            records += found
            self.say(f"{name}: {job.name}{_told(found)} ({time.perf_counter() - began:.1f} s)")
        if self.plan.tasks is not None and "lm-eval" not in done:
            began = time.perf_counter()
            scored = tuple(self.plan.tasks.evaluate(model, self.tokenizer, self.plan.wanted, self.settings.seed))
            self.run.keep_measured(trial, Measured("lm-eval", scored))
            records += scored
            told = ", ".join(f"{r['what']} {r['metric']} {r['value']:.4g}" for r in scored)
            self.say(f"{name}: lm-eval: {told} ({time.perf_counter() - began:.1f} s)")
        return records

    def _prepared(self, name: str, trial: str, done: dict[str, Measured], records: list[Record]) -> Any:
        """Return the model of a trial."""
        if (plain := untuned(name)) is None:
            return self._given(name)
        model = self._give(self._reloaded(), plain)
        tuning = Tuning(model, self.corpus, self.settings, self.plan.checkpoint.trained, self.plan.wanted)
        for event in tuning.run(self.run.checkpoint(trial)):
            match event:
                case Progress():
                    speed = f"{event.tokens_per_second:,.0f} tokens/s"
                    self.say(f"{name}: step {event.step} of {event.steps}, loss {event.loss:.3f}, {speed}")
                case Saved():
                    self.run.keep_checkpoint(trial, event.content)
                case Measured() if event.name not in done:
                    self.run.keep_measured(trial, event)
                    records += event.records
                case _:
                    pass
        return tuning.finish()

    # ---- models ---------------------------------------------------------------------------------------------------

    def _given(self, name: str) -> Any:
        """Return the loaded model with a method, after whatever it was given before."""
        if self._changed != name:
            self._fresh()
            self._given_model, self._changed = self._give(self.model, name), name
        return self._given_model

    def _give(self, model: Any, name: str) -> Any:
        if name == UNCHANGED:
            return model
        method = self.plan.methods.get(name) or self._searched(name, model)
        return method.apply(model, self._calibration() if method.calibrated else None)

    def _calibration(self) -> Tensor:
        """Return text of the wanted length that nothing is measured on."""
        return sliding(self.corpus, "validation", self.plan.wanted, self.measures.scored, 1).tokens[:, :-1]

    def _fresh(self) -> None:
        """Bring the loaded model back to what the checkpoint holds."""
        if self._changed not in (None, UNCHANGED):
            if self.plan.checkpoint.is_changed:
                self.model = self._reloaded()
            else:
                remove(self.model)
        self._changed = None

    def _reloaded(self) -> Any:
        return self.plan.checkpoint.load().to(pick_device(self.device))

    def _searched(self, name: str, model: Any) -> Method:
        """Search, or find again what was searched, and keep the method."""
        trial = f"search-{SEARCHED}"
        known = {one.name: one.records[0]["loss"] for one in self.run.measured(trial)}

        def keep(key: str, loss: float) -> None:
            self.run.keep_measured(trial, Measured(key, ({"kind": "score", "loss": loss},)))
            self.say(f"{name}: {len(self.run.measured(trial))} sets of factors scored, the last {loss:.4f}")

        found = search_longrope(
            self.settings, self.plan.checkpoint, model, self.corpus, self.plan.wanted, self.measures.scored, known, keep
        )
        self.say(f"{name}: loss {found.score:.4f} on the text of the search, best of {found.tried} sets of factors")
        made = Method(name, (found.spectrum,))
        self.plan.methods[name] = made
        return made

    # ---- the end --------------------------------------------------------------------------------------------------

    def choose(self) -> str | None:
        """Return the method whose model is to be written."""
        asked = self.settings.choose
        if asked is not None:
            return None if asked in self.failed else asked
        found = best(summarise(read_results(self.run.path), read_settings(self.run.path)))
        if found == UNCHANGED:
            self.say(f"no method was better than the model as it is at {self.plan.wanted:,} tokens: nothing is written")
            return None
        return found

    def write(self, name: str) -> dict[str, Any] | None:
        """Write the model of a method, if it was not."""
        if (self.run.path / MODEL).exists():
            self.say(f"{self.run.path / MODEL} is there already")
            return {"path": str(self.run.path / MODEL)}
        model = self._final(name)
        if isinstance(model, Copies):
            self.say(f"{name} is several copies of the model, and no checkpoint: use ropewalk.hf.MultiBaseDecoder")
            return None
        plain = untuned(name) or name
        about = {
            "method": name,
            "changes": str(self.plan.methods[plain]) if plain in self.plan.methods else UNCHANGED,
            "from": self.plan.checkpoint.describe(),
            "length": self.plan.wanted,
            "command": self.command,
            "versions": versions(),
        }
        told = write_model(model, self.tokenizer, self.run.path, self.plan.wanted, about)
        self.say(f"{told['path']}: {name}, load it with {told['loads_with']}")
        return told

    def _final(self, name: str) -> Any:
        if untuned(name) is None:
            return self._given(name)
        done = {one.name: one for one in self.run.measured(file_name(name))}
        return self._prepared(name, file_name(name), {**done, "curve": Measured("curve", ())}, [])

    def _complete(self, name: str, record: Record) -> Record:
        """Return a record with what it belongs to."""
        return {
            "trial": file_name(name),
            "encoding": name,
            "task": "text",
            "seed": self.settings.seed,
            "lr": self.settings.learning_rate if untuned(name) else 0.0,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **record,
            "context": {"versions": versions(), "hardware": hardware(), "command": self.command},
        }


def default_folder(settings: Extension) -> Path:
    """Return the folder of a run that was given none: the same settings find the same folder again."""
    return Path("runs") / f"extend-{Path(settings.checkpoint).stem[:24]}-{settings.digest}"


def _is_of_the_trial(problem: BaseException) -> bool:
    """Whether a problem is one method's own, and no bug or broken folder."""
    if isinstance(problem, RopewalkError | TrialError | MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(problem) or "not enough memory" in str(problem)


def _told(records: Sequence[Record]) -> str:
    """Say what a measurement found, in a few letters."""
    said = [f"{r['scored']:.3f}" for r in records if r["kind"] == "window"]
    if answers := [r["of"] for r in records if r["kind"] == "answer"]:
        said.append(f"{sum(int(a['right']) for a in answers)} of {len(answers)} right")
    return f": {', '.join(said)}" if said else ""
