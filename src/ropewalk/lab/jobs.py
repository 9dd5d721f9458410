"""One job's events, whatever happens in it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from ropewalk.core.errors import RopewalkError
from ropewalk.lab.compare import Failure, Job
from ropewalk.lab.place import Place
from ropewalk.lab.trial import Event, run
from ropewalk.lab.workloads import Workload


def events(job: Job, workload: Workload, place: Place) -> Iterator[Event | Failure]:
    """Run a trial; whatever it raises becomes a `Failure` that says why, and the other trials go on."""
    try:
        yield from run(job.spec, workload, checkpoint=job.checkpoint, done=job.done, place=place)
    except RopewalkError as problem:
        yield Failure(f"{type(problem).__name__}: {problem}")
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        yield Failure(f"{type(problem).__name__}: {problem} ({where.name}, line {where.lineno} of {where.filename})")
