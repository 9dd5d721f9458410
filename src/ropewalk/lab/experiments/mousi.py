"""MouSi: may tokens of an image share positions?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ALL, _ROW, _PLAIN = "mousi(sharing=share_all)", "mousi", "mousi(sharing=original)"

EXPERIMENT = Experiment(
    name="mousi",
    slugs=("mousi",),
    claim="Tokens of an image can share positions by rows with little loss, and one position for a whole image loses more.",
    source="Xiaoran Fan et al. MouSi: Poly-Visual-Expert Vision-Language Models. arXiv 2401.17221, 2024",
    expected="One position for the whole picture finds the cell below the marked one less often than positions by rows and "
    "than one for every cell.",
    settings={
        **PICTURES,
        "task": "picture_question(question=below, colours=4)",
        "encodings": (_ROW, _ALL, _PLAIN),
        "encoder": True,
        "tokens": 1_200_000,
        "train_length": 4,
        "eval_lengths": (4,),
    },
    contrasts=(
        Contrast(_ALL, _PLAIN, "lower", (4,)),
        Contrast(_ALL, _ROW, "lower", (4,)),
        Contrast(_ROW, _PLAIN, "higher", (4,), decides=False, because="by rows against one for every cell"),
    ),
    seconds=200,
    full=FULL_PICTURES,
    limits="Column vectors, with which the paper makes up for shared rows, need the width of the embeddings and are not tried.",
)
