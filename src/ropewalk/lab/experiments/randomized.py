"""Randomized positions: does training on positions from a longer range help with longer strings?

One experiment a task: three of the paper's fifteen. The first is the evidence of the catalog.
"""

from __future__ import annotations

from typing import Any

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_RANDOM, _BEYOND = "randomized_rope(span=256)", (12, 16)


def _on(task: str, name: str, slugs: tuple[str, ...], doing: str, **settings: Any) -> Experiment:
    return Experiment(
        name=name,
        slugs=slugs,
        claim="Training on ordered random positions from a range much longer than any string makes Transformers answer more "
        "often on strings longer than those of training (12 % more over fifteen tasks).",
        source="Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, Mehdi Bennani, Shane Legg, Joel "
        "Veness. Randomized Positional Encodings Boost Length Generalization of Transformers. arXiv 2305.16843, 2023",
        expected=f"{doing}, randomized RoPE is right more often than RoPE at one and a half times and twice the trained size.",
        settings={
            "task": task,
            "encodings": (_RANDOM, "rope"),
            "train_length": 8,
            "eval_lengths": (8, *_BEYOND),
            "shape": SHAPE,
            "tokens": 600_000,
            "batch_size": 64,
            "lr": 3e-3,
            "windows": 256,
            **settings,
        },
        contrasts=(
            Contrast(_RANDOM, "rope", "higher", _BEYOND),
            Contrast(_RANDOM, "rope", "within", (8,), margin=0.1, decides=False, because="the trained size"),
        ),
        seconds=150,
        full={
            "encodings": (_RANDOM, "rope", "randomized_relative(span=256)", "transformer_xl"),
            "tokens": 10_000_000,
            "seeds": 5,
            "shape": {"hidden_size": 64, "num_layers": 5, "num_heads": 4},
            "lr": 1e-3,
        },
        limits="One task of fifteen, in one form of five, at twice the trained size at most instead of twelve times.",
    )


EXPERIMENT = _on(
    "bucket_sort",
    "randomized",
    (
        "randomized_rope",
        "randomized_alibi",
        "randomized_relative",
        "randomized_sinusoidal",
        "randomized_learned",
        "transformer_xl",
    ),
    "Sorting strings of five symbols",
)
ODDS_FIRST = _on("odds_first", "randomized_odds_first", (), "Writing the odd places of a string before the even ones")
REVERSE = _on("reverse", "randomized_reverse", (), "Writing strings backwards")
