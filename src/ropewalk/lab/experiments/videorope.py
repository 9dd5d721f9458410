"""VideoRoPE: is a needle found in videos longer than those of training?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, VIDEO
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (16,)

EXPERIMENT = Experiment(
    name="videorope",
    slugs=("videorope",),
    claim="With time on the slowest channel pairs, and frames around their time, a frame in a long video is found in spite of "
    "others that look like it (V-NIAH-D: 91.1 against 78.7 % with M-RoPE).",
    source="Xilin Wei et al. VideoRoPE: What Makes for Good Video Rotary Position Embedding? arXiv 2502.05173, 2025",
    expected="Trained on videos of up to 4 frames, VideoRoPE reads the value of the needle in videos of 16 frames more often "
    "than M-RoPE.",
    settings={
        **VIDEO,
        "encodings": ("videorope(base=100)", "mrope(base=100)"),
        "eval_lengths": (4, 8, *_BEYOND),
    },
    contrasts=(Contrast("videorope(base=100)", "mrope(base=100)", "higher", _BEYOND),),
    seconds=50,
    full=FULL_PICTURES,
    limits="Frames of four cells instead of 144, sixteen of them instead of thousands, and no distractor: small models do not "
    "tell the needle from a frame that looks like it after minutes of training (`--full` has none either; `ropewalk compare "
    "--task video_needle` does).",
)
