"""PoPE: does it reach beyond the trained length, and is a letter found by what and where together?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SHAPE, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SOURCE = (
    'Anand Gopalakrishnan, Róbert Csordás, Jürgen Schmidhuber, Michael C. Mozer. Decoupling the "What" and "Where" With Polar '
    "Coordinate Positional Embeddings. arXiv 2509.10534, 2025"
)

EXPERIMENT = Experiment(
    name="pope",
    slugs=("pope",),
    claim="Magnitudes from content and angles from position alone lower the loss of language models (perplexity 21.33 against "
    "21.55 with RoPE), and work far beyond the trained length without tuning.",
    source=_SOURCE,
    expected="PoPE has a lower loss than RoPE at four times the trained length, and no higher one at the trained length.",
    settings={**TEXT, "encodings": ("pope", "rope")},
    contrasts=(
        Contrast("pope", "rope", "lower", (512,)),
        Contrast("pope", "rope", "lower", (128,), decides=False, because="the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. The gain in the paper is one percent of the perplexity at the trained length. Music and "
    f"genomes are not tried.",
)

INDEXING = Experiment(
    name="pope_indirect_indexing",
    slugs=(),
    claim="With magnitudes from content and angles from position alone a model learns to point at a letter so many places "
    "from another one, which RoPE hardly learns (94.8 against 11.2 % of answers).",
    source=_SOURCE,
    expected="PoPE answers more often than RoPE after the same training.",
    settings={
        "task": "indirect_indexing(max_shift=3)",
        "encodings": ("pope", "rope"),
        "train_length": 8,
        "eval_lengths": (8,),
        "shape": SHAPE,
        "tokens": 500_000,
        "batch_size": 128,
        "lr": 4e-3,
        "windows": 512,
    },
    contrasts=(Contrast("pope", "rope", "higher", (8,)),),
    seconds=100,
    full={
        "task": "indirect_indexing(max_shift=4)",
        "train_length": 12,
        "eval_lengths": (8, 12),
        "tokens": 20_000_000,
        "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4},
        "lr": 2e-3,
    },
    limits="Strings of 8 letters and shifts up to 3 instead of 40 and 15, two layers instead of eight, and thousands of steps "
    "fewer.",
    out_of_reach="Within minutes neither learns more than to answer with one of the letters near the one asked about: at most "
    "0.47 with shifts up to 1 and 0.35 with shifts up to 3, in 1,200 to 1,500 steps with two and four heads",
)
