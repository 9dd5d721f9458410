"""Position-interpolated RoPE: does it help to draw larger pictures together to the size of training?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, RESOLUTIONS
from ropewalk.lab.experiments.experiment import Contrast, Experiment

# Up to 64 cells a side nothing is drawn together: RoPE on two axes as it is.
_DRAWN, _PLAIN = (f"position_interpolated_rope(trained_grid={n}, base=100)" for n in (8, 64))
_BEYOND = (12, 16)

EXPERIMENT = Experiment(
    name="position_interpolated_rope",
    slugs=("position_interpolated_rope",),
    claim="RoPE on two axes breaks on grids beyond that of training; the coordinates of larger grids, scaled into the trained "
    "range, give clean predictions at high resolutions.",
    source="Xianze Fang et al. Dens3R: A Foundation Model for 3D Geometry Prediction. arXiv 2507.16290, 2025",
    expected="A model that was trained on pictures of 6 to 8 cells a side names shapes in pictures of 12 and 16 cells a side "
    "more often when they are drawn together to 8 than as they are.",
    settings={**RESOLUTIONS, "encodings": (_PLAIN,)},
    drop_in={_DRAWN: _PLAIN},
    contrasts=(Contrast(_DRAWN, _PLAIN, "higher", _BEYOND),),
    seconds=100,
    full=FULL_PICTURES,
    limits="Five generated shapes of two grey levels, cells as tokens, which look alike at any resolution but for their size: "
    "what is drawn together is nearly a picture of training with more cells. Depth, normals and matches are not predicted.",
)
