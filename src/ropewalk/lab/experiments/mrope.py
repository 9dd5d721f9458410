"""M-RoPE: does a grid of positions reach larger pictures than those of training?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (7, 9)
_MROPE, _ROPE = "mrope(base=100)", "rope(base=100, pairing=half)"

EXPERIMENT = Experiment(
    name="mrope",
    slugs=("mrope",),
    claim="Time, height and width as positions of their own extrapolate to larger and longer inputs than positions counted "
    "token by token.",
    source="Peng Wang et al. Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution. arXiv "
    "2409.12191, 2024",
    expected="Trained on pictures of up to 5 × 6 cells, M-RoPE names the cell below the marked one in pictures of 7 × 8 and 9 "
    "× 10 more often than RoPE.",
    settings={
        **PICTURES,
        "task": "picture_question(question=below)",
        "encodings": (_MROPE, _ROPE),
        "encoder": True,
        "tokens": 900_000,
        "train_length": 5,
        "eval_lengths": (5, *_BEYOND),
    },
    contrasts=(Contrast(_MROPE, _ROPE, "higher", _BEYOND),),
    seconds=120,
    full=FULL_PICTURES,
    limits="Generated pictures of a hundred cells with a question that has one answer; no photographs, no pretrained language "
    "model. The base is 100, since with the 16 planes of these heads and the published base a cell further down turns no "
    "plane by more than a thirtieth of a radian, and M-RoPE learned nothing. Attention is bidirectional, as causal models do "
    "not learn the task in minutes.",
)
