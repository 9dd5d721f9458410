"""LeRoPE: do learned frequencies lower the loss?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE = "rope(pairing=half)"

EXPERIMENT = Experiment(
    name="lerope",
    slugs=("lerope",),
    claim="Learned rotary frequencies, one factor a plane for the whole model, lower the loss at the trained length a little "
    "(perplexity 18.13 against 18.24), and extrapolate worse without scaling.",
    source="Petros Karypis, Sean O'Brien, Shreyas Kadekodi, Rui Zhu, Julian McAuley. LeRoPE: Learnable RoPE Frequencies Improve "
    "Language Modeling. arXiv 2607.10134, 2026",
    expected="At the trained length LeRoPE has a slightly lower loss than RoPE, by less than 0.02 nats; at twice that length a "
    "higher one.",
    settings={**TEXT, "encodings": ("lerope", _ROPE), "eval_lengths": (128, 256)},
    contrasts=(
        Contrast("lerope", _ROPE, "lower", (128,)),
        Contrast("lerope", _ROPE, "higher", (256,), decides=False, because="extrapolation without scaling"),
    ),
    seconds=120,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. The paper's gain is half a percent of the perplexity after billions of tokens, in which the "
    "frequencies have time to move.",
)
