"""Tasks of the package lm-eval, where it and their data are present."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError, suggest
from ropewalk.lab.errors import TrialError
from ropewalk.lab.extend.copies import BUCKETS
from ropewalk.lab.results import Record
from ropewalk.lab.statistics import RESAMPLES


@dataclass(frozen=True)
class Tasks:
    """Tasks that were found, and whose data are here.

    Attributes:
        names: of tasks, groups or tags, or YAML files, as the user gave them.
        held: the tasks they stand for.
        manager: lm-eval's own, which makes each task anew for each model.
    """

    names: tuple[str, ...]
    held: tuple[str, ...]
    manager: Any

    def evaluate(self, model: Any, tokenizer: Any, length: int, seed: int = 0) -> list[Record]:
        """Run all of them on a model.

        Args:
            model: of transformers.
            tokenizer: its own; it is left as it is.
            length: tokens that are read; of longer inputs lm-eval takes the last ones. What the configuration says is the
                trained length, at which nothing of a longer context would be seen.
            seed: of few-shot examples and sampling.

        Returns:
            records of kind "lm-eval".

        Raises:
            TrialError: a task cannot be run on this model.
        """
        import lm_eval
        from lm_eval.models.huggingface import HFLM

        try:
            # lm-eval gives a tokenizer a token for padding, and this one is written with the model.
            wrapped = HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=1, max_length=length)
            with contextlib.redirect_stdout(sys.stderr):  # it prints what it does
                found = lm_eval.simple_evaluate(
                    model=wrapped,
                    tasks=list(self.names),
                    task_manager=self.manager,
                    bootstrap_iters=RESAMPLES,
                    random_seed=seed,
                    numpy_random_seed=seed,
                    torch_random_seed=seed,
                    fewshot_random_seed=seed,
                )
        except MemoryError:
            raise
        except Exception as problem:  # tasks are code of many people
            if "out of memory" in str(problem) or "not enough memory" in str(problem):
                raise
            raise TrialError(f"lm-eval could not run {', '.join(self.names)}: {_said(problem)}") from problem
        return list(_records(found))


def load_tasks(names: Sequence[str]) -> Tasks:
    """Find tasks and load their data, so that nothing is missing after hours of work.

    Args:
        names: of tasks, groups or tags of lm-eval, or paths of YAML files that describe some.

    Raises:
        ConfigError: lm-eval is not installed, does not know one of them, or cannot load its data.
    """
    try:
        from lm_eval.models import huggingface  # noqa: F401  (it needs packages that lm-eval alone does not bring)
        from lm_eval.tasks import TaskManager
    except ImportError as problem:
        raise ConfigError(f"--lm-eval needs the package lm-eval ({problem}): pip install 'lm-eval[hf]'") from None
    manager = TaskManager()
    known = set(manager.all_tasks)
    for name in names:
        if name in known or Path(name).expanduser().is_file():
            continue
        if name.endswith((".yaml", ".yml")):
            raise ConfigError(f"there is no file {name!r}, which would describe a task of lm-eval")
        raise ConfigError(
            f"lm-eval has no task, group or tag {name!r}, and there is no file of that name.{suggest(name, sorted(known))}"
        )
    held: dict[str, str] = {}
    for name in names:
        for task in _load(manager, name):
            if task in held:
                raise ConfigError(f"--lm-eval {held[task]} and {name} both hold the task {task}; name it once")
            held[task] = name
    return Tasks(tuple(names), tuple(held), manager)


def check_methods(methods: Mapping[str, Any]) -> None:
    """Check that lm-eval can run what the methods make.

    Args:
        methods: `ropewalk.lab.extend.methods.Method`, by name.

    Raises:
        ConfigError: copies of a model, which are no model of transformers.
    """
    for name, method in methods.items():
        if BUCKETS in method.changes:
            raise ConfigError(
                f"{name} is several copies of the model, and lm-eval runs one; leave it out of --method, or give it a run of its "
                "own without --lm-eval"
            )


def _load(manager: Any, name: str) -> list[str]:
    """Load a task and its documents, and return the names of the tasks that it stands for."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            tasks = manager.load([name])["tasks"]
        empty = [task for task, made in tasks.items() if not len(made.eval_docs)]
    except Exception as problem:  # of data sets, of the hub, of a task's own code
        raise ConfigError(
            f"lm-eval cannot load the task {name!r} ({_said(problem)}). If it is its data that are missing, load it once while "
            "online, or give a YAML file whose dataset_kwargs name files that are there (paths are from the current folder)"
        ) from problem
    if not tasks or empty:
        raise ConfigError(f"the task {name!r} of lm-eval has nothing to ask{': ' + ', '.join(empty) if empty else ''}")
    return list(tasks)


def _records(found: Mapping[str, Any]) -> Iterator[Record]:
    """Make records of lm-eval's results: one a task, metric and filter."""
    for task, numbers in found["results"].items():
        better = found.get("higher_is_better", {}).get(task) or {}
        for key, value in numbers.items():
            metric, comma, chosen = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, Real):
                continue
            if not math.isfinite(value):
                raise TrialError(
                    f"the {metric} of lm-eval's task {task} is {value}: the model gives no usable numbers there"
                )
            error = numbers.get(f"{metric}_stderr,{chosen}")
            higher = better.get(metric)
            yield {
                "kind": "lm-eval",
                "what": task,
                "metric": metric if chosen == "none" else f"{metric} ({chosen})",
                "value": float(value),
                "error": float(error) if _is_number(error) else None,
                "better": None if higher is None else "higher" if higher else "lower",
                "items": _items(found.get("samples", {}).get(task, ()), metric, chosen, float(value)),
            }


def _items(samples: Sequence[Mapping[str, Any]], metric: str, chosen: str, value: float) -> list[float] | None:
    """Return one number a document; None where the result is not their mean (a perplexity, a group)."""
    mine = sorted((s for s in samples if s["filter"] == chosen and metric in s), key=lambda s: s["doc_id"])
    if not mine or not all(_is_number(s[metric]) for s in mine):
        return None
    items = [float(s[metric]) for s in mine]
    return items if math.isclose(sum(items) / len(items), value, rel_tol=1e-6, abs_tol=1e-9) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _said(problem: Exception) -> str:
    """Return what went wrong, in a line."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"
