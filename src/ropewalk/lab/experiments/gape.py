"""GAPE: is a needle still found in a longer haystack?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_GAPE = "rope + gape(context_length=32)"

EXPERIMENT = Experiment(
    name="gape",
    slugs=("gape",),
    claim="A bias that lets each query choose how fast attention falls with distance, and spares landmark keys, keeps needles "
    "retrievable at one to four times the trained length.",
    source="Riccardo Ali, Alessio Borgi, Christopher Irwin, Mario Severino, Pietro Liò. Remember to Forget: Gated Adaptive "
    "Positional Encoding. arXiv 2605.10414, 2026",
    expected="At four and sixteen times the trained length RoPE with GAPE finds the needle more often than RoPE.",
    settings={
        "task": "needle",
        "encodings": (_GAPE, "rope"),
        "train_length": 32,
        "eval_lengths": (32, 128, 512),
        "shape": SHAPE,
        "tokens": 250_000,
        "batch_size": 32,
        "lr": 3e-3,
        "seeds": 5,
    },
    contrasts=(
        Contrast(_GAPE, "rope", "higher", (128, 512)),
        Contrast(_GAPE, "rope", "higher", (32,), decides=False, because="the trained length"),
    ),
    seconds=150,
    full={
        "task": "needle(needles=4)",
        "train_length": 64,
        "eval_lengths": (32, 128, 512),
        "tokens": 20_000_000,
        "seeds": 5,
        "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4},
        "lr": 2e-3,
    },
    limits="Needles that are the only digit in their haystack, as others take longer to learn, at 512 tokens at most. The "
    "entropy of attention is not measured, and how the paper starts its gates is not known.",
)
