"""What a question is: a name, a yardstick, rows with targets, and why a target is missed where one is."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from ._memory import memory
from ._timing import fresh, rounds, spread, undisturbed

T = TypeVar("T")
Call = Callable[[], object]

TIMES = "×"
"""The unit of a ratio to the yardstick."""


@dataclass(frozen=True)
class Row:
    """One figure; smaller is better.

    Attributes:
        name: unique within its question.
        figure: the median; None where it was not measured, and ``note`` says why.
        low: the lower quartile, and ``high`` the upper one; None for what does not scatter.
        unit: of the figure; `TIMES` for ratios to the yardstick.
        target: largest figure that is good; None: it is only reported.
        milliseconds: median time of the candidate, for a feeling of what the ratio means.
        memory: MiB at the worst moment of one call, and ``yardstick_memory`` those of the yardstick.
        alone: whether other processes left the processors alone meanwhile.
        note: a few words.
    """

    name: str
    figure: float | None
    low: float | None = None
    high: float | None = None
    unit: str = TIMES
    target: float | None = None
    milliseconds: float | None = None
    memory: float | None = None
    yardstick_memory: float | None = None
    alone: bool = True
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether there is a target and the figure is beyond it."""
        return self.figure is not None and self.target is not None and self.figure > self.target

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def absent(name: str, why: str) -> Row:
    """Return a row for what could not be measured here."""
    return Row(name, None, note=why)


@dataclass(frozen=True)
class Bench:
    """How carefully to measure.

    Attributes:
        tiny: small sizes, to see that a question runs; the figures mean nothing.
        seconds: time for each candidate of a comparison.
        patience: seconds to wait and try again while other processes use the processors.
    """

    tiny: bool = False
    seconds: float = 0.4
    patience: float = 10.0

    def pick(self, full: T, tiny: T) -> T:
        """Return what fits the size of the run."""
        return tiny if self.tiny else full

    def against(self, yardstick: Call, candidates: dict[str, Call], target: float | None = None) -> Iterator[Row]:
        """Compare candidates, by the names of their rows, with a yardstick that takes turns with them."""
        calls = {"": yardstick, **candidates}
        used = {name: memory(call) for name, call in calls.items()}
        fresh()
        took, alone = undisturbed(partial(self._times, calls), self.patience)
        base = took[""]
        for name in candidates:
            ratio = spread([a / b for a, b in zip(took[name], base, strict=True)])
            yield Row(
                name,
                ratio.median,
                ratio.low,
                ratio.high,
                target=target,
                milliseconds=spread(took[name]).median * 1e3,
                memory=used[name].peak,
                yardstick_memory=used[""].peak,
                alone=alone,
            )

    def _times(self, calls: dict[str, Call]) -> dict[str, list[float]]:
        """Return seconds a call; calls too short for the clock are made in a row."""
        number = {name: max(1, math.ceil(2e-4 / _once(call))) for name, call in calls.items()}
        took = rounds(
            {name: partial(_many, call, number[name]) if number[name] > 1 else call for name, call in calls.items()},
            self.seconds * len(calls),
            at_least=3 if self.tiny else 7,
        )
        return {name: [t / number[name] for t in times] for name, times in took.items()}


def _once(call: Call) -> float:
    """Return about the seconds of one call: the first counts where it takes so long that warmth does not matter."""
    took = 1.0
    for _ in range(2):
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        if took > 0.05:
            break
    return took


def _many(call: Call, number: int) -> None:
    for _ in range(number):
        call()


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        title: a heading.
        text: what is measured and how, in a few sentences: the docstring of its file.
        yardstick: what a ratio of 1 is; empty where nothing is a ratio.
        rows: measures, row by row.
        why: the limit that was found, printed where a target is missed.
        flush: whether denormal numbers are flushed to zero in its process.
    """

    title: str
    text: str | None
    yardstick: str
    rows: Callable[[Bench], Iterable[Row]]
    why: str = ""
    flush: bool = True


def load(name: str) -> Question:
    """Import the file of that name in ``questions/``."""
    question: Question = importlib.import_module(f"{__package__}.questions.{name}").QUESTION
    return question
