"""Modality-aware ids: does a target learn faster at the place of its source?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (4,)
_TIED, _APART = "modality_rope(base=4)", "mrope(base=4)"

EXPERIMENT = Experiment(
    name="modality_rope",
    slugs=("modality_rope",),
    claim="In editing, the target that is denoised is given the positions of its source, so that what is not changed is "
    "copied.",
    source="Fengyi Fu et al. Lance: Unified Multimodal Modeling by Multi-Task Synergy. arXiv 2605.18678, 2026",
    expected="After the same short training on pictures of up to 3 × 4 cells, more cells of pictures of 4 × 5 with one colour "
    "changed are right than with M-RoPE, which puts the target after the source.",
    settings={
        **PICTURES,
        "task": "picture_edit(colours=4)",
        "encodings": (_TIED, _APART),
        "train_length": 3,
        "eval_lengths": (3, *_BEYOND),
    },
    contrasts=(Contrast(_TIED, _APART, "higher", _BEYOND),),
    seconds=70,
    full=FULL_PICTURES,
    limits="Blanks instead of noise and one step instead of many; the two differ in their masks too. The bands of semantic "
    "tokens and of subjects are not tried.",
)
