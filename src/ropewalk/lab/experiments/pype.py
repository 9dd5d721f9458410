"""PyPE: do rings that merge from layer to layer see more?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SIZES = (3, 4, 5)

EXPERIMENT = Experiment(
    name="pype",
    slugs=("pype",),
    claim="Rings of image tokens whose inner ones become one as layers get deeper see objects of all sizes better than rows "
    "of tokens and than concentric rings.",
    source="Zhanpeng Chen, Mingxiao Li, Ziyang Chen, Nan Du, Xiaolong Li, Yuexian Zou. Advancing General Multimodal "
    "Capability of Vision-language Models with Pyramid-descent Visual Position Encoding. arXiv 2501.10967, 2025",
    expected="Asked whether a colour is in a picture, PyPE is right more often than RoPE over the cells row by row.",
    settings={
        **PICTURES,
        "task": "picture_question(question=presence, colours=4)",
        "encodings": ("pype(jump=1)", "concentric_attention", "rope(pairing=half)"),
        "train_length": 3,
        "tokens": 800_000,
        "eval_lengths": _SIZES,
    },
    contrasts=(
        Contrast("pype(jump=1)", "rope(pairing=half)", "higher", _SIZES),
        Contrast(
            "pype(jump=1)",
            "concentric_attention",
            "higher",
            _SIZES,
            decides=False,
            because="the same rings in all layers",
        ),
    ),
    seconds=240,
    full=FULL_PICTURES,
    limits="Objects of one cell, and two layers, so that a single ring can merge: what the paper says of sizes and of depth "
    "is not seen. Learning sets in suddenly and late, so that who is ahead changes with the budget: +4, +17 and +8 points were "
    "seen after 1.0, 1.15 and 1.3 million tokens.",
)
