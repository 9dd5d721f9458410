"""PSC: does a learned correction of q and k make up for frequencies that were only guessed?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SHAPE = {"hidden_size": 64, "num_layers": 2, "num_heads": 4}
_SHORT, _PLAIN, _CALIBRATED = "rope(pairing=half)", "rope(base=80000, pairing=half)", "psc(base=80000)"

EXPERIMENT = Experiment(
    name="psc",
    slugs=("psc",),
    claim="Tuned together with the rest, a small gain on q and k before the rotation lowers the perplexity of a model whose "
    "context was extended by PI, YaRN or LongRoPE, the more so the longer the context.",
    source="Wenqiao Zhu, Chao Xu, Lulu Wang, Jun Wu. PSC: Extending Context Window of Large Language Models via Phase Shift "
    "Calibration. arXiv 2505.12423, 2025",
    expected="A model trained at 64 tokens and tuned at 256 with a larger base has a lower loss at 256 with the calibration than "
    "without.",
    settings={
        **TEXT,
        "encodings": (_CALIBRATED, _PLAIN),
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
    start={_CALIBRATED: _SHORT, _PLAIN: _SHORT},
    contrasts=(
        Contrast(_CALIBRATED, _PLAIN, "lower", (256,)),
        Contrast(_CALIBRATED, _PLAIN, "lower", (64,), decides=False, because="short contexts"),
    ),
    seconds=80,
    full={"tokens": 2_000_000, "seeds": 5, "windows": 512},
    limits=f"Seen on {SMALL_MODEL}. All parameters are tuned, where the paper tunes LoRA of a frozen model; the calibration has "
    "more parameters to tune, here as in the paper.",
)
