"""GTA: does attention between cameras survive a turn of the world?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="gta",
    slugs=("gta",),
    claim="Bringing keys and values into the query's camera frame makes multi-view attention independent of the world's "
    "frame, and better than encodings that are told the camera as input.",
    source="Takeru Miyato, Bernhard Jaeger, Max Welling, Andreas Geiger. GTA: A Geometry-Aware Attention Mechanism for "
    "Multi-View Transformers. arXiv 2310.10375, 2023",
    expected="Trained in one frame and asked in worlds that are turned, GTA says in which direction a camera sees what another "
    "one saw more often than RoPE, which reads the cameras as tokens; without its transform of values it does not.",
    settings={
        "task": "views(landmarks=4, directions=4)",
        "encodings": ("gta", "rope", "gta(v_transform=False)"),
        "train_length": 3,
        "eval_lengths": (2, 3),
        "shape": SHAPE,
        "encoder": True,
        "tokens": 320_000,
        "batch_size": 128,
        "lr": 4e-3,
        "windows": 256,
    },
    contrasts=(
        Contrast("gta", "rope", "higher", (2, 3)),
        Contrast(
            "gta", "gta(v_transform=False)", "higher", (2, 3), decides=False, because="what the values' transform does"
        ),
    ),
    seconds=240,
    full={"tokens": 2_000_000, "task": "views", "train_length": 6, "eval_lengths": (2, 3, 6)},
    limits="Cameras that only turn about the vertical, and sights of four directions instead of pixels; no rendered scenes, so "
    "nothing is said of image quality.",
)
