"""ST-RoPE: is motion seen with the whole head's frequencies for space and for time?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SIZES = (4, 6)
_SPACE, _SPLIT = "axial_rope(axes=3, widths=[0, 16, 16])", "axial_rope(axes=3, widths=[8, 12, 12])"

EXPERIMENT = Experiment(
    name="st_rope",
    slugs=("st_rope",),
    claim="Angles of space and of time added up on all channel pairs let one attention see both, without shares of the head "
    "for each.",
    source="Xiaoqi Wang, Yi Wang, Lap-Pui Chau. EVA02-AT: Egocentric Video-Language Understanding with Spatial-Temporal "
    "Rotary Positional Embeddings and Symmetric Optimization. arXiv 2506.14356, 2025",
    expected="Asked in which direction a cell walks, ST-RoPE is right clearly more often than RoPE of space alone, and at "
    "least as often as RoPE on three axes with a third of the head each.",
    settings={
        **PICTURES,
        "task": "motion",
        "encodings": ("st_rope", _SPACE, _SPLIT),
        "encoder": True,
        "train_length": 4,
        "eval_lengths": _SIZES,
    },
    contrasts=(
        Contrast("st_rope", _SPACE, "higher", _SIZES),
        Contrast("st_rope", _SPLIT, "higher", _SIZES, decides=False, because="expected at least as good"),
    ),
    seconds=180,
    full=FULL_PICTURES,
    limits="A dozen cells a frame and four directions. The symmetric loss of the paper, for retrieval with graded labels, is "
    "not tried.",
)
