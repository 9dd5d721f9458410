"""Partial RoPE: are a few rotated channels enough?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_EIGHTH, _ROPE = "partial_rope(fraction=0.125)", "rope(pairing=half)"

EXPERIMENT = Experiment(
    name="partial_rope",
    slugs=("partial_rope",),
    claim="Rotating about a tenth of the channels of a head converges to the loss of rotating all; rotating none is worse.",
    source="Mohammad Aflah Khan, Krishna P. Gummadi, Manish Gupta, Abhilasha Ravichander. Fractional Rotation, Full Potential? "
    "Investigating Performance and Convergence of Partial RoPE. arXiv 2603.11611, 2026",
    expected="With an eighth of the channels (4 of 32) the loss at the trained length is within 0.03 nats of RoPE's, and below "
    "that of NoPE.",
    settings={**TEXT, "encodings": (_EIGHTH, _ROPE, "nope"), "eval_lengths": (128, 256)},
    contrasts=(
        Contrast(_EIGHTH, _ROPE, "within", (128,), margin=0.03),
        Contrast(_EIGHTH, "nope", "lower", (128,)),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. The instabilities of NoPE that the paper reports come with billions of tokens. The memory "
    "of the cos and sin tables follows from the definition and is no matter of training.",
)
