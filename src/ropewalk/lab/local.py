"""Trials in processes beside the driver: one after the other, or several at once.

The processes of their own cost a second and buy that a trial killed for want of memory is a failed trial, not a dead run.
Driver and processes speak through the processes' standard streams, in pickles: they are one program.
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
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from ropewalk.core.errors import ConfigError
from ropewalk.lab.compare import Failure, Job
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Event, Finished, Spec

Said = tuple[Spec, Event | Failure]


class LocalRunner:
    """Runs trials in processes of this machine.

    Args:
        folder: of the run; the processes read the text that is kept there.
        settings: of the comparison.
        device: None: a GPU where there is one, else the CPU.
        at_once: trials that run at the same time, each on its share of the cores. Small models leave most of a second core
            idle, so that two trials at once on two cores take less time than one after the other; but a trial's speed is then
            measured beside others.

    Raises:
        ConfigError: at_once below 1.
    """

    def __init__(self, folder: Path, settings: Settings, device: str | None = None, *, at_once: int = 1) -> None:
        if at_once < 1:
            raise ConfigError(f"--at-once is a whole number, at least 1; got {at_once}")
        self.folder, self.settings, self.device, self.at_once = folder, settings, device, at_once

    def run(self, jobs: Sequence[Job]) -> Iterator[Said]:
        """Run the jobs, begun in order; a process that dies takes one trial with it."""
        waiting = deque(jobs)
        heard: SimpleQueue[Said | BaseException | None] = SimpleQueue()
        workers = [_Worker(self, waiting, heard) for _ in range(min(self.at_once, len(waiting)))]
        try:
            for worker in workers:
                worker.start()
            busy = len(workers)
            while busy:
                said = heard.get()
                if isinstance(said, BaseException):
                    raise said
                if said is None:
                    busy -= 1
                else:
                    yield said
        finally:
            waiting.clear()
            for worker in workers:
                worker.end()


class _Worker(threading.Thread):
    """Hands jobs to a process, to another one when it dies, and passes on what it says; None when no job is left."""

    def __init__(
        self, runner: LocalRunner, waiting: deque[Job], heard: SimpleQueue[Said | BaseException | None]
    ) -> None:
        super().__init__(daemon=True)
        self.runner, self.waiting, self.heard = runner, waiting, heard
        self.process: subprocess.Popen[bytes] | None = None
        self.over = False

    def run(self) -> None:
        """Work until no job is left."""
        try:
            while not self.over:
                try:
                    job = self.waiting.popleft()
                except IndexError:
                    break
                self._do(job)
            self.heard.put(None)
        except BaseException as problem:
            self.heard.put(problem)

    def end(self) -> None:
        """Stop at once, whatever the process is at."""
        self.over = True
        if self.process is not None:
            self.process.kill()
        if self.ident is not None:
            self.join()
        self._bury()

    def _do(self, job: Job) -> None:
        try:
            process = self._running()
            if self.over:  # said while the process began, when there was nothing to kill yet
                return
            assert process.stdin is not None and process.stdout is not None
            _send(process.stdin, job)
            while True:
                event = pickle.load(process.stdout)
                self.heard.put((job.spec, event))
                if isinstance(event, Finished | Failure):
                    return
        except (EOFError, pickle.UnpicklingError, BrokenPipeError):
            assert self.process is not None
            code = self.process.wait()
            self._bury()
            if not self.over:
                self.heard.put((job.spec, Failure(_death(code))))

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is not None:
            return self.process
        # With this process's own paths: "-m" would look for every module in the folder the user stands in first, where a
        # random.py of theirs would take the place of Python's.
        code = f"import sys; sys.path[:] = {sys.path!r}; from ropewalk.lab.local import serve; serve()"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process, runner = process, self.runner
        assert process.stdin is not None
        threads = None if runner.at_once == 1 else max(1, (os.cpu_count() or 1) // runner.at_once)
        _send(process.stdin, (runner.folder, runner.settings, runner.device, threads, os.getpid()))
        return process

    def _bury(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert stream is not None
                stream.close()


def serve() -> None:
    """Run the jobs that come on standard input, and send their events to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interruption means
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints must not end up among the events
    jobs = sys.stdin.buffer
    folder, settings, device, threads, driver = pickle.load(jobs)
    threading.Thread(target=_die_with, args=(driver,), daemon=True).start()

    import torch

    from ropewalk.lab.data import Corpus
    from ropewalk.lab.jobs import events
    from ropewalk.lab.place import Alone
    from ropewalk.lab.workloads import make_workload

    if threads is not None:
        torch.set_num_threads(threads)

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


def _death(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", most likely for want of memory: a smaller --batch-size may help" if name == "SIGKILL" else ""
        return f"the process was killed ({name}){hint}"
    return f"the process ended with status {code}; its last words are above"
