"""DRoPE (directional): is who comes towards one found, wherever one looks?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_DROPE, _ROPE = "drope_directional(base=100)", "rope(base=100, pairing=half)"

EXPERIMENT = Experiment(
    name="drope_directional",
    slugs=("drope_directional",),
    claim="Turning pairs by the heading itself gives attention the true difference of two headings, whole turns left out, which "
    "models of road users need.",
    source="Jianbo Zhao et al. DRoPE: Directional Rotary Position Embedding for Efficient Agent Interaction Modeling. arXiv "
    "2503.15029, 2025",
    expected="Trained on questions of someone who looks along 0, models with DRoPE name who comes towards one more often than "
    "RoPE when everybody is turned.",
    settings={
        "task": "oncoming(agents=4)",
        "encodings": (_DROPE, _ROPE),
        "encoder": True,
        "train_length": 4,
        "eval_lengths": (3, 4),
        "shape": SHAPE,
        "tokens": 270_000,
        "batch_size": 64,
        "lr": 3e-3,
        "windows": 256,
    },
    contrasts=(Contrast(_DROPE, _ROPE, "higher", (3, 4)),),
    seconds=120,
    full={"task": "oncoming", "train_length": 6, "eval_lengths": (3, 4, 6), "tokens": 6_000_000, "seeds": 5},
    limits="At most four road users in a row and a question with one answer; no trajectories are predicted, and the memory that "
    "the paper saves is not measured. RoPE reads headings from the tokens alone.",
)
