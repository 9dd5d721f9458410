"""VideoRoPE: is a frame found beside another one that looks like it?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, VIDEO
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (8, 12)

EXPERIMENT = Experiment(
    name="videorope",
    slugs=("videorope",),
    claim="With time on the slowest channel pairs, and frames around their time, a frame in a long video is found in spite of "
    "others that look like it (V-NIAH-D: 91.1 against 78.7 % with M-RoPE).",
    source="Xilin Wei et al. VideoRoPE: What Makes for Good Video Rotary Position Embedding? arXiv 2502.05173, 2025",
    expected="Trained on videos of up to 4 frames with a distractor, VideoRoPE reads the value of the needle in videos of 8 "
    "and 12 frames more often than M-RoPE.",
    settings={
        **VIDEO,
        "encodings": ("videorope(base=1000)", "mrope(base=1000)"),
        "train_length": 4,
        "eval_lengths": (4, *_BEYOND),
    },
    contrasts=(Contrast("videorope(base=1000)", "mrope(base=1000)", "higher", _BEYOND),),
    seconds=200,
    full=FULL_PICTURES,
    limits="Frames of four cells instead of 144, a dozen of them instead of thousands, so that the period of M-RoPE's fast "
    "time pairs, from which the paper explains its failures, is hardly met.",
)
