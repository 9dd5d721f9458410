"""HoPE (high-frequency): does a model extrapolate if no pair meets a new angle?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_HOPE, _ROPE = "hope_high_frequency(train_length=128)", "rope(pairing=half)"

EXPERIMENT = Experiment(
    name="hope_high_frequency",
    slugs=("hope_high_frequency",),
    claim="Turning only the pairs that complete a turn within the trained length keeps the perplexity of longer texts bounded, "
    "where RoPE's diverges.",
    source="Yuhan Chen, Ang Lv, Jian Luan, Bin Wang, Wei Liu. HoPE: A Novel Positional Encoding Without Long-Term Decay for "
    "Enhanced Context Awareness and Extrapolation. arXiv 2410.21216, 2024",
    expected="At four times the trained length HoPE has the lower loss; at the trained length there is little between them.",
    settings={**TEXT, "encodings": (_HOPE, _ROPE)},
    contrasts=(
        Contrast(_HOPE, _ROPE, "lower", (512,)),
        Contrast(_HOPE, _ROPE, "within", (128,), margin=0.03, decides=False, because="the trained length"),
    ),
    seconds=120,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}, at 512 tokens at most. The U-shaped attention that the paper starts from is not looked for.",
)
