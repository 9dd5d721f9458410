"""BiPE: does counting lines reach further than counting tokens?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BIPE = "bipe_rope(max_intra=128)"

EXPERIMENT = Experiment(
    name="bipe",
    slugs=("bipe_rope", "bipe_alibi"),
    claim="Absolute places inside a segment with relative positions between segments keep perplexity flat on texts several times "
    "longer than those of training, where RoPE on tokens breaks down.",
    source="Zhenyu He, Guhao Feng, Shengjie Luo, Kai Yang, Liwei Wang, Jingjing Xu, Zhi Zhang, Hongxia Yang, Di He. Two Stones "
    "Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation. arXiv 2401.16421, 2024",
    expected="On source code, whose segments are its lines, BiPE-RoPE has a lower loss than RoPE at four "
    "times the trained length.",
    settings={**TEXT, "encodings": (_BIPE, "rope")},
    contrasts=(
        Contrast(_BIPE, "rope", "lower", (512,)),
        Contrast(_BIPE, "rope", "lower", (128,), decides=False, because="the trained length"),
    ),
    seconds=120,
    full={**FULL_TEXT, "encodings": (_BIPE, "bipe_alibi(max_intra=128)", "rope", "alibi")},
    limits=f"Seen on {SMALL_MODEL}, at 512 tokens at most. Books and mathematics of the paper are not tried.",
)
