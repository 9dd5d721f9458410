"""EndPrompt: do short texts whose end stands at the end of a long context teach the long context?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

SHORT, LONG, FACTOR = 128, 512, 4
TERMINAL, STEPS, ROWS = 16, 60, 8
_ROPE, _PI = "rope(pairing=half)", f"pi(factor={FACTOR})"
_END, _POSE, _FULL = "pi tuned with EndPrompt", "pi tuned with PoSE", "pi tuned at full length"

EXPERIMENT = Experiment(
    name="endprompt",
    slugs=(),
    claim="Tuning on short texts whose last tokens stand at the end of the wanted context, with interpolated positions, "
    "extends the context as well as tuning at full length, or better (RULER 76.0 against 69.2), at a fraction of the cost.",
    source="Dawei Yin, Fang Wang, Han Tian, Haoyi Xiong, Jiamin Chen, Jiashu Zhao, Jinman Zhao, Luxuan Chen, Rui Kong, "
    "Shuaiqiang Wang, Xinran Chen, Yuchen Li. EndPrompt: Efficient Long-Context Extension via Terminal Anchoring. arXiv "
    "2605.14589, 2026",
    expected=f"Models trained at {SHORT} tokens and tuned with PI on as many, with EndPrompt's positions, have a lower loss "
    f"at {LONG} than with PI untuned, and than plain RoPE; nearly as low as those tuned at {LONG}.",
    settings={**TEXT, "encodings": (_ROPE,), "eval_lengths": (SHORT, LONG)},
    drop_in={_PI: _ROPE},
    altered={
        _END: (_PI, f"{__name__}:tune_with_endprompt"),
        _POSE: (_PI, f"{__name__}:tune_with_pose"),
        _FULL: (_PI, f"{__name__}:tune_at_full_length"),
    },
    contrasts=(
        Contrast(_END, _PI, "lower", (LONG,)),
        Contrast(_END, _ROPE, "lower", (LONG,)),
        Contrast(_END, _FULL, "within", (LONG,), margin=0.05, decides=False, because="against tuning at full length"),
        Contrast(_END, _POSE, "lower", (LONG,), decides=False, because="against PoSE"),
        Contrast(_END, _FULL, "within", (SHORT,), margin=0.05, decides=False, because="the trained length"),
    ),
    seconds=220,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. The last {TERMINAL} bytes of a window are the terminal prompt, and belong to the text. "
    f"Tuning is {STEPS} steps of {ROWS} windows; at full length each costs four times as many tokens. Single needles are "
    f"found at four and sixteen times the trained length with PI untuned, so that they tell nothing.",
)


def tune_with_endprompt(model: Decoder, workload: Workload) -> None:
    """Tune on short windows whose last tokens stand at the end of the long context."""
    from ropewalk.coordinates.skipped import endprompt_positions

    def place(length: int, context: int, generator: Generator) -> Tensor:
        return endprompt_positions(length, TERMINAL, context - 1)

    _tune(model, workload, place)


def tune_with_pose(model: Decoder, workload: Workload) -> None:
    """Tune on short windows that are cut in two, the second piece anywhere in the long context."""
    from ropewalk.coordinates.skipped import pose_positions

    _tune(model, workload, pose_positions)


def tune_at_full_length(model: Decoder, workload: Workload) -> None:
    """Tune on long windows."""
    _tune(model, workload, None)


def _tune(model: Decoder, workload: Workload, place: Callable[[int, int, Generator], Tensor] | None) -> None:
    from dataclasses import replace

    import torch

    from ropewalk.lab.batch import Batch
    from ropewalk.lab.experiments.desk import tune
    from ropewalk.lab.workloads import Seen, Text

    assert isinstance(workload, Text)
    if place is None:
        return tune(model, Text(workload.corpus, LONG, (SHORT, LONG)), steps=STEPS, lr=1e-3, batch_size=ROWS)
    generator = torch.Generator().manual_seed(0)

    def placed(batch: Batch) -> Batch:
        rows, length = batch.tokens.shape
        return replace(batch, positions=torch.stack([place(length, LONG, generator) for _ in range(rows)]))

    tune(model, Seen(workload, placed), steps=STEPS, lr=1e-3, batch_size=ROWS)
