"""Clipped CoPE: is slowing the slowest planes down to a stop better than leaving them, or than stopping them at once?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE = "rope(pairing=half)"
_SOFT = "clipped_cope(planes=6, mode=soft, base=10000)"
_HARD = "clipped_cope(planes=6, mode=hard, base=10000)"

EXPERIMENT = Experiment(
    name="clipped_cope",
    slugs=("clipped_cope",),
    claim="Slowing the slowest rotary planes smoothly down to a stop, then training a little longer, is better than plain RoPE "
    "within the new length and better still beyond it; stopping them at once is not as good.",
    source="Haoran Li, Sucheng Ren, Alan Yuille, Feng Wang. CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs. "
    "arXiv 2602.05258, 2026",
    expected="Models trained at 128 tokens and then a little at 256 have a lower loss at 512 with soft clipping than with plain "
    "RoPE, and no higher one than with hard clipping.",
    settings={
        **TEXT,
        "encodings": (_SOFT, _HARD, _ROPE),
        "train_length": 256,
        "eval_lengths": (128, 256, 512),
        "tokens": 150_000,
        "batch_size": 8,
        "lr": 2e-3,
    },
    before={**TEXT, "encodings": (_ROPE,), "eval_lengths": (128,), "shape": SHAPE},
    start={_SOFT: _ROPE, _HARD: _ROPE, _ROPE: _ROPE},
    contrasts=(
        Contrast(_SOFT, _ROPE, "lower", (512,)),
        Contrast(_SOFT, _HARD, "lower", (512,), decides=False, because="against stopping them at once"),
        Contrast(_SOFT, _ROPE, "within", (256,), margin=0.02, decides=False, because="within the tuned length"),
    ),
    seconds=220,
    full={"tokens": 2_000_000, "seeds": 5, "windows": 512},
    limits=f"Seen on {SMALL_MODEL}, where 6 of 16 planes are clipped as 20 of 64 are in the paper; by loss, since models of this "
    "size retrieve nothing from text.",
)
