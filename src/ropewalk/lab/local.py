"""Trials one after the other, in one process beside the driver.

The process of its own costs a second and buys that a trial killed for want of memory is a failed trial, not a dead run.
Driver and process speak through the process's standard streams, in pickles: they are one program.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from ropewalk.lab.compare import Failure, Job
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Event, Finished, Spec


class LocalRunner:
    """Runs trials in a process of this machine.

    Args:
        folder: of the run; the process reads the text that is kept there.
        settings: of the comparison.
        device: None: a GPU where there is one, else the CPU.
    """

    def __init__(self, folder: Path, settings: Settings, device: str | None = None) -> None:
        self.folder, self.settings, self.device = folder, settings, device

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Spec, Event | Failure]]:
        """Run the jobs in order; a process that dies takes one trial with it."""
        waiting = list(jobs)
        while waiting:
            yield from self._until_it_dies(waiting)

    def _until_it_dies(self, waiting: list[Job]) -> Iterator[tuple[Spec, Event | Failure]]:
        # With this process's own paths: "-m" would look for every module in the folder the user stands in first, where a
        # random.py of theirs would take the place of Python's.
        code = f"import sys; sys.path[:] = {sys.path!r}; from ropewalk.lab.local import serve; serve()"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        try:
            _send(process.stdin, (self.folder, self.settings, self.device, os.getpid()))
            while waiting:
                spec = waiting[0].spec
                _send(process.stdin, waiting[0])
                while True:
                    event = pickle.load(process.stdout)
                    if isinstance(event, Finished | Failure):
                        waiting.pop(0)
                        yield spec, event
                        break
                    yield spec, event
        except (EOFError, pickle.UnpicklingError, BrokenPipeError):
            process.wait()
            yield waiting.pop(0).spec, Failure(_death(process.returncode))
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def serve() -> None:
    """Run the jobs that come on standard input, and send their events to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interruption means
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints must not end up among the events
    jobs = sys.stdin.buffer
    folder, settings, device, driver = pickle.load(jobs)
    threading.Thread(target=_die_with, args=(driver,), daemon=True).start()

    from ropewalk.lab.data import Corpus
    from ropewalk.lab.jobs import events
    from ropewalk.lab.place import Alone
    from ropewalk.lab.workloads import make_workload

    corpus = Corpus.load(folder / "corpus.safetensors") if settings.task == "text" else None
    workload = make_workload(settings, corpus)
    place = Alone(device, settings.precision)
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        for event in events(job, workload, place):
            _send(out, event)


def _send(stream: IO[bytes], value: object) -> None:
    pickle.dump(value, stream)
    stream.flush()


def _die_with(driver: int) -> None:
    """End this process when the driver is gone: nobody would hear of what it computes."""
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", most likely for want of memory: a smaller --batch-size may help" if name == "SIGKILL" else ""
        return f"the process was killed ({name}){hint}"
    return f"the process ended with status {code}; its last words are above"
