"""PoPE: is a letter found by what and where together?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="pope",
    slugs=("pope",),
    claim="With magnitudes from content and angles from position alone a model learns to point at a letter so many places from "
    "another one, which RoPE hardly learns (94.8 against 11.2 % of answers).",
    source='Anand Gopalakrishnan, Róbert Csordás, Jürgen Schmidhuber, Michael C. Mozer. Decoupling the "What" and "Where" With '
    "Polar Coordinate Positional Embeddings. arXiv 2509.10534, 2025",
    expected="PoPE answers more often than RoPE after the same training.",
    settings={
        "task": "indirect_indexing(max_shift=3)",
        "encodings": ("pope", "rope"),
        "train_length": 8,
        "eval_lengths": (8,),
        "shape": SHAPE,
        "tokens": 1_500_000,
        "batch_size": 128,
        "lr": 4e-3,
        "windows": 512,
    },
    contrasts=(Contrast("pope", "rope", "higher", (8,)),),
    seconds=200,
    full={
        "task": "indirect_indexing(max_shift=4)",
        "train_length": 12,
        "eval_lengths": (8, 12),
        "tokens": 20_000_000,
        "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4},
        "lr": 2e-3,
    },
    limits="Strings of 8 letters and shifts up to 3 instead of 40 and 15, two layers instead of eight, and thousands of steps "
    "fewer. Language, music and genomes of the paper are not tried.",
)
