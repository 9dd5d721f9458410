"""CARoPE: do frequencies that tokens choose extrapolate?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="carope",
    slugs=("carope",),
    claim="With rotary frequencies that each token chooses for each head, perplexity at twice the trained length stays where it "
    "was (21.4), where RoPE's more than doubles (56.6).",
    source="Ali Veisi, Delaram Fartoot, Hamidreza Amirzadeh. Context-aware Rotary Position Embedding. arXiv 2507.23083, 2025",
    expected="At twice the trained length CARoPE has a clearly lower loss than RoPE; at the trained length about the same.",
    settings={**TEXT, "encodings": ("carope", "rope"), "eval_lengths": (128, 256)},
    contrasts=(
        Contrast("carope", "rope", "lower", (256,)),
        Contrast("carope", "rope", "within", (128,), margin=0.03, decides=False, because="the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. How the paper starts its frequencies is not said; ours start as RoPE's.",
)
