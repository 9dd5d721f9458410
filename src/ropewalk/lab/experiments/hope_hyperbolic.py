"""HoPE (hyperbolic): do damped boosts degrade less than rotations?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="hope_hyperbolic",
    slugs=("hope_hyperbolic",),
    claim="With hyperbolic rotations, which only fade with distance, perplexity grows more slowly beyond the trained length than "
    "with RoPE (60 against 89 at four times the length).",
    source="Chang Dai, Hongyu Shan, Mingyang Song, Di Liang. HoPE: Hyperbolic Rotary Positional Encoding for Stable Long-Range "
    "Dependency Modeling in Large Language Models. arXiv 2509.05218, 2025",
    expected="At four times the trained length HoPE has a lower loss than RoPE; at the trained length a slightly higher one; "
    "ALiBi stays the lowest far out.",
    settings={**TEXT, "encodings": ("hope_hyperbolic", "rope", "alibi")},
    contrasts=(
        Contrast("hope_hyperbolic", "rope", "lower", (512,)),
        Contrast("hope_hyperbolic", "rope", "lower", (128,), decides=False, because="the trained length"),
        Contrast("hope_hyperbolic", "alibi", "lower", (512,), decides=False, because="another encoding that fades"),
    ),
    seconds=100,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}, at 512 tokens at most. The rates of the paper's models are not published; ours are the "
    "library's defaults.",
)
