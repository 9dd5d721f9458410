"""RoPE-Mixed: do learned directions reach larger pictures than those along the axes?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, RESOLUTIONS
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_MIXED, _AXIAL = "mixed_rope", "axial_rope(base=100)"
_SAME_START = "mixed_rope(base=100)"
_BEYOND = (12, 16)

EXPERIMENT = Experiment(
    name="mixed_rope",
    slugs=("mixed_rope",),
    claim="Frequency vectors that are learned, so that pairs turn along diagonals too, do better than RoPE on two axes when a "
    "vision transformer reads larger pictures than those of training.",
    source="Byeongho Heo, Song Park, Dongyoon Han, Sangdoo Yun. Rotary Position Embedding for Vision Transformer. arXiv "
    "2403.13298, 2024",
    expected="Trained on pictures of 6 to 8 cells a side, models with RoPE-Mixed name shapes in pictures of 12 and 16 cells a "
    "side more often than with RoPE on two axes, each with its published base, 10 and 100.",
    settings={**RESOLUTIONS, "encodings": (_MIXED, _AXIAL, _SAME_START)},
    contrasts=(
        Contrast(_MIXED, _AXIAL, "higher", _BEYOND),
        Contrast(
            _SAME_START, _AXIAL, "higher", _BEYOND, decides=False, because="with the same frequencies at the start"
        ),
        Contrast(_MIXED, _AXIAL, "higher", (8,), decides=False, because="at the trained size"),
    ),
    seconds=210,
    full=FULL_PICTURES,
    limits="Five generated shapes of two grey levels, cells as tokens; the paper trains on ImageNet for hundreds of epochs, in "
    "which learned frequencies have more time to move.",
)
