"""STRING: do far needles turn up at shorter distances?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_NEEDLE, SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE, _STRING = "rope(pairing=half)", "string_shifted(shift=43, local=8)"

EXPERIMENT = Experiment(
    name="string_shifted",
    slugs=("string_shifted",),
    claim="Giving far keys of a trained RoPE model the smaller, well-trained relative positions makes it find more of what is "
    "far away in its context, without training (more than 10 points on RULER).",
    source="Chenxin An, Jun Zhang, Ming Zhong, Lei Li, Shansan Gong, Yao Luo, Jingjing Xu, Lingpeng Kong. Why Does the "
    "Effective Context Length of LLMs Fall Short? arXiv 2410.18745, 2024",
    expected="In models trained on haystacks of all lengths up to 128, so that long distances are rare, STRING finds "
    "more needles in haystacks of 128 than the same models with RoPE.",
    settings={
        "task": "needle",
        "encodings": (_ROPE,),
        "train_length": 128,
        "eval_lengths": (64, 128, 160),
        "shape": SHAPE,
        "tokens": 500_000,
        "batch_size": 32,
        "lr": 3e-3,
        "seeds": 5,
        "windows": 512,
    },
    drop_in={_STRING: _ROPE},
    contrasts=(
        Contrast(_STRING, _ROPE, "higher", (128,)),
        Contrast(_STRING, _ROPE, "higher", (160,), decides=False, because="beyond the trained length"),
        Contrast(_STRING, _ROPE, "within", (64,), margin=0.02, decides=False, because="short contexts"),
    ),
    seconds=150,
    full=FULL_NEEDLE,
    limits="Two layers and 128 tokens. Where a model finds everything within its length already, nothing is left to gain; the "
    "paper's models read 128,000 tokens.",
)
