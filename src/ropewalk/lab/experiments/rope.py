"""RoPE: does text fit sooner than with positions added to the embeddings?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="rope",
    slugs=("rope", "linear_rope"),
    claim="With rotary positions a model of language fits sooner than with sinusoidal or learned absolute ones.",
    source="Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen, Yunfeng Liu. RoFormer: Enhanced Transformer with Rotary "
    "Position Embedding. arXiv 2104.09864, 2021",
    expected="After the same few tokens RoPE has a lower loss than learned positions at the trained length; at twice that length "
    "it degrades less than they do, which were never trained there.",
    settings={**TEXT, "encodings": ("rope", "sinusoidal", "learned"), "eval_lengths": (128, 256)},
    contrasts=(
        Contrast("rope", "learned", "lower", (128,)),
        Contrast("rope", "sinusoidal", "lower", (128,), decides=False, because="see the limits"),
        Contrast("rope", "learned", "lower", (256,), decides=False, because="twice the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. Sines are added at full size to embeddings that begin fifty times smaller, which holds "
    "them back at first, so that they do not decide. The translation and long-document results of the paper are not tried, and "
    "linear attention is checked against its definition, not trained.",
)
