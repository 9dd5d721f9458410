"""VRoPE: do symmetric positions of frames reach longer videos?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, VIDEO
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (8, 16)

EXPERIMENT = Experiment(
    name="vrope",
    slugs=("vrope",),
    claim="Distances from the corners of a frame, continuous from frame to frame and into the text, find frames in longer "
    "videos than those of training better than RoPE by time, height and width.",
    source="Zikang Liu et al. VRoPE: Rotary Position Embedding for Video Large Language Models. arXiv 2502.11664, 2025",
    expected="Trained on videos of up to 4 frames, VRoPE reads the value of a needle in videos of 8 and 16 frames at least as "
    "often as M-RoPE.",
    settings={
        **VIDEO,
        "encodings": ("vrope(base=100)", "mrope(base=100)", "rope(base=100)"),
        "eval_lengths": (4, *_BEYOND),
    },
    contrasts=(
        Contrast("vrope(base=100)", "mrope(base=100)", "higher", _BEYOND),
        Contrast(
            "vrope(base=100)", "rope(base=100)", "higher", _BEYOND, decides=False, because="counted token by token"
        ),
    ),
    seconds=70,
    full=FULL_PICTURES,
    limits="Frames of four cells and few of them, without a distractor; the paper's bias towards a corner of the frame needs "
    "frames with corners far apart.",
)
