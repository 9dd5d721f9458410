"""PaPE: does attention fit larger pictures than those of training?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_PAPE, _RI, _AXIAL = "pape(axes=2)", "pape_ri(axes=2)", "axial_rope(axes=2)"

EXPERIMENT = Experiment(
    name="pape",
    slugs=("pape", "pape_ri"),
    claim="A bias made of parabolas in the relative position extrapolates to larger images than those of training better than "
    "other encodings (up to 10.5 points above the next best).",
    source="Christoffer Koo Øhrstrøm et al. Parabolic Position Encoding: Vision-Centric, Principled, Extrapolatable, General. "
    "arXiv 2602.01418, 2026",
    expected="Trained on pictures of up to 5 × 5 cells, PaPE names the cell below the marked one in pictures of 8 × 8 and "
    "12 × 12 more often than RoPE on two axes and sinusoids.",
    settings={
        "task": "marked_cell",
        "encodings": (_PAPE, _AXIAL, "sinusoidal", _RI),
        "train_length": 5,
        "eval_lengths": (5, 8, 12),
        "shape": SHAPE,
        "encoder": True,
        "tokens": 400_000,
        "batch_size": 32,
        "lr": 3e-3,
    },
    contrasts=(
        Contrast(_PAPE, _AXIAL, "higher", (8, 12)),
        Contrast(_PAPE, "sinusoidal", "higher", (8, 12)),
        Contrast(_PAPE, _RI, "higher", (8, 12), decides=False, because="the form that sees distances alone"),
    ),
    seconds=150,
    full={"tokens": 6_000_000, "seeds": 5, "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4}, "lr": 1e-3},
    limits="Generated pictures of a hundred cells in which one cell decides; no photographs. RoPE with mixed axes and ALiBi on "
    "two axes are not among the baselines.",
)
