"""EndPrompt: do short texts whose end stands at the end of a long context teach the long context?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_NEEDLE, SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    from ropewalk.lab.model import Decoder

SHORT, LONG, FACTOR = 64, 256, 4
_ROPE, _PI = "rope(pairing=half)", f"pi(factor={FACTOR})"
_END, _POSE, _FULL = "pi tuned with EndPrompt", "pi tuned with PoSE", "pi tuned at full length"

EXPERIMENT = Experiment(
    name="endprompt",
    slugs=(),
    claim="Tuning on short texts whose last tokens stand at the end of the wanted context, with interpolated positions, extends "
    "the context as well as tuning at full length, or better (RULER 76.0 against 69.2), at a fraction of the cost.",
    source="Dawei Yin, Fang Wang, Han Tian, Haoyi Xiong, Jiamin Chen, Jiashu Zhao, Jinman Zhao, Luxuan Chen, Rui Kong, "
    "Shuaiqiang Wang, Xinran Chen, Yuchen Li. EndPrompt: Efficient Long-Context Extension via Terminal Anchoring. "
    "arXiv 2605.14589, 2026",
    expected=f"Models trained on haystacks up to {SHORT} and tuned with PI on haystacks of {SHORT} with EndPrompt's positions "
    f"find more needles in haystacks of {LONG} than with PI untuned, and than plain RoPE; nearly as many as those tuned at "
    f"{LONG}.",
    settings={
        "task": "needle",
        "encodings": (_ROPE,),
        "train_length": SHORT,
        "eval_lengths": (SHORT, LONG),
        "shape": SHAPE,
        "tokens": 300_000,
        "batch_size": 32,
        "lr": 3e-3,
        "windows": 256,
    },
    drop_in={_PI: _ROPE},
    altered={
        _END: (_PI, f"{__name__}:tune_with_endprompt"),
        _POSE: (_PI, f"{__name__}:tune_with_pose"),
        _FULL: (_PI, f"{__name__}:tune_at_full_length"),
    },
    contrasts=(
        Contrast(_END, _PI, "higher", (LONG,)),
        Contrast(_END, _ROPE, "higher", (LONG,)),
        Contrast(_END, _FULL, "within", (LONG,), margin=0.1, decides=False, because="against tuning at full length"),
        Contrast(_END, _POSE, "higher", (LONG,), decides=False, because="against PoSE"),
        Contrast(_END, _FULL, "within", (SHORT,), margin=0.1, decides=False, because="the trained length"),
    ),
    seconds=220,
    full=FULL_NEEDLE,
    limits="The terminal prompt is the question itself, as there is no other text behind the haystack. Every stage of tuning has "
    "40 steps of 32 haystacks; at full length each costs four times as many tokens.",
)


def tune_with_endprompt(model: Decoder) -> None:
    """Tune on short haystacks whose question stands at the end of the long context."""
    from ropewalk.coordinates.skipped import endprompt_positions

    def place(length: int, context: int, generator: Generator) -> Tensor:
        return endprompt_positions(length, 4, context - 1)  # the question, its key, "=" and the answer

    _tune(model, SHORT, place)


def tune_with_pose(model: Decoder) -> None:
    """Tune on short haystacks that are cut in two, the second piece anywhere in the long context."""
    from ropewalk.coordinates.skipped import pose_positions

    _tune(model, SHORT, pose_positions)


def tune_at_full_length(model: Decoder) -> None:
    """Tune on long haystacks."""
    _tune(model, LONG, None)


def _tune(model: Decoder, size: int, place: Callable[[int, int, Generator], Tensor] | None) -> None:
    from dataclasses import replace

    import torch

    from ropewalk.lab.batch import Batch
    from ropewalk.lab.experiments.desk import tune
    from ropewalk.lab.tasks import task
    from ropewalk.lab.tasks.task import stream
    from ropewalk.lab.workloads import Generated

    class Placed(Generated):
        """Haystacks of one size, placed in the long context."""

        def batch(self, step: int, size: int, seed: int) -> Batch:
            generator = stream("endprompt", seed, step)
            drawn = self.task.batch(generator, self.train_size, size)
            if place is None:
                return drawn
            rows, length = drawn.tokens.shape
            context = self.task.length(LONG)
            placed = torch.stack([place(length, context, generator) for _ in range(rows)])
            return replace(drawn, positions=placed)

    tune(model, Placed(task("needle"), size, (SHORT, LONG), examples=64), steps=40, lr=1e-3)
