"""Tasks of the package lm-eval, where it and their data are present."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.core.errors import ConfigError, suggest
from ropewalk.lab.results import Record


def check_tasks(tasks: Sequence[str]) -> Any:
    """Import lm-eval, and check that it knows the tasks.

    Raises:
        ConfigError: it is not installed, or does not know one of them.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as problem:
        raise ConfigError(f"--lm-eval needs the package lm-eval ({problem}): pip install lm-eval") from None
    known = TaskManager().all_tasks
    for task in tasks:
        if task not in known:
            raise ConfigError(f"lm-eval has no task {task!r}.{suggest(task, known)}")
    return lm_eval


def evaluate(model: Any, tokenizer: Any, tasks: Sequence[str], seed: int = 0) -> list[Record]:
    """Run tasks on a model.

    Returns:
        records of kind "lm-eval": what (the task), metric, value and error, its standard error where lm-eval gives one.

    Raises:
        ConfigError: lm-eval is missing, or a task's data are.
    """
    lm_eval = check_tasks(tasks)
    from lm_eval.models.huggingface import HFLM

    try:
        found = lm_eval.simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1),
            tasks=list(tasks),
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
        )
    except (OSError, ConnectionError, ValueError, KeyError) as problem:
        raise ConfigError(f"lm-eval could not run {', '.join(tasks)}: {problem}") from problem
    return [
        {
            "kind": "lm-eval",
            "what": task,
            "metric": metric.partition(",")[0],
            "value": float(value),
            "error": _error(of, metric),
        }
        for task, of in found["results"].items()
        for metric, value in of.items()
        if isinstance(value, float | int) and not isinstance(value, bool) and "_stderr" not in metric
    ]


def _error(of: dict[str, Any], metric: str) -> float | None:
    name, comma, which = metric.partition(",")
    value = of.get(f"{name}_stderr{comma}{which}")
    return float(value) if isinstance(value, float | int) else None
