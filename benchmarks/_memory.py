"""How much memory a call takes at its worst moment, everything counted that torch's CPU allocator hands out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile


class Memory(NamedTuple):
    """MiB that one call allocated: the most at one time, results included, and the largest single block."""

    peak: float
    largest: float


def memory(run: Callable[[], object]) -> Memory:
    """Run once and watch the allocator. Scratch inside kernels is seen too; what was there before is not counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run()
    # The public tables add up what an operator allocated and freed; only the single events have an order.
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = largest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak, largest = max(peak, live), max(largest, event.nbytes())
    return Memory(peak / 2**20, largest / 2**20)
