"""CoPE (contextual): is the last write found among many that do not count?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="contextual_cope",
    slugs=("contextual_cope",),
    claim="Positions that count only the tokens a query lets through solve flip-flop strings of another density than those of "
    "training (4.9 % errors against 20.3 % with RoPE).",
    source="Olga Golovneva, Tianlu Wang, Jason Weston, Sainbayar Sukhbaatar. Contextual Position Encoding: Learning to Count "
    "What's Important. arXiv 2405.18719, 2024",
    expected="On strings with far fewer writes than in training, CoPE reads the last written bit more often than RoPE and "
    "learned absolute positions.",
    settings={
        "task": "flip_flop(test_ignore=0.98)",
        "encodings": ("contextual_cope", "rope", "learned"),
        "train_length": 32,
        "eval_lengths": (32,),
        "shape": SHAPE,
        "tokens": 700_000,
        "batch_size": 32,
        "lr": 3e-3,
        "windows": 512,
    },
    contrasts=(
        Contrast("contextual_cope", "rope", "higher", (32,)),
        Contrast("contextual_cope", "learned", "higher", (32,)),
    ),
    seconds=180,
    full={
        "tokens": 6_000_000,
        "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4},
        "train_length": 128,
        "eval_lengths": (32, 128),
    },
    limits="One of the paper's three tasks, with two layers and strings of 32 instructions instead of 512.",
)
