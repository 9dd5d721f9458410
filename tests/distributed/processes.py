"""Four processes that wait for cases to run together, started once for all tests of a session."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta
from multiprocessing import connection

import torch
import torch.distributed as dist

WORLD = 4
SILENCE = 120  # seconds after which processes that wait for each other are given up


class Processes:
    """Runs a function of a module beside the tests on the last ``size`` of the processes, each with the group of those.

    They are started when the first case comes, and again after one has left them in the middle of an exchange.
    """

    def __init__(self):
        self.pipes, self.processes = [], []

    def run(self, case, *args, size=2):
        """Return what ``module.function(group, *args)`` returned on each of the processes, which is small and plain."""
        if not self.processes:
            self._start()
        pipes = self.pipes[WORLD - size :]
        for pipe in pipes:
            pipe.send((case.__module__, case.__name__, size, args))
        answers = {}
        while len(answers) < size:
            waiting = [pipe for pipe in pipes if pipe not in answers]
            ready = connection.wait(waiting, SILENCE)
            answers |= {pipe: _answer(pipe) for pipe in ready} or {pipe: (False, "said nothing") for pipe in waiting}
            failed = [f"process {pipes.index(p)} of {size}: {said}" for p, (well, said) in answers.items() if not well]
            if failed:  # the others may wait for it
                self.stop()
                raise AssertionError("\n".join(failed))
        return [answers[pipe][1] for pipe in pipes]

    def stop(self):
        """End the processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()
        self.pipes, self.processes = [], []

    def _start(self):
        # One process imports everything and is forked into the others.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "ropewalk.parallel", "ropewalk.testing"])
        handle, meeting = tempfile.mkstemp()
        os.close(handle)
        os.unlink(meeting)
        for rank in range(WORLD):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, meeting, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)


def _answer(pipe):
    try:
        return pipe.recv()
    except EOFError:
        return False, "ended"


def _serve(rank, meeting, pipe):
    torch.set_num_threads(1)
    patience = timedelta(seconds=SILENCE / 2)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD, timeout=patience)
    # Groups that do not begin with process 0: a rank in the group is not the rank in the world.
    groups = {size: dist.new_group(range(WORLD - size, WORLD), timeout=patience) for size in range(1, WORLD)}
    with contextlib.suppress(EOFError):
        while True:
            module, name, size, args = pipe.recv()
            try:
                pipe.send((True, getattr(importlib.import_module(module), name)(groups.get(size), *args)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
