"""What fits a desk: the model, and the text and the tasks in sizes that take minutes on two cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

SHAPE = {"hidden_size": 64, "num_layers": 2, "num_heads": 2}

# Bytes of Python's standard library, scored at once, twice and four times the trained length.
TEXT: dict[str, Any] = {
    "task": "text",
    "train_length": 128,
    "eval_lengths": (128, 256, 512),
    "shape": SHAPE,
    "tokens": 450_000,
    "batch_size": 16,
    "lr": 4e-3,
    "windows": 64,
}
FULL_TEXT: dict[str, Any] = {"size": "small", "shape": {}, "tokens": 20_000_000, "windows": 256, "lr": 2e-3, "seeds": 5}
# One needle, in haystacks as long as those of training and half as long. One of several takes a hundred times the training.
NEEDLE: dict[str, Any] = {
    "task": "needle",
    "train_length": 64,
    "eval_lengths": (32, 64),
    "shape": SHAPE,
    "tokens": 500_000,
    "batch_size": 32,
    "lr": 3e-3,
    "windows": 512,
}
FULL_NEEDLE: dict[str, Any] = {
    "task": "needle(needles=4)",
    "tokens": 20_000_000,
    "seeds": 5,
    "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4},
    "lr": 2e-3,
}

# Questions about generated pictures, and needles in generated videos. With eight colours, five rows or a frame beside the
# needle's that looks like it, nothing is learned in minutes.
PICTURES: dict[str, Any] = {"shape": SHAPE, "tokens": 600_000, "batch_size": 64, "lr": 3e-3, "windows": 256}
VIDEO: dict[str, Any] = {
    **PICTURES,
    "task": "video_needle(columns=2, colours=4, keys=4, distractor=False)",
    "tokens": 350_000,
    "train_length": 4,
}
# Shapes to be named at resolutions that training never had: cells a side, of a task whose bars are learned in half a minute.
RESOLUTIONS: dict[str, Any] = {
    "task": "images(colours=1)",
    "encoder": True,
    "train_length": 8,
    "eval_lengths": (8, 12, 16),
    "shape": SHAPE,
    "tokens": 1_100_000,
    "batch_size": 32,
    "lr": 6e-3,
    "windows": 256,
}
FULL_PICTURES: dict[str, Any] = {
    "tokens": 10_000_000,
    "seeds": 5,
    "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4},
    "lr": 2e-3,
}

# Sequences with blanks (`ropewalk.lab.filled`): tasks and sizes are the experiments' own.
FILLED: dict[str, Any] = {"encoder": True, "shape": SHAPE, "batch_size": 32, "lr": 3e-3, "windows": 512}
FULL_FILLED: dict[str, Any] = {
    "tokens": 10_000_000,
    "seeds": 5,
    "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4},
    "lr": 2e-3,
}

SMALL_MODEL = "models of about 100,000 parameters on bytes of source code, trained for minutes"


def tune(model: Decoder, workload: Workload, *, steps: int, lr: float, batch_size: int = 32, seed: int = 0) -> None:
    """Train a model further, in place, as trials are trained: for what is altered by hand."""
    from ropewalk.lab.trial import Finished, Spec, run, starting_point

    spec = Spec(
        "tuned",
        "",
        model.config,
        seed,
        lr,
        steps,
        batch_size,
        checkpoint_every=steps,
        validate_every=steps,
        measure=False,
    )
    for event in run(spec, workload, checkpoint=starting_point(model)):
        if isinstance(event, Finished):
            model.from_bytes(event.model)
