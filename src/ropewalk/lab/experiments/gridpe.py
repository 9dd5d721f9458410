"""GridPE: do waves in three directions reach larger pictures than waves along the axes?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, RESOLUTIONS
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_GRIDPE, _AXIAL = "gridpe(base=100)", "axial_rope(base=100)"
_BEYOND = (12, 16)

EXPERIMENT = Experiment(
    name="gridpe",
    slugs=("gridpe",),
    claim="Plane waves towards the corners of a simplex, as grid cells fire, do better in vision transformers at resolutions "
    "other than that of training than RoPE on two axes.",
    source="Boyang Li, Yulin Wu, Nuoxian Huang, Wenjia Zhang. GridPE: A Grid Cell-Inspired Unified Position Embedding for "
    "Arbitrary-Dimensional Spaces. arXiv 2406.07049, 2024",
    expected="Trained on pictures of 6 to 8 cells a side, models with GridPE name shapes in pictures of 12 and 16 cells a side "
    "more often than with RoPE on two axes.",
    settings={**RESOLUTIONS, "encodings": (_GRIDPE, _AXIAL)},
    contrasts=(
        Contrast(_GRIDPE, _AXIAL, "higher", _BEYOND),
        Contrast(_GRIDPE, _AXIAL, "higher", (8,), decides=False, because="at the trained size"),
    ),
    seconds=130,
    full=FULL_PICTURES,
    limits="Five generated shapes of two grey levels, cells as tokens; the paper trains on photographs, of 160 to 512 pixels. "
    "The base of the scales is 100 instead of 10,000, as RoPE's is, for grids this small; two channels of 32 do not turn.",
)
