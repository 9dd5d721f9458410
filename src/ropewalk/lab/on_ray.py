"""Trials as Ray tasks, on this machine or a cluster. Ray places them; the driver writes everything down.

A task streams its events to the driver, checkpoints among them, so that no folder has to be shared and a driver that is
started again goes on where it was.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError
from ropewalk.lab.compare import Failure, Job
from ropewalk.lab.data import Corpus
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Event, Finished, Spec


class RayRunner:
    """Runs every trial as a Ray task with its own resources.

    Args:
        folder: of the run, on the driver's machine.
        settings: of the comparison.
        address: of the cluster, HOST:PORT or ray://HOST:PORT; "auto": the one that RAY_ADDRESS or this machine belongs to, else
            a new one on this machine; "local": a new one on this machine.
        cpus: a trial; torch uses as many threads. None: 1.
        gpus: a trial. None: 1 where the cluster has any.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        address: str = "local",
        *,
        cpus: float | None = None,
        gpus: float | None = None,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError("--ray needs Ray: pip install 'ropewalk[ray]'") from None
        if address not in ("auto", "local") and ":" not in address:
            raise ConfigError(
                f"--ray takes HOST:PORT, auto or local; got {address!r}. Before an encoding write it out: --ray auto {address}"
            )
        for option, number, least in (("--cpus", cpus, "more than 0"), ("--gpus", gpus, "0 or more")):
            if number is not None and (number < 0 or (number == 0 and least != "0 or more")):
                raise ConfigError(f"{option} is {least} a trial; got {number:g}")
        self.folder, self.settings, self.address = folder, settings, address
        self.cpus, self.gpus, self.ray = 1.0 if cpus is None else cpus, gpus, ray

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Spec, Event | Failure]]:
        """Hand all jobs to Ray and pass on what they report, in the order in which it comes."""
        ray = self.ray
        ours = not ray.is_initialized()
        if ours:
            _reach(self.address)
            try:
                ray.init(
                    address=None if self.address == "auto" else self.address,  # None: whichever there is
                    log_to_driver=False,
                    include_dashboard=False if self.address == "local" else None,
                )
            except ConnectionError as problem:
                raise ConfigError(
                    f"no Ray cluster at {self.address!r}: {problem}; --ray local starts one here"
                ) from None
        try:
            yield from self._stream(jobs)
        finally:
            if ours:
                ray.shutdown()

    def _stream(self, jobs: Sequence[Job]) -> Iterator[tuple[Spec, Event | Failure]]:
        ray = self.ray
        gpus = self.gpus if self.gpus is not None else (1.0 if ray.cluster_resources().get("GPU") else 0.0)
        # A trial that lost its machine starts again by itself, from the checkpoint it was given.
        remote = ray.remote(num_cpus=self.cpus, num_gpus=gpus, max_retries=1)(_trial)
        corpus = None
        if self.settings.task == "text":
            corpus = ray.put(Corpus.load(self.folder / "corpus.safetensors"))
        running: dict[Any, tuple[Any, Spec]] = {}
        for job in jobs:
            stream = remote.remote(job, self.settings, corpus, max(1, int(self.cpus)))
            running[stream] = (stream, job.spec)
        while running:
            ready, _ = ray.wait(list(running), num_returns=1)
            for stream in ready:
                spec = running[stream][1]
                try:
                    event = ray.get(next(stream))
                except StopIteration:
                    running.pop(stream)
                    yield spec, Failure("the task ended without a result")
                    continue
                except ray.exceptions.RayError as problem:
                    running.pop(stream)
                    yield spec, Failure(f"{type(problem).__name__}: {str(problem).splitlines()[0]}")
                    continue
                if isinstance(event, Finished | Failure):
                    running.pop(stream)
                yield spec, event


def _reach(address: str) -> None:
    """Fail at once where nobody listens; Ray itself waits for two minutes and then ends the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"no Ray cluster at {address!r} ({problem}); --ray local starts one on this machine"
        ) from None


def _trial(job: Job, settings: Settings, corpus: Corpus | None, threads: int) -> Iterator[Event | Failure]:
    import torch

    from ropewalk.lab.jobs import events
    from ropewalk.lab.place import Alone
    from ropewalk.lab.workloads import make_workload

    torch.set_num_threads(threads)
    yield from events(job, make_workload(settings, corpus), Alone(None, settings.precision))
