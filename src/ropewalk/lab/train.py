"""One trial across GPUs or machines: ``accelerate launch -m ropewalk.lab.train rope --tokens 100000000 --out runs/big``.

The options are those of ``ropewalk compare``, for one encoding and one seed. Every process takes its rows of every batch, with
their positions; gradients are averaged by DDP, or parameters sharded by FSDP, as ``accelerate config`` says. The folder
that the main process writes is a run like any other: ``ropewalk report`` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import typer
from torch import Tensor, nn

from ropewalk.cli import run_app
from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.command import Options, comparison, conclude
from ropewalk.lab.compare import Failure, Job, Watcher, compare, default_folder
from ropewalk.lab.data import Corpus
from ropewalk.lab.jobs import events
from ropewalk.lab.model import Decoder
from ropewalk.lab.place import Place, pick_precision
from ropewalk.lab.progress import Bars, Several
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Event, Spec
from ropewalk.lab.workloads import make_workload


class Accelerated(Place):
    """The processes that accelerate started."""

    def __init__(self, precision: str = "auto") -> None:
        try:
            from accelerate import Accelerator
        except ImportError:
            raise ConfigError("training across processes needs accelerate: pip install 'ropewalk[lab]'") from None
        self.accelerator = Accelerator()
        self.device = self.accelerator.device
        self.low = pick_precision(precision, self.device)
        self.processes, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        self.is_main = self.accelerator.is_main_process

    def prepare(self, model: Decoder, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        module, prepared = self.accelerator.prepare(model, optimizer)
        return module, prepared

    def share(self, batch: Batch) -> Batch:
        rows, left = divmod(len(batch.tokens), self.processes)
        if left:
            raise ConfigError(
                f"--batch-size {len(batch.tokens)} is not shared out evenly over {self.processes} processes"
            )
        return batch.rows(self.rank * rows, (self.rank + 1) * rows).to(self.device)

    def backward(self, loss: Tensor) -> None:
        self.accelerator.backward(loss)

    def clip(self, module: nn.Module, norm: float) -> None:
        self.accelerator.clip_grad_norm_(module.parameters(), norm)

    def mean(self, value: Tensor) -> Tensor:
        return cast("Tensor", self.accelerator.reduce(value, reduction="mean"))

    def unwrap(self, module: nn.Module) -> Decoder:
        return cast("Decoder", self.accelerator.unwrap_model(module))

    def gather(self, module: nn.Module) -> Decoder:
        """Put shards together; a model of its own, so that measuring it needs no other process."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        whole = get_model_state_dict(module, options=_whole())
        model = Decoder(self.unwrap(module).config)
        if self.is_main:
            model.load_state_dict(whole)
        return model.to(self.device)

    def state(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optim = get_state_dict(module, _inner(optimizer), options=_whole())
        state: dict[str, Any] = {f"model/{name}": t for name, t in model.items()}
        for name, values in cast("dict[str, Any]", optim.get("state", {})).items():
            state.update({f"optimizer/{key}/{name}": t for key, t in values.items()})
        return {name: t.contiguous().clone() for name, t in state.items()}  # tied weights come under two names

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_state_dict

        options = _whole()
        model: dict[str, Any] = {label.partition("/")[2]: t for label, t in state.items() if label.startswith("model/")}
        per_parameter: dict[str, dict[str, Tensor]] = {}
        for label, value in state.items():
            if label.startswith("optimizer/"):
                _, key, name = label.split("/", 2)
                per_parameter.setdefault(name, {})[key] = value
        groups = get_optimizer_state_dict(module, _inner(optimizer), options=options)["param_groups"]
        optim: Any = {"state": per_parameter, "param_groups": groups}
        set_state_dict(module, _inner(optimizer), model_state_dict=model, optim_state_dict=optim, options=options)


class AcceleratedRunner:
    """Runs trials on all processes at once. The main process is the driver; the others `serve`."""

    def __init__(self, place: Accelerated, settings: Settings, folder: Path) -> None:
        self.place, self.settings, self.folder = place, settings, folder

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Spec, Event | Failure]]:
        """Hand the jobs to all processes and pass on what happens in this one."""
        corpus = Corpus.load(self.folder / "corpus.safetensors") if self.settings.task == "text" else None
        _broadcast((list(jobs), corpus))
        yield from _run(jobs, corpus, self.settings, self.place)

    def close(self) -> None:
        """Let the other processes go."""
        _broadcast(([], None))


def serve(place: Accelerated, settings: Settings) -> None:
    """Work on the jobs of the main process until it closes."""
    while True:
        jobs, corpus = _broadcast(None)
        if not jobs:
            return
        for _ in _run(jobs, corpus, settings, place):
            pass


def train(settings: Settings, options: Options) -> None:
    """Run one trial on all processes."""
    if len(settings.encodings) != 1:
        raise ConfigError(f"a single trial has one encoding; got {', '.join(settings.encodings)}")
    settings = replace(settings, seeds=1)
    if options.ray or options.device:
        raise ConfigError(
            "--ray and --device are for ropewalk compare; accelerate places the processes of a single trial"
        )
    if settings.lr_sweep:
        raise ConfigError("--lr-sweep is for ropewalk compare; a single trial has one --lr")
    place = Accelerated(settings.precision)
    if not place.is_main:
        serve(place, settings)
        return
    folder = options.out or default_folder(settings)
    runner = AcceleratedRunner(place, settings, folder)
    watchers: list[Watcher] = [] if options.quiet or options.as_json else [Bars()]
    try:
        with Several(watchers) as watcher:
            outcome = compare(
                settings,
                folder,
                runner=runner,
                watcher=watcher,
                command=options.command,
                retry_failed=options.retry_failed,
            )
    finally:
        runner.close()
    conclude(folder, options.rank, options.as_json)
    if outcome.failed:
        raise typer.Exit(1)


def _run(
    jobs: Sequence[Job], corpus: Corpus | None, settings: Settings, place: Accelerated
) -> Iterator[tuple[Spec, Event | Failure]]:
    workload = make_workload(settings, corpus)
    for job in jobs:
        for event in events(job, workload, place):
            yield job.spec, event


def _broadcast(value: Any) -> Any:
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def _whole() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.command()(comparison(train, str(__doc__)))

if __name__ == "__main__":
    run_app(app, "python -m ropewalk.lab.train")
