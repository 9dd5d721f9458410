"""M-RoPE: does a grid of positions reach larger pictures than those of training?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (5, 6)
_MROPE, _ROPE = "mrope(base=4)", "rope(base=100, pairing=half)"

EXPERIMENT = Experiment(
    name="mrope",
    slugs=("mrope",),
    claim="Time, height and width as positions of their own extrapolate to larger and longer inputs than positions counted "
    "token by token.",
    source="Peng Wang et al. Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution. arXiv "
    "2409.12191, 2024",
    expected="Trained on pictures of up to 4 × 5 cells, M-RoPE names the cell below the marked one in pictures of 5 × 6 and 6 "
    "× 7 more often than RoPE.",
    settings={
        **PICTURES,
        "task": "picture_question(question=below, colours=4)",
        "encodings": (_MROPE, _ROPE),
        "encoder": True,
        "tokens": 1_200_000,
        "train_length": 4,
        "eval_lengths": (4, *_BEYOND),
    },
    contrasts=(Contrast(_MROPE, _ROPE, "higher", _BEYOND),),
    seconds=170,
    full=FULL_PICTURES,
    limits="Generated pictures of forty cells with a question that has one answer; no photographs, no pretrained language "
    "model. M-RoPE's base is 4, so that its slow pairs, which read the columns, turn as far over six cells as those of the "
    "published base over a thousand. Attention is bidirectional, as causal models do not learn the task in minutes.",
)
