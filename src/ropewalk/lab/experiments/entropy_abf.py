"""Entropy-ABF: does a few steps' tuning do better with a larger base and a sharper softmax than with interpolation?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SHAPE = {"hidden_size": 64, "num_layers": 3, "num_heads": 2}
_SHORT, _PI, _ABF = "rope(pairing=half)", "pi(factor=4)", "rope(base=500000, pairing=half)"
_ENTROPY = "entropy_abf(base=500000, train_length=64, exempt_layers=1)"

EXPERIMENT = Experiment(
    name="entropy_abf",
    slugs=("entropy_abf",),
    claim="A larger base with a softmax that gets sharper beyond the trained length extends the context with a hundred samples "
    "and six steps of tuning, better than interpolation or the base alone.",
    source="Yikai Zhang, Junlong Li, Pengfei Liu. Extending LLMs' Context Window with 100 Samples. arXiv 2401.07004, 2024",
    expected="Models trained at 64 tokens and tuned at 256 on about a hundred samples have a lower loss at 256 with Entropy-ABF "
    "than with PI.",
    settings={
        **TEXT,
        "encodings": (_ENTROPY, _ABF, _PI),
        "train_length": 256,
        "eval_lengths": (64, 256),
        "shape": _SHAPE,
        "tokens": 25_600,
        "batch_size": 8,
        "lr": 1e-3,
        "windows": 128,
    },
    before={
        **TEXT,
        "encodings": (_SHORT,),
        "train_length": 64,
        "eval_lengths": (64,),
        "shape": _SHAPE,
        "tokens": 450_000,
    },
    start={_ENTROPY: _SHORT, _ABF: _SHORT, _PI: _SHORT},
    contrasts=(
        Contrast(_ENTROPY, _PI, "lower", (256,)),
        Contrast(_ENTROPY, _ABF, "lower", (256,), decides=False, because="against the base alone"),
        Contrast(_ENTROPY, _PI, "lower", (64,), decides=False, because="the trained length"),
    ),
    seconds=180,
    full={"tokens": 256_000, "seeds": 5, "windows": 512},
    limits=f"Seen on {SMALL_MODEL}: a hundred samples of 256 bytes in 12 steps. One of three layers is left alone, as two of 32 "
    "are in the paper.",
)
