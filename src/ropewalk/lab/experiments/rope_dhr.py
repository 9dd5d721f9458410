"""RoPE-DHR: does an image that takes up fewer positions lose less behind long text?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (64, 128)

EXPERIMENT = Experiment(
    name="rope_dhr",
    slugs=("rope_dhr",),
    claim="Tiles of an image that stand where their cells stand in the thumbnail keep positions short, and images are seen "
    "better behind long text.",
    source="Shi Liu, Weijie Su, Xizhou Zhu, Wenhai Wang, Jifeng Dai. CoMemo: LVLMs Need Image Context with Image Memory. "
    "arXiv 2506.06279, 2025",
    expected="Trained with up to 16 words between image and question, RoPE-DHR reads a value in a tile behind 64 and 128 "
    "words more often than RoPE.",
    settings={
        **PICTURES,
        "task": "tiles_needle(distractor=False)",
        "encodings": ("rope_dhr(base=100)", "rope(base=100, pairing=half)"),
        "train_length": 16,
        "eval_lengths": (16, *_BEYOND),
    },
    contrasts=(Contrast("rope_dhr(base=100)", "rope(base=100, pairing=half)", "higher", _BEYOND),),
    seconds=70,
    full=FULL_PICTURES,
    limits="Tiles of four cells and a hundred words that say nothing, and a base of 100, with which so many words are far; "
    "the paper's second half, the memory path, is not tried.",
)
