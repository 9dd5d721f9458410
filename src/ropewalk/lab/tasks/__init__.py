"""Generated tasks: problems whose every answer is known, at any size.

    from ropewalk.lab.tasks import task

    copy = task("copy", alphabet=10)
    batch = copy.train_batch(step=0, batch_size=64, seed=0, max_size=copy.train_size)

`TASKS` says where each is defined; none is imported before it is asked for. Other packages add theirs through the
entry-point group ``ropewalk.tasks``: the name of the entry point is the name of the task, and it loads to a subclass of
`ropewalk.lab.tasks.task.Task` (or to a function that makes one).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

from ropewalk.catalog import normalise
from ropewalk.core.errors import ConfigError, UnknownNameError, suggest

# Before `task` is defined: the first import of a module binds its name in the package, where the function belongs.
from ropewalk.lab.tasks.task import Task

__all__ = ["ENTRY_POINTS", "TASKS", "names", "task"]

ENTRY_POINTS = "ropewalk.tasks"

TASKS: dict[str, str] = {
    "copy": "ropewalk.lab.tasks.transduction:Copy",
    "reverse": "ropewalk.lab.tasks.transduction:Reverse",
    "sorting": "ropewalk.lab.tasks.transduction:Sorting",
    "bucket_sort": "ropewalk.lab.tasks.transduction:BucketSort",
    "odds_first": "ropewalk.lab.tasks.transduction:OddsFirst",
    "selective_copy": "ropewalk.lab.tasks.selective_copy:SelectiveCopy",
    "missing_duplicate": "ropewalk.lab.tasks.missing_duplicate:MissingDuplicate",
    "summation": "ropewalk.lab.tasks.summation:Summation",
    "parity": "ropewalk.lab.tasks.summation:Parity",
    "addition": "ropewalk.lab.tasks.addition:Addition",
    "addition_coupled": "ropewalk.lab.tasks.addition:AdditionCoupled",
    "flip_flop": "ropewalk.lab.tasks.flip_flop:FlipFlop",
    "counting": "ropewalk.lab.tasks.counting:Counting",
    "mqar": "ropewalk.lab.tasks.mqar:MQAR",
    "needle": "ropewalk.lab.tasks.needle:Needle",
    "index_position": "ropewalk.lab.tasks.indexing:IndexPosition",
    "index_content": "ropewalk.lab.tasks.indexing:IndexContent",
    "indirect_indexing": "ropewalk.lab.tasks.indexing:IndirectIndexing",
}

# Tasks whose tokens live elsewhere than in a sequence, for the encodings of these domains.
PLACED: dict[str, str] = {
    "marked_cell": "ropewalk.lab.tasks.marked_cell:MarkedCell",
    "views": "ropewalk.lab.tasks.views:Views",
    "images": "ropewalk.lab.tasks.images:Images",
    "video_needle": "ropewalk.lab.tasks.video_needle:VideoNeedle",
    "picture_question": "ropewalk.lab.tasks.picture_question:PictureQuestion",
    "picture_edit": "ropewalk.lab.tasks.picture_edit:PictureEdit",
    "tiles_needle": "ropewalk.lab.tasks.tiles_needle:TilesNeedle",
    "motion": "ropewalk.lab.tasks.motion:Motion",
    "oncoming": "ropewalk.lab.tasks.oncoming:Oncoming",
    "last_turn": "ropewalk.lab.tasks.last_turn:LastTurn",
    "nesting": "ropewalk.lab.tasks.nesting:Nesting",
    "paragraph_start": "ropewalk.lab.tasks.paragraph_start:ParagraphStart",
    "code_words": "ropewalk.lab.tasks.code_words:CodeWords",
    "spectral_kind": "ropewalk.lab.tasks.spectral_kind:SpectralKind",
}


def names() -> tuple[str, ...]:
    """Names of all tasks: those of this library, then those of other packages."""
    return tuple(dict.fromkeys([*TASKS, *PLACED, *(normalise(point.name) for point in _points())]))


def task(name: str, **options: Any) -> Task:
    """Make the task of that name; case does not matter, and '-' and ' ' are '_'.

    Raises:
        UnknownNameError: no task has that name.
        ConfigError: an option that the task does not take, or a value that cannot be.
    """
    key = normalise(name)
    factory = _factory(key)
    parameters = inspect.signature(factory).parameters
    takes = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for option in options:
        if option not in takes and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ConfigError(
                f"the task {key!r} takes no {option!r}; it takes {', '.join(takes) or 'no options'}.{suggest(option, takes)}"
            )
    made = factory(**options)
    if not isinstance(made, Task):
        raise ConfigError(f"the task {key!r} of another package makes a {type(made).__name__}; it has to make a Task")
    return made


def _factory(key: str) -> Callable[..., Any]:
    if path := TASKS.get(key) or PLACED.get(key):
        module, _, attribute = path.partition(":")
        own: Callable[..., Any] = getattr(import_module(module), attribute)
        return own
    for point in _points():
        if normalise(point.name) == key:
            try:
                theirs: Callable[..., Any] = point.load()
            except Exception as problem:  # whatever is wrong there, say whose it is
                raise ConfigError(
                    f"the task {key!r} of another package ({point.value}) cannot be loaded: {type(problem).__name__}: {problem}"
                ) from problem
            return theirs
    known = names()
    raise UnknownNameError(f"no task is called {key!r}.{suggest(key, known)} There are {', '.join(known)}.")


def _points() -> metadata.EntryPoints:
    return metadata.entry_points(group=ENTRY_POINTS)
