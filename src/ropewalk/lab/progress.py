"""Progress bars of a comparison: one for all trials, one for each that runs, with loss, speed and time left."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ropewalk.lab import trial
from ropewalk.lab.compare import Failure, Watcher
from ropewalk.lab.trial import Event, Finished, Measured, Spec


class Several:
    """Tells several watchers, and opens and closes those that are context managers."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = tuple(watchers)

    def __enter__(self) -> Several:
        for watcher in self.watchers:
            if (start := getattr(watcher, "start", None)) is not None:
                start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watcher in reversed(self.watchers):
            if (stop := getattr(watcher, "stop", None)) is not None:
                stop()

    def begin(self, specs: Sequence[Spec], over: Sequence[str]) -> None:
        """Pass it on."""
        for watcher in self.watchers:
            watcher.begin(specs, over)

    def tell(self, spec: Spec, event: Event | Failure) -> None:
        """Pass it on."""
        for watcher in self.watchers:
            watcher.tell(spec, event)


class Bars:
    """Progress bars on standard error, which leave standard output to results; a pipe gets a line a trial.

    Args:
        console: None: standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self.console,
            transient=True,
        )
        self.total: TaskID | None = None
        self.running: dict[str, TaskID] = {}

    def start(self) -> None:
        """Show the bars."""
        if self.console.is_terminal:
            self.progress.start()

    def stop(self) -> None:
        """Take them away."""
        if self.console.is_terminal:
            self.progress.stop()

    def begin(self, specs: Sequence[Spec], over: Sequence[str]) -> None:
        """Show how many trials there are."""
        what = "trials" if specs[0].measure else "learning rates"
        if self.total is not None:
            self.progress.remove_task(self.total)
        self.total = self.progress.add_task(what, total=len(specs), completed=len(over), note="")
        if over:
            self._say(f"{len(over)} of {len(specs)} {what} are done already")

    def tell(self, spec: Spec, event: Event | Failure) -> None:
        """Move the bar of a trial."""
        if spec.name not in self.running:
            self.running[spec.name] = self.progress.add_task(spec.name, total=spec.steps, note="")
        bar = self.running[spec.name]
        match event:
            case trial.Progress():
                note = f"loss {event.loss:.3f}  {event.tokens_per_second:,.0f} tokens/s"
                self.progress.update(bar, completed=event.step, note=note)
            case Measured():
                self.progress.update(bar, completed=spec.steps, note=f"measured {event.name}")
            case Finished() | Failure():
                self.progress.remove_task(self.running.pop(spec.name))
                if self.total is not None:
                    self.progress.advance(self.total)
                self._say(f"{spec.name}: {'failed: ' + event.reason if isinstance(event, Failure) else 'done'}")
            case _:
                pass

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)
