"""p-RoPE: are the slow frequencies better left to content?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_KEPT, _REVERSED = "p_rope_fraction(p=0.75)", "p_rope_fraction(p=0.75, reverse=True)"
_ROPE = "rope(pairing=half)"

EXPERIMENT = Experiment(
    name="p_rope",
    slugs=("p_rope_fraction",),
    claim="Not turning the slowest quarter of the pairs lowers the loss of a language model a little (perplexity 4.44 against "
    "4.46 on Wikipedia), and no positions at all raise it.",
    source="Federico Barbero, Alex Vitvitskyi, Christos Perivolaropoulos, Razvan Pascanu, Petar Veličković. Round and Round We "
    "Go! What makes Rotary Positional Encodings useful? arXiv 2410.06205, 2024",
    expected="At the trained length p-RoPE has a loss no higher than RoPE, by very little; NoPE has the highest; turning the "
    "slowest three quarters instead of the fastest is worse.",
    settings={**TEXT, "encodings": (_KEPT, _ROPE, _REVERSED, "nope"), "eval_lengths": (128, 256)},
    contrasts=(
        Contrast(_KEPT, _ROPE, "lower", (128,)),
        Contrast(_ROPE, "nope", "lower", (128,), decides=False, because="what any rotation gains"),
        Contrast(_KEPT, _REVERSED, "lower", (128,), decides=False, because="which pairs are kept"),
    ),
    seconds=170,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. In the paper the gain is half a percent of the perplexity of a model with 2,000,000,000 "
    "parameters; so small a difference needs more seeds than fit here.",
)
