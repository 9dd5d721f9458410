"""The base of RoPE: does a small one keep the loss and lose what is far away?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_NEEDLE, NEEDLE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SMALL, _MIDDLE, _LARGE = "rope(base=3)", "rope(base=50)", "rope(base=10000)"

EXPERIMENT = Experiment(
    name="base",
    slugs=(),
    claim="The base of RoPE bounds the context: below a base that grows with the length a model still has a low perplexity, but "
    "no longer finds what is far away.",
    source="Xin Men, Mingyu Xu, Bingning Wang, Qingyu Zhang, Hongyu Lin, Xianpei Han, Weipeng Chen. Base of RoPE Bounds Context "
    "Length. arXiv 2405.14591, 2024; Feilong Liu. Rotary Positional Embeddings as Phase Modulation: Theoretical Bounds on the "
    "RoPE Base for Long-Context Transformers. arXiv 2602.10959, 2026",
    expected="Models trained on haystacks up to 128 find more needles at 128 with base 10,000, above the bound of that length, "
    "than with base 3, far below it.",
    settings={
        **NEEDLE,
        "encodings": (_SMALL, _MIDDLE, _LARGE),
        "train_length": 128,
        "eval_lengths": (32, 128),
        "windows": 256,
    },
    contrasts=(
        Contrast(_SMALL, _LARGE, "lower", (128,)),
        Contrast(_MIDDLE, _LARGE, "lower", (128,), decides=False, because="a base near the bound"),
        Contrast(_SMALL, _LARGE, "lower", (32,), decides=False, because="nearer needles"),
    ),
    seconds=220,
    full=FULL_NEEDLE,
    limits="The bound is for one head with equal amplitudes, and its authors stress that it is not strict. Perplexity is not "
    "measured: the task has no text.",
)
