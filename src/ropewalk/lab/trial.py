"""One trial: a model with one encoding, trained from one seed, and measured. A generator of events that writes no files.

Whoever runs it (one process, a Ray task, a group of GPUs) passes the events on; only the driver of a run writes. A trial
that was interrupted goes on from its last `Checkpoint` and the `Measured` it had yielded, with the same numbers: batches
are functions of the step, and so is everything that is random in a step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.core.errors import RopewalkError
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.errors import TrialError
from ropewalk.lab.model import Decoder, ModelConfig, count_parameters, seed_of, with_encodings
from ropewalk.lab.place import Alone, Place
from ropewalk.lab.results import Record
from ropewalk.lab.workloads import Workload, seen_by


@dataclass(frozen=True, slots=True)
class Spec:
    """What tells one trial of a run from the others, and how it is trained.

    Attributes:
        name: unique in a run, and fit for a file name.
        encoding: as the user named it.
        model: shape of the model, with the encodings of its layers.
        seed: of initial values, batches and everything random.
        lr: peak learning rate.
        steps: optimiser steps; ``batch_size`` sequences each.
        warmup, weight_decay: as in `Settings`.
        checkpoint_every: steps between checkpoints; ``validate_every`` between looks at the validation loss.
        measure: whether the trained model is measured; a learning-rate sweep needs the validation loss alone.
    """

    name: str
    encoding: str
    model: ModelConfig
    seed: int
    lr: float
    steps: int
    batch_size: int
    warmup: float = 0.05
    weight_decay: float = 0.1
    checkpoint_every: int = 50
    validate_every: int = 50
    measure: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training is; loss is the mean since the last one."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Content of a safetensors file from which the trial can go on."""

    step: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished measurement of the trained model."""

    name: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The trained model, as the content of a safetensors file."""

    model: bytes
    config: ModelConfig


Event = Progress | Checkpoint | Measured | Finished


@dataclass(slots=True)
class _History:
    """What the training curve needs to survive an interruption."""

    step: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    validation_step: list[int] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)  # tokens a second


REPORT_EVERY = 10  # steps a point of the training curve


def run(
    spec: Spec,
    workload: Workload,
    *,
    checkpoint: bytes | None = None,
    done: Sequence[Measured] = (),
    place: Place | None = None,
) -> Iterator[Event]:
    """Train and measure.

    Args:
        spec: the trial.
        workload: what it is trained and measured on.
        checkpoint: content of the last `Checkpoint`, to go on from there.
        done: what was measured before the interruption; it is not measured again.
        place: device, precision and processes; None: this process on the CPU.

    Raises:
        TrialError: a loss that is not a number, or not enough memory.
    """
    place, workload = place or Alone(), seen_by(workload, spec.model.encodings)
    torch.set_flush_denormal(True)  # far keys under a steep bias make subnormal weights, which the CPU computes slowly
    model = Decoder(spec.model, spec.seed)
    before = {name: p.detach().clone() for name, p in model.encoding_parameters().items()}
    module, optimizer = place.prepare(model, _optimizer(model, spec))
    history, start = _History(), 0
    if checkpoint is not None:
        start, history = _restore(checkpoint, place, module, optimizer)
    try:
        yield from _train(spec, workload, place, module, optimizer, history, start)
        model = place.gather(module)
        if not place.is_main:
            return
        if spec.measure:
            yield from _measure(spec, workload, place, model, before, history, {one.name for one in done})
        else:
            yield Measured("curve", (_curve(history),))
    except (torch.OutOfMemoryError, MemoryError) as problem:
        raise TrialError(f"out of memory: {problem}") from None
    except RuntimeError as problem:
        if "can't allocate memory" in str(problem) or "not enough memory" in str(problem):
            raise TrialError(f"out of memory: {problem}") from None
        raise
    yield Finished(model.to_bytes(), spec.model)


@torch.no_grad()
def scores(model: Decoder, workload: Workload) -> Iterator[Record]:
    """Yield the losses or exact matches of a model as it is, on the CPU."""
    place = Alone()
    for measure in workload.measures():
        if measure.name.startswith(("loss/", "exact/")):
            seed_step("scores", measure.name)
            yield from measure.run(place.forward(model.eval()))


def starting_point(model: Decoder, curve: Record | None = None) -> bytes:
    """Return a checkpoint from which a trial goes on with a trained model, whatever its own encoding.

    What the model's encodings learned is left out, and the optimiser starts anew.

    Args:
        model: the trained model.
        curve: its curve, for a trial that trains no further and is measured alone; None: training begins at step 0.
    """
    from safetensors.torch import save

    history = _History() if curve is None else _History(**{n: curve[n] for n in _History.__slots__ if n in curve})
    tensors = {f"model/{n}": p.detach().cpu() for n, p in model.named_parameters() if ".encoding." not in n}
    step = history.step[-1] if history.step else 0
    return save(tensors, {"step": str(step), "history": json.dumps(_plain(history))})


def learning_rate(spec: Spec, step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth of the peak."""
    warmup = round(spec.warmup * spec.steps)
    if step < warmup:
        return spec.lr * (step + 1) / warmup
    through = (step - warmup) / max(spec.steps - warmup, 1)
    return spec.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * through)))


def loss_of(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats over the targets that count, in float32."""
    flat = functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction=reduction
    )
    return flat.view(targets.shape) if reduction == "none" else flat


def seed_step(*parts: object) -> None:
    """Seed torch's global generator for what is random in a step (drawn positions), whatever ran before."""
    torch.manual_seed(seed_of(0, "/".join(map(str, parts))))


def _optimizer(model: Decoder, spec: Spec) -> torch.optim.AdamW:
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim >= 2 and ".encoding." not in name else rest).append(parameter)
    groups = [{"params": matrices, "weight_decay": spec.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=spec.lr, betas=(0.9, 0.95), fused=True)


def _train(
    spec: Spec,
    workload: Workload,
    place: Place,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    history: _History,
    start: int,
) -> Iterator[Event]:
    module.train()
    every = REPORT_EVERY * math.ceil(spec.checkpoint_every / REPORT_EVERY)  # a point of the curve is never split
    since: list[Tensor] = []
    seen = history.tokens[-1] if history.tokens else 0
    clock = time.perf_counter()
    for step in range(start, spec.steps):
        seed_step(spec.seed, "train", step)
        batch = workload.batch(step, spec.batch_size, spec.seed)
        scored, tokens = batch.scored, batch.tokens.numel()
        if not scored:
            raise TrialError(f"step {step}: a batch without a single target; is the text shorter than a window?")
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, step)
        mine = place.share(batch)
        with place.autocast():
            logits = module(mine.tokens, mine.where())
        # Every process divides by the targets of the whole batch: the mean over processes is then the batch's gradient.
        loss = loss_of(logits, mine.targets, "sum") * (place.processes / scored)
        place.backward(loss)
        place.clip(module, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        project(place.unwrap(module))
        since.append(place.mean(loss.detach()))
        seen += tokens
        last = step + 1 == spec.steps
        if (step + 1) % REPORT_EVERY == 0 or last:
            value = float(torch.stack(since).double().mean())
            if not math.isfinite(value):
                raise TrialError(
                    f"the loss became {value} between steps {step + 1 - len(since)} and {step} at learning rate {spec.lr:g};"
                    " a smaller --lr may help"
                )
            now = time.perf_counter()
            speed = tokens * len(since) / max(now - clock, 1e-9)
            if step >= 2 * REPORT_EVERY:  # the first steps warm up allocators and caches
                history.speed.append(speed)
            history.step.append(step + 1)
            history.tokens.append(seen)
            history.loss.append(value)
            since = []
            yield Progress(step + 1, spec.steps, value, speed)
            clock = time.perf_counter()
        if (step + 1) % spec.validate_every == 0 or last:
            history.validation_step.append(step + 1)
            history.validation_loss.append(_validate(spec, workload, place, module))
            clock = time.perf_counter()
        if (step + 1) % every == 0 or last:
            yield Checkpoint(step + 1, _content(step + 1, place, module, optimizer, history))
            clock = time.perf_counter()


def project(model: nn.Module) -> None:
    """Bring parameters of encodings back where they are defined, for encodings that ask for it."""
    for module in model.modules():
        back = getattr(module, "project_", None)
        if callable(back):
            back()


@torch.no_grad()
def _validate(spec: Spec, workload: Workload, place: Place, module: nn.Module) -> float:
    model = place.unwrap(module).eval()
    total, count = 0.0, 0
    for i, batch in enumerate(workload.validation()):
        seed_step(spec.seed, "validation", i)
        batch = batch.to(place.device)
        with place.autocast():
            logits = model(batch.tokens, batch.where())
        total += float(loss_of(logits, batch.targets, "sum").double())
        count += batch.scored
    module.train()
    mean = total / count
    if not math.isfinite(mean):
        raise TrialError(f"the validation loss became {mean} at learning rate {spec.lr:g}; a smaller --lr may help")
    return mean


def _measure(
    spec: Spec,
    workload: Workload,
    place: Place,
    model: Decoder,
    before: dict[str, Tensor],
    history: _History,
    done: set[str],
) -> Iterator[Event]:
    from ropewalk.lab import costs

    model.eval()

    def shape() -> list[Record]:
        names = [str(name) for name in spec.model.encodings]
        layers = [names[i % len(names)] for i in range(spec.model.num_layers)]
        total = count_parameters(list(model.parameters()))
        # Not the encodings' own alone: some give more heads than there are queries, and widen the layer's output.
        extra = total - count_parameters(list(Decoder(with_encodings(spec.model, ("nope",))).parameters()))
        return [{"kind": "model", "parameters": total, "extra_parameters": extra, "encodings": layers}]

    jobs = {"model": shape, "curve": lambda: [_curve(history)], "learned": lambda: costs.learned(model, before)}
    if history.speed:
        jobs["speed/train"] = lambda: [costs.speed_record("train", workload.train_length, history.speed)]
    for measure in workload.measures():
        jobs[measure.name] = lambda measure=measure: measure.run(place.forward(model))  # type: ignore[misc]
    jobs["memory"] = lambda: costs.memory(model, workload.batch(0, spec.batch_size, spec.seed), place)
    blocks = workload.domain == "layout"
    for length in workload.lengths:
        jobs[f"speed/{length}"] = lambda length=length: costs.speed(model, length, place, blocks)  # type: ignore[misc]
    for name, job in jobs.items():
        if name in done:
            continue
        seed_step(spec.seed, "measure", name)
        try:
            with torch.no_grad() if name != "memory" else torch.enable_grad():
                records = tuple(job())
        except RopewalkError as refusal:
            if isinstance(refusal, TrialError):
                raise
            # An encoding that refuses one thing (decoding with a cache, longer sequences) is still worth the others.
            records = ({"kind": "refused", "what": name, "reason": f"{type(refusal).__name__}: {refusal}"},)
        _check_finite(name, records, spec)
        yield Measured(name, records)


def _check_finite(name: str, records: Sequence[Record], spec: Spec) -> None:
    """A number that is none must not end up among results, where it would pass for one."""
    try:
        json.dumps(records, allow_nan=False)
    except ValueError:
        raise TrialError(f"measuring {name} gave a number that is not finite (learning rate {spec.lr:g})") from None


def _curve(history: _History) -> Record:
    return {"kind": "curve", **{name: values for name, values in _plain(history).items() if name != "speed"}}


def _plain(history: _History) -> dict[str, Any]:
    return {name: list(getattr(history, name)) for name in history.__slots__}


def _content(step: int, place: Place, module: nn.Module, optimizer: torch.optim.Optimizer, history: _History) -> bytes:
    from safetensors.torch import save

    tensors = place.state(module, optimizer)
    return save(tensors, {"step": str(step), "history": json.dumps(_plain(history))}) if place.is_main else b""


def _restore(content: bytes, place: Place, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, _History]:
    from safetensors.torch import load

    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    place.restore(module, optimizer, load(content))
    return int(metadata["step"]), _History(**json.loads(metadata["history"]))
