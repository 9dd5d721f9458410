"""Position forest: is nesting read from paths?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_FOREST, _FLAT = "position_forest", "sinusoidal"

EXPERIMENT = Experiment(
    name="position_forest",
    slugs=("position_forest",),
    claim="The scripts, fractions and roots that a token of a formula is in, given as its path, help with formulas that are "
    "nested.",
    source="Tongkun Guan, Chengyu Lin, Wei Shen, Xiaokang Yang. PosFormer: Recognizing Complex Handwritten Mathematical "
    "Expression with Position Forest Transformer. arXiv 2407.07764, 2024",
    expected="Models that are told paths say more often how deep a symbol is nested than models with sinusoids.",
    settings={
        "task": "nesting(variables=6)",
        "encodings": (_FOREST, _FLAT),
        "encoder": True,
        "train_length": 4,
        "eval_lengths": (4, 6),
        "shape": SHAPE,
        "tokens": 780_000,
        "batch_size": 64,
        "lr": 3e-3,
        "windows": 256,
    },
    contrasts=(
        Contrast(_FOREST, _FLAT, "higher", (4,)),
        Contrast(_FOREST, _FLAT, "higher", (6,), decides=False, because="longer formulas than those of training"),
    ),
    seconds=130,
    full={"task": "nesting", "train_length": 6, "eval_lengths": (4, 6, 9), "tokens": 6_000_000, "seeds": 5},
    limits="Made-up formulas with a question whose answer is in the path; no handwriting. In the paper paths are learned beside "
    "recognition and dropped after training, and here they are an input, so that only their use is shown.",
)
