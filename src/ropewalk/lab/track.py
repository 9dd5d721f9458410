"""TensorBoard and Weights & Biases, through accelerate's trackers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError
from ropewalk.lab.compare import Failure
from ropewalk.lab.trial import Event, Finished, Measured, Progress, Spec

KNOWN = ("tensorboard", "wandb")


class Trackers:
    """Logs the training loss of every trial, and its scores at the end.

    Args:
        names: of the trackers.
        folder: of the run; they write to ``tracking/`` in it.

    Raises:
        ConfigError: an unknown tracker, or one whose package is not installed.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        for name in names:
            if name not in KNOWN:
                raise ConfigError(f"--track takes {' or '.join(KNOWN)}; got {name!r}")
        try:
            from accelerate import tracking
        except ImportError:
            raise ConfigError("--track needs accelerate: pip install 'ropewalk[lab]'") from None
        available = {"tensorboard": tracking.is_tensorboard_available, "wandb": tracking.is_wandb_available}
        for name in names:
            if not available[name]():
                raise ConfigError(f"--track {name} needs a package that is not installed: pip install {name}")
        self.names, self.folder = tuple(names), folder / "tracking"
        self.open: dict[str, list[Any]] = {}

    def begin(self, specs: Sequence[Spec], over: Sequence[str]) -> None:
        """Nothing to do before a trial begins."""

    def tell(self, spec: Spec, event: Event | Failure) -> None:
        """Log what an event says."""
        match event:
            case Progress():
                values = {"loss/train": event.loss, "tokens_per_second": event.tokens_per_second}
                self._log(spec, values, event.step)
            case Measured():
                self._log(spec, dict(_scores(event)), spec.steps)
            case Finished() | Failure():
                for tracker in self.open.pop(spec.name, ()):
                    tracker.finish()
            case _:
                pass

    def stop(self) -> None:
        """Close what an interruption left open."""
        for trackers in self.open.values():
            for tracker in trackers:
                tracker.finish()
        self.open.clear()

    def _log(self, spec: Spec, values: dict[str, float], step: int) -> None:
        if not values:
            return
        if spec.name not in self.open:
            self.open[spec.name] = [self._make(name, spec) for name in self.names]
        for tracker in self.open[spec.name]:
            tracker.log(values, step=step)

    def _make(self, name: str, spec: Spec) -> Any:
        from accelerate import PartialState, tracking

        PartialState()  # the trackers ask it which process is the main one
        config = {"encoding": spec.encoding, "seed": spec.seed, "lr": spec.lr, "steps": spec.steps}
        self.folder.mkdir(parents=True, exist_ok=True)
        if name == "tensorboard":
            tracker: Any = tracking.TensorBoardTracker(spec.name, str(self.folder))
        else:
            tracker = tracking.WandBTracker("ropewalk", name=spec.name, dir=str(self.folder))
        if (start := getattr(tracker, "start", None)) is not None:
            start()
        tracker.store_init_configuration(config)
        return tracker


def _scores(event: Measured) -> list[tuple[str, float]]:
    found = []
    for record in event.records:
        if record["kind"] == "loss":
            found.append((f"loss/{record['split']}/{record['length']}", record["mean"]))
        elif record["kind"] == "exact":
            found.append((f"exact/{record['size']}", record["exact"]))
    return found
