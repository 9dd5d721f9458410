"""DRoPE (directional): is who comes towards one found after little training?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_DROPE, _ROPE = "drope_directional(base=100)", "rope(base=100, pairing=half)"
_PLACE = "axial_rope(axes=3, widths=(8, 8, 16), base=100)"  # the same channels, of which DRoPE turns those of the heading by it

EXPERIMENT = Experiment(
    name="drope_directional",
    slugs=("drope_directional",),
    claim="Turning pairs by the heading itself gives attention the true difference of two headings, whole turns left out, which "
    "models of road users need.",
    source="Jianbo Zhao et al. DRoPE: Directional Rotary Position Embedding for Efficient Agent Interaction Modeling. arXiv "
    "2503.15029, 2025",
    expected="After a hundred steps models with DRoPE name who comes towards one more often than models with RoPE.",
    settings={
        "task": "oncoming(agents=4, looks=8)",
        "encodings": (_DROPE, _ROPE, _PLACE),
        "encoder": True,
        "train_length": 4,
        "eval_lengths": (3, 4),
        "shape": SHAPE,
        "tokens": 45_000,
        "batch_size": 64,
        "lr": 3e-3,
        "windows": 256,
    },
    contrasts=(
        Contrast(_DROPE, _ROPE, "higher", (3, 4)),
        Contrast(_DROPE, _PLACE, "higher", (3, 4), decides=False, because="the heading as one more place"),
    ),
    seconds=60,
    full={"task": "oncoming(looks=8)", "train_length": 6, "eval_lengths": (3, 4, 6), "tokens": 1_000_000, "seeds": 5},
    limits="At most four road users in a row and a question with one answer; no trajectories are predicted, and the memory that "
    "the paper saves is not measured. RoPE reads headings from the tokens alone, which takes it several times the training. "
    "With the heading as one more place the fastest pair of that axis turns by it too, so that little is to be seen between the "
    "two. Directions along which nobody looked in training are not asked for: a first try showed that both are wrong there, on "
    "tokens that they had never seen.",
)
