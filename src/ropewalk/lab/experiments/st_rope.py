"""ST-RoPE: is what follows seen with the whole head's frequencies for space and for time?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SIZES = (3, 4)
_SPACE, _SPLIT = "axial_rope(axes=3, widths=[0, 16, 16], base=10)", "axial_rope(axes=3, widths=[8, 12, 12], base=10)"

EXPERIMENT = Experiment(
    name="st_rope",
    slugs=("st_rope",),
    claim="Angles of space and of time added up on all channel pairs let one attention see both, without shares of the head "
    "for each.",
    source="Xiaoqi Wang, Yi Wang, Lap-Pui Chau. EVA02-AT: Egocentric Video-Language Understanding with Spatial-Temporal "
    "Rotary Positional Embeddings and Symmetric Optimization. arXiv 2506.14356, 2025",
    expected="Asked for the colour that follows at the place of a marked cell in the next frame, ST-RoPE is right clearly "
    "more often than RoPE of space alone, and at least as often as RoPE on three axes with a third of the head each.",
    settings={
        **PICTURES,
        "task": "motion(rows=2, columns=3, question=next)",
        "encodings": ("st_rope(base=10)", _SPACE, _SPLIT),
        "encoder": True,
        "train_length": 3,
        "eval_lengths": _SIZES,
    },
    contrasts=(
        Contrast("st_rope(base=10)", _SPACE, "higher", _SIZES),
        Contrast("st_rope(base=10)", _SPLIT, "higher", _SIZES, decides=False, because="expected at least as good"),
    ),
    seconds=70,
    full=FULL_PICTURES,
    limits="Six cells a frame, and four frames. The direction in which a cell walks is not learned in minutes by any of them. "
    "The symmetric loss of the paper, for retrieval with graded labels, is not tried.",
)
