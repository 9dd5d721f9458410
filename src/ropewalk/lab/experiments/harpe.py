"""HARPE: does a base for each head extend the context better than one for all?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SHAPE = {"hidden_size": 64, "num_layers": 2, "num_heads": 4}
_SHORT, _ONE = "rope(pairing=half)", "rope(base=80000, pairing=half)"
_MANY = "harpe(lowest=20000, highest=80000)"

EXPERIMENT = Experiment(
    name="harpe",
    slugs=("harpe",),
    claim="Tuning once at the final length with bases spread over the heads extends the context of a model better than tuning "
    "with one large base (86.8 against 79.5 on needles, with the lower perplexity).",
    source="Haoran Lian, Junmin Chen, Wei Huang, Yizhe Xiong, Wenping Hu, Guiguang Ding, Hui Chen, Jianwei Niu, Zijia Lin, "
    "Fuzheng Zhang, Di Zhang. Breaking the Stage Barrier: A Novel Single-Stage Approach to Long Context Extension for Large "
    "Language Models. arXiv 2412.07171, 2024",
    expected="A model trained at 64 tokens and tuned at 256 has a lower loss at 256 with HARPE than with the one base that is "
    "HARPE's largest.",
    settings={
        **TEXT,
        "encodings": (_MANY, _ONE),
        "train_length": 256,
        "eval_lengths": (64, 256),
        "shape": _SHAPE,
        "tokens": 200_000,
        "batch_size": 8,
        "lr": 2e-3,
        "windows": 128,
    },
    before={
        **TEXT,
        "encodings": (_SHORT,),
        "train_length": 64,
        "eval_lengths": (64,),
        "shape": _SHAPE,
        "tokens": 500_000,
    },
    start={_MANY: _SHORT, _ONE: _SHORT},
    contrasts=(
        Contrast(_MANY, _ONE, "lower", (256,)),
        Contrast(_MANY, _ONE, "within", (64,), margin=0.02, decides=False, because="short contexts"),
    ),
    seconds=150,
    full={"tokens": 2_000_000, "seeds": 5, "windows": 512},
    limits=f"Seen on {SMALL_MODEL}, with four heads and 256 tokens instead of 32 and 128,000, by loss: models of this size "
    "retrieve nothing from text. Training in several stages with growing bases is not among the baselines.",
)
