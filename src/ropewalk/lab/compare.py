"""Train small models that differ in nothing but the encoding, and measure what differs.

    run = compare(Settings(encodings=("rope", "alibi")), "runs/first")

The same call goes on with a run that was interrupted, and does nothing if it is complete.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

import ropewalk
from ropewalk.core.errors import ConfigError
from ropewalk.lab.data import Corpus
from ropewalk.lab.errors import RunError
from ropewalk.lab.model import Decoder, ModelConfig, expand_layers, sized, with_encodings
from ropewalk.lab.results import Record
from ropewalk.lab.runs import RunFolder, read_results, read_settings
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Checkpoint, Event, Finished, Measured, Progress, Spec
from ropewalk.lab.workloads import Workload, corpus_of, make_workload, resolved


@dataclass(frozen=True, slots=True)
class Job:
    """A trial and where it goes on from."""

    spec: Spec
    checkpoint: bytes | None = None
    done: tuple[Measured, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A trial that ended without a result."""

    reason: str


class Runner(Protocol):
    """Runs trials somewhere and passes their events on; events of several trials may alternate."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Spec, Event | Failure]]:
        """Run every job to its `Finished`, or to a `Failure`."""


class Watcher(Protocol):
    """Is told what goes on; see `ropewalk.lab.progress`."""

    def begin(self, specs: Sequence[Spec], over: Sequence[str]) -> None:
        """A stage begins: its trials, and the names of those that are over."""

    def tell(self, spec: Spec, event: Event | Failure) -> None:
        """Something happened to a trial."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a comparison left: its folder, records, and the reasons of failed trials by name."""

    folder: Path
    records: list[Record]
    failed: dict[str, str]


def compare(
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    runner: Runner | None = None,
    watcher: Watcher | None = None,
    command: str = "",
    retry_failed: bool = False,
    keep_checkpoints: bool = False,
) -> Outcome:
    """Run every trial of a comparison that is not over yet.

    Args:
        settings: what to compare.
        folder: where everything is kept; the same folder and settings go on with an interrupted run.
        runner: where trials run; None: in a process of their own on this machine.
        watcher: told of progress.
        command: as the user gave it, for the records.
        retry_failed: try trials again that failed before.
        keep_checkpoints: leave the last checkpoint of each trial in the folder.

    Raises:
        RunError: the folder is in use or holds another comparison.
        ConfigError, UnknownNameError, DataError: settings that cannot be; nothing was trained.
    """
    settings = resolved(settings)
    with RunFolder(folder, settings) as run:
        workload, facts = prepare(run, command)
        model = shape_of(settings, workload)
        if runner is None:
            from ropewalk.lab.local import LocalRunner

            runner = LocalRunner(run.path, settings)
        driver = Driver(run, runner, watcher, context(settings, facts, command))
        sweep = plan_sweep(settings, model, workload)
        driver.drive(sweep, retry_failed)
        chosen = winners(settings, sweep, run)
        driver.drive(plan(settings, model, workload, chosen), retry_failed, {spec.name: None for spec in sweep})
        if not keep_checkpoints:
            run.drop_checkpoints()
        return Outcome(run.path, read_results(run.path), driver.failed)


def prepare(run: RunFolder, command: str, more: Mapping[str, Any] | None = None) -> tuple[Workload, dict[str, Any]]:
    """Read the data, or what was kept of it, and check that everything asked for can be built.

    Args:
        run: the folder.
        command: as the user gave it.
        more: what else ``settings.json`` is to say of a new run.
    """
    settings = run.settings
    corpus = _corpus(run) if settings.task == "text" else None
    workload = make_workload(settings, corpus)
    model = shape_of(settings, workload)
    for name in settings.encodings:
        _try_to_build(model, name, workload.domains)
    facts = {"task": settings.task, "workload": workload.describe()}
    if run.is_new:
        if corpus is not None:
            corpus.save(run.corpus)
        run.begin({**facts, **(more or {}), "command": command, "hardware": hardware(), "versions": versions()})
    return workload, facts


def _corpus(run: RunFolder) -> Corpus:
    """Return the text that a run began with, or read it."""
    if run.is_new:
        return corpus_of(run.settings)
    lost = not run.corpus.exists()
    corpus = corpus_of(run.settings) if lost else Corpus.load(run.corpus)
    if corpus.digest != read_settings(run.path)["workload"].get("digest"):
        which = "the data" if lost else str(run.corpus)
        raise RunError(f"{which} is not what {run.path} began with; give --out a new folder")
    if lost:
        corpus.save(run.corpus)
    return corpus


def shape_of(settings: Settings, workload: Workload) -> ModelConfig:
    """Return the shape that all models of a comparison have."""
    return ModelConfig(
        vocab_size=workload.vocab_size,
        num_classes=workload.num_classes,
        max_length=workload.max_position,
        causal=not settings.encoder,
        qk_norm=settings.qk_norm,
        **sized(settings.size, **dict(settings.shape)),
    )


def plan(
    settings: Settings, model: ModelConfig, workload: Workload, rates: dict[str, float] | None = None
) -> list[Spec]:
    """Return the trials: every encoding from every seed, the seeds in turns so that each encoding soon has one."""
    specs = []
    for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
        for name in settings.encodings:
            lr = settings.lr if rates is None else rates.get(name)
            if lr is not None:
                specs.append(_spec(settings, model, workload, name, seed, lr, f"{file_name(name)}-s{seed}"))
    return specs


def plan_sweep(settings: Settings, model: ModelConfig, workload: Workload) -> list[Spec]:
    """Return the trials that look for each encoding's learning rate, on the first seed."""
    return [
        replace(
            _spec(settings, model, workload, name, settings.first_seed, lr, _sweep_name(name, lr)),
            measure=False,
        )
        for name in settings.encodings
        for lr in settings.lr_sweep
    ]


def winners(settings: Settings, sweep: Sequence[Spec], run: RunFolder) -> dict[str, float] | None:
    """Return each encoding's best learning rate by validation loss; None without a sweep; encodings without one are left out."""
    if not settings.lr_sweep:
        return None
    best: dict[str, tuple[float, float]] = {}
    for spec in sweep:
        outcome = run.outcome(spec.name)
        if outcome is None or outcome["status"] != "finished":
            continue
        loss = next(r["validation_loss"] for r in outcome["records"] if r["kind"] == "sweep")
        best[spec.encoding] = min(best.get(spec.encoding, (float("inf"), 0.0)), (loss, spec.lr))
    return {name: lr for name, (_, lr) in best.items()}


def file_name(encoding: str) -> str:
    """Return a name for files, unique for an encoding: ``"rope(base=5e5)"`` -> ``"rope_base_5e5-1a2b"``."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", encoding).strip("_.")
    if plain == encoding:
        return plain
    return f"{plain[:48]}-{hashlib.sha256(encoding.encode()).hexdigest()[:4]}"


def _sweep_name(encoding: str, lr: float) -> str:
    return f"{file_name(encoding)}-lr{lr!r}"  # every digit: two rates are two trials


def context(settings: Settings, facts: dict[str, Any], command: str) -> dict[str, Any]:
    """Return what every record carries so that it can be repeated."""
    return {
        "versions": versions(),
        "hardware": hardware(),
        "command": command,
        "settings": settings.as_dict(),
        "data": facts["workload"].get("digest"),
    }


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {"ropewalk": ropewalk.__version__, "torch": torch.__version__, "python": platform.python_version()}


def hardware() -> dict[str, Any]:
    """Return what the numbers were computed on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


class Driver:
    """Writes down what a runner reports."""

    def __init__(self, run: RunFolder, runner: Runner, watcher: Watcher | None, base: dict[str, Any]) -> None:
        self.run, self.runner, self.watcher, self.context = run, runner, watcher, base
        self.failed: dict[str, str] = {}

    def drive(self, specs: Sequence[Spec], retry: bool, before: dict[str, None] | None = None) -> None:
        """Run what is not over of some trials; trials of the stage before may lend their last checkpoint."""
        jobs, over = [], []
        for spec in specs:
            outcome = self.run.outcome(spec.name)
            if outcome is not None and outcome["status"] == "failed" and retry:
                self.run.reopen(spec.name)
                outcome = None
            if outcome is None:
                jobs.append(self._job(spec, before or {}))
                continue
            over.append(spec.name)
            if outcome["status"] == "failed":
                self.failed[spec.name] = next(r["reason"] for r in outcome["records"] if r["kind"] == "failed")
        if self.watcher is not None and specs:
            self.watcher.begin(specs, over)
        if not jobs:
            return
        records: dict[str, list[Record]] = {
            job.spec.name: [record for one in job.done for record in one.records] for job in jobs
        }
        for spec, event in self.runner.run(jobs):
            self._write(spec, event, records[spec.name])
            if self.watcher is not None:
                self.watcher.tell(spec, event)

    def _job(self, spec: Spec, before: dict[str, None]) -> Job:
        checkpoint = self.run.checkpoint(spec.name)
        if checkpoint is None:
            # A sweep trained the winner from this very seed: measuring it is all that is left to do.
            twin = _sweep_name(spec.encoding, spec.lr)
            if twin in before and spec.seed == self.run.settings.first_seed:
                checkpoint = self.run.checkpoint(twin)
        return Job(spec, checkpoint, tuple(self.run.measured(spec.name)))

    def _write(self, spec: Spec, event: Event | Failure, records: list[Record]) -> None:
        match event:
            case Checkpoint():
                self.run.keep_checkpoint(spec.name, event.content)
            case Measured():
                self.run.keep_measured(spec.name, event)
                records += event.records
            case Finished():
                kept = event if spec.measure else None
                self.run.finish(spec.name, self.complete(spec, records), kept)
            case Failure():
                self.failed[spec.name] = event.reason
                self.run.fail(spec.name, self.complete(spec, [{"kind": "failed", "reason": event.reason}]))
            case Progress():
                pass

    def complete(self, spec: Spec, records: Sequence[Record]) -> list[Record]:
        """Return records with everything that is needed to repeat them."""
        if not spec.measure:
            curve = next((r for r in records if r["kind"] == "curve"), None)
            if curve is not None:
                records = [{"kind": "sweep", "validation_loss": curve["validation_loss"][-1]}]
        common = {
            "trial": spec.name,
            "encoding": spec.encoding,
            "task": self.run.settings.task,
            "seed": spec.seed,
            "lr": spec.lr,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        return [{**common, **record, "context": self.context} for record in records]


def _spec(
    settings: Settings, model: ModelConfig, workload: Workload, encoding: str, seed: int, lr: float, name: str
) -> Spec:
    steps = max(1, round(settings.tokens / (settings.batch_size * workload.train_length)))
    return Spec(
        name=name,
        encoding=encoding,
        model=with_encodings(model, expand_layers(encoding)),
        seed=seed,
        lr=lr,
        steps=steps,
        batch_size=settings.batch_size,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        checkpoint_every=settings.checkpoint_every,
        validate_every=max(1, round(steps / 10)),
    )


def _try_to_build(model: ModelConfig, encoding: str, domains: Sequence[str]) -> None:
    """Fail now rather than after an hour: arguments that an encoding does not take, widths that do not fit."""
    from ropewalk.catalog.expression import parse

    config = with_encodings(model, expand_layers(encoding))
    if len(config.encodings) > model.num_layers:
        raise ConfigError(
            f"{encoding!r} is a pattern of {len(config.encodings)} layers, and the models have {model.num_layers}: part of it "
            f"would not be used; give --num-layers {len(config.encodings)}"
        )
    for name in config.encodings:
        for record in parse(name).records():
            if record.traits.domain not in ("sequence", *domains):
                raise ConfigError(
                    f"{record.slug} places tokens by {record.traits.domain}, and these tokens have none, but "
                    f"{' and '.join(domains)}; `ropewalk list` shows each encoding's domain with --json"
                )
            if record.traits.causal == ("never" if config.causal else "only"):
                raise ConfigError(
                    f"{record.slug} is defined for {'bidirectional' if config.causal else 'causal'} attention only; "
                    f"{'add' if config.causal else 'leave out'} --encoder"
                )
    Decoder(config)


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def default_folder(settings: Settings) -> Path:
    """Return the folder of a run that was given none: the same settings find the same folder again."""
    names = "-".join(re.sub(r"[^a-z0-9]+", "", name.lower())[:12] for name in settings.encodings[:4])
    task = re.sub(r"[^a-z0-9_]+", "", settings.task.lower())[:24]
    return Path("runs") / f"{task}-{names}-{settings.digest}"
