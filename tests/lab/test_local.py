"""Trials in processes of their own, one after the other or several at once: the same numbers, and a death costs one trial."""

from __future__ import annotations

import os
import signal
import time

import pytest
from small import settings

from ropewalk.core.errors import ConfigError
from ropewalk.lab.compare import Failure, compare
from ropewalk.lab.local import LocalRunner
from ropewalk.lab.runs import read_results
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Finished
from ropewalk.lab.workloads import resolved


def scores(folder):
    """How much of each trial's answers was right, by size."""
    return {(r["trial"], r["size"]): r["exact"] for r in read_results(folder) if r["kind"] == "exact"}


class Watching(LocalRunner):
    """Writes down which trials speak, in their order."""

    def run(self, jobs):
        self.order = []
        for spec, event in super().run(jobs):
            self.order.append((spec.name, type(event)))
            yield spec, event


def test_several_at_once_give_the_numbers_of_one_after_the_other(tmp_path):
    asked = settings(seeds=2)
    measured = []
    for at_once in (1, 2):
        runner = Watching(tmp_path / str(at_once), resolved(asked), "cpu", at_once=at_once)
        assert not compare(asked, tmp_path / str(at_once), runner=runner).failed
        measured.append(scores(tmp_path / str(at_once)))
        ends = [i for i, (_, event) in enumerate(runner.order) if event is Finished]
        beside = {name for name, _ in runner.order[: ends[0]]}
        assert len(ends) == 4 and len(beside) == at_once
    assert measured[0] and measured[0] == measured[1]


def test_a_process_that_dies_takes_one_trial_with_it(tmp_path):
    class Killing(LocalRunner):
        """Kills the first process that reports progress."""

        victim = None

        def run(self, jobs):
            for spec, event in super().run(jobs):
                if self.victim is None:
                    self.victim = spec.name
                    os.kill(child_of(os.getpid()), signal.SIGKILL)
                yield spec, event

    asked = settings(seeds=2)
    outcome = compare(asked, tmp_path / "run", runner=Killing(tmp_path / "run", resolved(asked), "cpu", at_once=2))
    assert len(outcome.failed) == 1 and "SIGKILL" in next(iter(outcome.failed.values()))
    assert len({r["trial"] for r in outcome.records if r["kind"] == "exact"}) == 3


def test_leaving_early_ends_the_processes(tmp_path):
    class Leaving(LocalRunner):
        """The driver stops listening after the first word."""

        def run(self, jobs):
            for spec, event in super().run(jobs):
                assert not isinstance(event, Failure)
                yield spec, event
                raise KeyboardInterrupt

    asked = settings(tokens=16 * 8 * 3000, seeds=2)
    with pytest.raises(KeyboardInterrupt):
        compare(asked, tmp_path / "run", runner=Leaving(tmp_path / "run", resolved(asked), "cpu", at_once=2))
    deadline = time.monotonic() + 10
    while children(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not children(os.getpid())


def test_at_least_one():
    with pytest.raises(ConfigError, match="at least 1"):
        LocalRunner(None, Settings(), at_once=0)


def children(pid):
    """Living trial processes of a process."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        found = list(map(int, file.read().split()))
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            found += map(int, file.read().split())
    return [child for child in dict.fromkeys(found) if b"ropewalk.lab.local" in command_of(child)]


def child_of(pid):
    """One of them."""
    return children(pid)[0]


def command_of(pid):
    """How a process was started; nothing if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
