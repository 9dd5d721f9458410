"""Run an experiment in a run folder, by the driver that comparisons use."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.compare import Driver, Job, Runner, Watcher, compare, context, file_name, plan, prepare, shape_of
from ropewalk.lab.experiments.experiment import Experiment
from ropewalk.lab.files import write_json
from ropewalk.lab.model import Decoder, expand_layers, load, with_encodings
from ropewalk.lab.runs import RunFolder, read_results, read_settings
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Spec, scores, starting_point
from ropewalk.lab.workloads import Workload, resolved, seen_by

SPENT = "reproduce.json"

MakeRunner = Callable[[Path, Settings], Runner]


@dataclass(frozen=True, slots=True)
class Performed:
    """What a run of an experiment left.

    Attributes:
        folder: of the run.
        seconds: that it took in all its sessions.
        failed: trials, with reasons.
        at_once: trials that ran at the same time; None where somebody else placed them.
    """

    folder: Path
    seconds: float
    failed: dict[str, str]
    at_once: int | None = None


def perform(
    experiment: Experiment,
    folder: str | os.PathLike[str],
    *,
    full: bool = False,
    seeds: int | None = None,
    tokens: int | None = None,
    model: str | os.PathLike[str] | None = None,
    runner: MakeRunner | None = None,
    watcher: Watcher | None = None,
    command: str = "",
) -> Performed:
    """Train and measure what is not over yet.

    Args:
        experiment: which.
        folder: of the run; an earlier stage is kept beside it, in ``FOLDER-before``.
        full: the longer form.
        seeds: another number of seeds.
        tokens: another budget of training.
        model: folder of a trained model, to put the encodings into instead of training some; for experiments about
            encodings that drop in.
        runner: makes what runs the trials of a folder; None: a process beside this one.
        watcher: told of progress.
        command: as the user gave it, for the records.

    Raises:
        ConfigError: a model for an experiment that has no use for one, or of another vocabulary.
        RunError: the folder is in use or holds another run.
    """
    folder = Path(folder)
    given = None if model is None else _given(experiment, Path(model))
    settings = experiment.asked(full=full, seeds=seeds if given is None else 1, tokens=tokens)
    make = _local if runner is None else runner
    started, clock = time.time(), time.perf_counter()
    earlier: Path | None = None
    if (before := experiment.asked_before(full=full, seeds=seeds, tokens=tokens)) is not None:
        earlier = folder.with_name(f"{folder.name}-before")
        first = compare(before, earlier, runner=make(earlier, resolved(before)), watcher=watcher, command=command)
        if first.failed:
            return Performed(earlier, time.perf_counter() - clock, first.failed)
    settings = resolved(settings)
    with RunFolder(folder, settings) as run:
        try:
            facts = {name: getattr(experiment, name) for name in ("claim", "source", "expected")}
            facts["experiment"] = experiment.name
            facts["reference"] = experiment.contrasts[0].other
            workload, told = prepare(run, command, facts)
            stage = _Stage(experiment, run, workload, earlier, given)
            runs = make(run.path, settings)
            driver = Starting(run, runs, watcher, context(settings, told, command), stage.start)
            driver.drive(stage.trained(), retry=True)
            if experiment.drop_in and not driver.failed:
                driver.drive(stage.dropped_in(), retry=True)
            if not driver.failed:
                stage.alter(driver)
                run.drop_checkpoints()
        finally:
            spent = _add(run.path / SPENT, started, time.perf_counter() - clock)
    return Performed(run.path, spent, driver.failed, getattr(runs, "at_once", None))


def conclude(performed: Performed, facts: Mapping[str, Any]) -> None:
    """Write down beside the settings of a run what came out, for its report."""
    write_json(performed.folder / "settings.json", {**read_settings(performed.folder), **facts})


class Starting(Driver):
    """A driver whose trials may start from a trained model."""

    def __init__(
        self,
        run: RunFolder,
        runner: Runner,
        watcher: Watcher | None,
        base: dict[str, Any],
        start: Callable[[Spec], bytes | None],
    ) -> None:
        super().__init__(run, runner, watcher, base)
        self.start = start

    def _job(self, spec: Spec, before: dict[str, None]) -> Job:
        job = super()._job(spec, before)
        return job if job.checkpoint is not None else replace(job, checkpoint=self.start(spec))


@dataclass(frozen=True, slots=True)
class _Stage:
    """The trials of a run, and what each starts from."""

    experiment: Experiment
    run: RunFolder
    workload: Workload
    earlier: Path | None
    given: Decoder | None

    def trained(self) -> list[Spec]:
        """Trials that train; with a model given, those that measure it as it is."""
        settings = self.run.settings
        model = shape_of(settings, self.workload) if self.given is None else self.given.config
        if model.vocab_size != self.workload.vocab_size:
            raise ConfigError(
                f"the model has {model.vocab_size} tokens and the task {settings.task} has {self.workload.vocab_size}; train it "
                f"on this task, as `ropewalk compare ... --task '{settings.task}'` does"
            )
        return plan(settings, model, self.workload)

    def dropped_in(self) -> list[Spec]:
        """Trials that measure other encodings in the trained models."""
        return [
            replace(
                spec,
                name=f"{file_name(new)}-s{spec.seed}",
                encoding=new,
                model=with_encodings(spec.model, expand_layers(new)),
            )
            for spec in self.trained()
            for new, trained in self.experiment.drop_in.items()
            if spec.encoding == trained
        ]

    def alter(self, driver: Driver) -> None:
        """Change trained models by hand and measure them once more, in this process."""
        for spec in (*self.trained(), *self.dropped_in()):
            for name, (of, path) in self.experiment.altered.items():
                trial = replace(spec, name=f"{file_name(name)}-s{spec.seed}", encoding=name)
                if spec.encoding == of and self.run.outcome(trial.name) is None:
                    model = load(self.run.path / "models" / spec.name)
                    workload = seen_by(self.workload, spec.model.encodings)
                    torch.manual_seed(spec.seed)
                    _function(path)(model, workload)
                    records = list(scores(model, workload))
                    self.run.finish(trial.name, driver.complete(trial, records), None)

    def start(self, spec: Spec) -> bytes | None:
        """Return what a trial starts from; None: nothing."""
        if self.given is not None:
            return starting_point(self.given, {"step": [spec.steps], "tokens": [0], "loss": [0.0]})
        if spec.encoding in self.experiment.drop_in:
            return self._model(self.run.path, self.experiment.drop_in[spec.encoding], spec, measured=True)
        if self.earlier is not None:
            return self._model(self.earlier, self.experiment.start[spec.encoding], spec, measured=False)
        return None

    def _model(self, folder: Path, encoding: str, spec: Spec, *, measured: bool) -> bytes:
        name = f"{file_name(encoding)}-s{spec.seed}"
        curve = (
            next(r for r in read_results(folder) if r["trial"] == name and r["kind"] == "curve") if measured else None
        )
        return starting_point(load(folder / "models" / name), curve)


def _given(experiment: Experiment, path: Path) -> Decoder:
    if not experiment.drop_in:
        raise ConfigError(
            f"{experiment.name} is about training, and a trained model cannot show it; --model is for experiments about "
            "encodings that drop in, as string_shifted"
        )
    return load(path)


def _function(path: str) -> Callable[[Decoder, Workload], None]:
    module, _, name = path.partition(":")
    found: Callable[[Decoder, Workload], None] = getattr(import_module(module), name)
    return found


def _local(folder: Path, settings: Settings) -> Runner:
    from ropewalk.lab.local import LocalRunner

    return LocalRunner(folder, settings)


def _add(file: Path, started: float, seconds: float) -> float:
    """Add a session to what a run took; one that found nothing to do is not counted."""
    spent: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"sessions": []}
    results = file.with_name("results.jsonl")
    sessions: Sequence[float] = spent["sessions"]
    if not sessions or (results.exists() and results.stat().st_mtime >= started):
        sessions = [*sessions, seconds]
        write_json(file, {"sessions": sessions})
    return float(sum(sessions))
