"""Ratios that hold on a noisy machine: candidates take turns, and each is compared with its own neighbour in time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Spread(NamedTuple):
    """The median of many rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def prepare(flush: bool = True) -> None:
    """Call first: bring the process to the state of one that has run for a while."""
    # Denormals are many times slower than other numbers. The switch is inherited by threads when they start, so it
    # must be set before the first parallel operation.
    torch.set_flush_denormal(flush)
    fresh()


def fresh() -> None:
    """Bring the memory allocator to one state, whatever was measured before.

    What a clone costs depends on where its memory comes from: glibc maps new pages for blocks of more than 32 MiB (and
    for smaller ones until one of their size was freed), and the page faults then cost several times the copy. After
    this call, blocks below 32 MiB are kept and reused, larger ones are mapped anew, as in any process that has run for
    a while and is left to the defaults.
    """
    gc.collect()
    for _ in range(3):
        torch.ones(31 << 20, dtype=torch.uint8)
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


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
        start = time.perf_counter()
        for _ in range(3):
            run()
            if time.perf_counter() - start > 0.2:  # what takes long is warm after once
                break
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


def spread(values: list[float]) -> Spread:
    """Return median and quartiles."""
    low, _, high = statistics.quantiles(values, n=4)
    return Spread(statistics.median(values), low, high)


def quiet(patience: float = 60.0) -> bool:
    """Wait until other processes leave the processors alone for half a second; False if they never do.

    Two threads that must meet after each operation are slowed out of all proportion by a third one: without this,
    figures from a shared machine say more about the neighbours than about the code.
    """
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        before = _others()
        time.sleep(0.5)
        if _others() - before <= 0.05:
            return True
    return False


def undisturbed(measure: Callable[[], T], patience: float = 60.0) -> tuple[T, bool]:
    """Measure, again and again, until other processes stayed out of it; the result, and whether one ever did."""
    end = time.perf_counter() + patience
    while True:
        quiet(end - time.perf_counter())
        before, start = _others(), time.perf_counter()
        result = measure()
        alone = _others() - before <= 0.05 * (time.perf_counter() - start)
        if alone or time.perf_counter() > end:
            return result, alone


def _others() -> float:
    """Return the seconds of processor time that other processes (and other machines on this host) have taken."""
    if not os.path.exists("/proc/stat"):
        return 0.0
    with open("/proc/stat") as lines:
        user, nice, system, _, _, irq, soft, steal, *_ = map(int, lines.readline().split()[1:])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK") - time.process_time()
