"""Depth-aware RoPE: does the nearer of two shapes cover the other one?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FILLED, FULL_FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

# The same channels of rows and columns; the number of a picture stands where depth does.
_DEPTH, _FLAT = "depth_rope(base=100)", "axial_rope(axes=3, widths=(4, 14, 14), base=100)"

EXPERIMENT = Experiment(
    name="depth_rope",
    slugs=("depth_rope",),
    claim="An image transformer whose source cells have the positions of where an object is to be shows it there, and depth on "
    "the axis of frames decides what is in front.",
    source="İpek Öztaş, Duygu Ceylan, Aybars Buğra Aksoy, Ayşegül Dündar. RoPEMover: Depth-Aware Object Relocation via "
    "Positional Embeddings. arXiv 2606.27332, 2026",
    expected="Where a shape has been moved to, which no shape of training has reached, models that are told depths show what is "
    "in front more often than models that are told which picture a token is of.",
    settings={
        **FILLED,
        "task": "overlap",
        "encodings": (_DEPTH, _FLAT),
        "train_length": 5,
        "eval_lengths": (5,),
        "tokens": 300_000,
    },
    contrasts=(Contrast(_DEPTH, _FLAT, "higher", (5,)),),
    seconds=30,
    full={**FULL_FILLED, "eval_lengths": (5, 8)},
    limits="Cells of one of six colours, two depths, and a blank that knows the depth of what it shows, as the paper's target "
    "does from its own synthesis. Without depths nobody can know what is in front, so that only the use of the axis is shown. No "
    "denoising, no shadows, and no place that an object has left.",
)
