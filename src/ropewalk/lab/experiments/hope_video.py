"""HoPE of videos: does it help that the slowest pairs do not turn?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, VIDEO
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (16, 32)

EXPERIMENT = Experiment(
    name="hope_video",
    slugs=("hope_video",),
    claim="Time without positions on the slowest channel pairs, and spacings of frames that are drawn in training, find "
    "frames in longer videos better than VideoRoPE and M-RoPE.",
    source="Haoran Li, Yingjie Qin, Baoyuan Ou, Lai Xu, Ruiwen Xu. HoPE: Hybrid of Position Embedding for Long Context "
    "Vision-Language Models. arXiv 2505.20444, 2025",
    expected="Trained on videos of up to 4 frames, HoPE reads the value of a needle in videos of 16 and 32 frames more often "
    "than M-RoPE, and at least as often as VideoRoPE.",
    settings={
        **VIDEO,
        "encodings": ("hope_video(base=100)", "videorope(base=100)", "mrope(base=100)"),
        "eval_lengths": (4, 8, *_BEYOND),
    },
    contrasts=(
        Contrast("hope_video(base=100)", "mrope(base=100)", "higher", _BEYOND),
        Contrast(
            "hope_video(base=100)",
            "videorope(base=100)",
            "higher",
            _BEYOND,
            decides=False,
            because="expected at least as good",
        ),
    ),
    seconds=80,
    full=FULL_PICTURES,
    limits="Frames of four cells and few of them, without a distractor; nothing is said of videos that are retrieved by what "
    "they mean. The spacing of frames is 1 in training as in scoring.",
)
