"""R-RoPE: are reference images taken for frames of the video?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FILLED, FULL_FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = "r_rope(base=100)"
_FRAMES, _SHARED = "r_rope(base=100, shift=(False, False), time=after)", "r_rope(base=100, shift=(False, False))"

EXPERIMENT = Experiment(
    name="r_rope",
    slugs=("r_rope",),
    claim="Reference images whose rows and columns lie beyond any video's are confused neither with frames nor with each other, "
    "as they are where they share its grid or follow as further frames.",
    source="Zhenxing Zhang, Jiayan Teng, Zhuoyi Yang, Tiankun Cao, Cheng Wang, Xiaotao Gu, Jie Tang, Dan Guo, Meng Wang. "
    "Kaleido: Open-Sourced Multi-Subject Reference Video Generation Model. arXiv 2510.18573, 2025",
    expected="Models with R-RoPE give the halves of a video the colours of their references more often than models whose "
    "references lie on the grid of the video, or after its frames.",
    settings={
        **FILLED,
        "task": "reference_video",
        "encodings": (_BEYOND, _FRAMES, _SHARED),
        "train_length": 2,
        "eval_lengths": (2,),
        "tokens": 250_000,
    },
    contrasts=(
        Contrast(_BEYOND, _SHARED, "higher", (2,), because="references on the grid of the video"),
        Contrast(_BEYOND, _FRAMES, "higher", (2,), because="references as further frames"),
    ),
    seconds=40,
    full={**FULL_FILLED, "task": "reference_video(frames=4, rows=4)"},
    limits="Videos of two frames of noise in a single step, two references of one colour each, and no text: a cell of the video "
    "says of which reference it is. Tokens of references and of the video are of one kind, so that places alone tell them apart, "
    "which latents of a trained model may do otherwise.",
)
