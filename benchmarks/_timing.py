"""Ratios that hold on a noisy machine: candidates take turns, and each is compared with its own neighbour in time."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Spread(NamedTuple):
    """The median of many rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def prepare() -> None:
    """Call first: bring the process to the state of one that has run for a while."""
    # Denormals are many times slower than other numbers. The switch is inherited by threads when they start, so it
    # must be set before the first parallel operation.
    torch.set_flush_denormal(True)
    # glibc maps the first large blocks anew each time, and page faults then cost more than the copy that is measured;
    # having freed one of almost 32 MiB, it keeps all smaller ones. (Larger ones it always maps anew.)
    for _ in range(3):
        torch.ones(31 << 20, dtype=torch.uint8)


def header() -> str:
    """Return a line that says what ran where."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}; torch {torch.__version__}, Python {platform.python_version()}{load}"
    )


def rounds(
    candidates: dict[str, Callable[[], Any]], seconds: float = 1.5, at_least: int = 15
) -> dict[str, list[float]]:
    """Return the seconds each candidate took in each round; in a round all run once, one after the other."""
    for run in candidates.values():
        for _ in range(3):
            run()
    took: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + seconds
    done = 0
    while done < at_least or time.perf_counter() < end:
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            took[name].append(time.perf_counter() - start)
        done += 1
    return took


def ratios(candidates: dict[str, Callable[[], Any]], reference: str, seconds: float = 1.5) -> dict[str, Spread]:
    """Return how many times longer than ``reference`` each other candidate takes, round by round."""
    took = rounds(candidates, seconds)
    base = took.pop(reference)
    return {name: spread([a / b for a, b in zip(times, base, strict=True)]) for name, times in took.items()}


def spread(values: list[float]) -> Spread:
    """Return median and quartiles."""
    low, _, high = statistics.quantiles(values, n=4)
    return Spread(statistics.median(values), low, high)


def quiet(patience: float = 60.0) -> bool:
    """Wait until other processes leave the processors alone for half a second; False if they never do.

    Two threads that must meet after each operation are slowed out of all proportion by a third one: without this,
    figures from a shared machine say more about the neighbours than about the code.
    """
    if not os.path.exists("/proc/stat"):
        return True

    def busy() -> int:
        with open("/proc/stat") as lines:
            user, nice, system, _, _, irq, soft, steal, *_ = map(int, lines.readline().split()[1:])
        return user + nice + system + irq + soft + steal

    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        before = busy()
        time.sleep(0.5)
        if busy() - before <= 5:  # hundredths of a second
            return True
    return False
