"""RoVE: does a value path that knows distances help beyond the trained length?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="rove",
    slugs=("rove",),
    claim="Values that are rotated with the keys and turned back at the query lower the perplexity of language models beyond the "
    "trained length (by about two thirds far out), at no parameters.",
    source="Alejandro García-Castellanos, Maurice Weiler, Erik J. Bekkers. RoVE: Rotary Value Embeddings Attention for Relative "
    "Position-dependent Value Pathways. arXiv 2606.11275, 2026",
    expected="At four times the trained length RoVE has a lower loss than RoPE; at the trained length one no higher.",
    settings={**TEXT, "encodings": ("rove", "rope")},
    contrasts=(
        Contrast("rove", "rope", "lower", (512,)),
        Contrast("rove", "rope", "lower", (128,), decides=False, because="the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}, at 512 tokens at most. In-context learning and retrieval of the paper need larger models.",
)
