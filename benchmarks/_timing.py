"""Timing on a machine that others use too: cases take turns, and medians are compared."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def interleaved(cases: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2) -> dict[str, float]:
    """Return the median seconds of each case; the cases run in turn, so that noise meets all of them alike."""
    for _ in range(warmup):
        for call in cases.values():
            call()
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, call in cases.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def ratios(seconds: Mapping[str, float], to: str) -> dict[str, float]:
    """Return each time divided by that of the case ``to``."""
    return {name: s / seconds[to] for name, s in seconds.items()}


def header() -> dict[str, str | int | float]:
    """Return what the numbers depend on beside the code."""
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 1),
    }
