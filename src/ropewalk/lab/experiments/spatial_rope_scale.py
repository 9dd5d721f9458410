"""Spatial RoPE scaling: are more videos of one motion if height and width turn more slowly at first?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_PLAIN = "spatial_rope_scale(window=(0, 0), base=100)"
_MANY, _TYPICAL, _FEW = (
    f"spatial_rope_scale(scales=(1, {scale}, {scale}), window=(0, 0.5), base=100)" for scale in (0.85, 0.7, 0.5)
)

EXPERIMENT = Experiment(
    name="spatial_rope_scale",
    slugs=("spatial_rope_scale",),
    claim="Smaller angles of height and width in the first steps of denoising, in which it is decided where things move, let a "
    "trained video model keep less to one place and move things as physics has it.",
    source="Yueyan Li, Haibo Wang, Caixia Yuan, Xiaojie Wang. Why Do Video Diffusion Models Violate Physics? Unveiling the Flaws "
    "in Attention Mechanisms. arXiv 2609.23658, 2026",
    expected="Of the videos made by a denoiser, more show one dot that moves at one speed when height and width turn by 0.7 of "
    "their angles in the first half of the rounds.",
    settings={
        **FILLED,
        "task": "moving_dot",
        "encodings": (_PLAIN,),
        "train_length": 5,
        "eval_lengths": (5,),
        "tokens": 1_000_000,
        "windows": 256,
    },
    drop_in={_MANY: _PLAIN, _TYPICAL: _PLAIN, _FEW: _PLAIN},
    contrasts=(
        Contrast(_TYPICAL, _PLAIN, "higher", (5,)),
        Contrast(_MANY, _PLAIN, "higher", (5,), decides=False, because="0.85 of the angles"),
        Contrast(
            _FEW, _PLAIN, "higher", (5,), decides=False, because="half of the angles, at which the paper sees blur"
        ),
    ),
    seconds=150,
    full={
        "tokens": 10_000_000,
        "seeds": 5,
        "shape": {"hidden_size": 96, "num_layers": 4, "num_heads": 4},
        "lr": 2e-3,
    },
    limits="Three frames of 5 × 5 cells with one dot, made by a denoiser of masked cells. The window is the first half of the "
    "rounds, in which a quarter of the cells is named, where the paper's is the first tenth of fifty steps; in so few steps no "
    "cell of a dot is named here. Such a model need not be anchored to places, and attention to them is measured by "
    "`ropewalk.analysis` (`anchoring`), not here.",
)
