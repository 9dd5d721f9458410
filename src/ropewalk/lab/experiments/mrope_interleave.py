"""MRoPE-Interleave and Multi-Head RoPE: should every axis have fast and slow frequencies?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_PICTURES, PICTURES
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_SIZES = (4, 5, 6)
_INTERLEAVED, _HEADS, _CHUNKED = (f"{name}(base=100)" for name in ("mrope_interleave", "mhrope", "mrope"))

EXPERIMENT = Experiment(
    name="mrope_interleave",
    slugs=("mrope_interleave", "mhrope"),
    claim="Vision-language models get better if each axis has the whole range of frequencies, by turns over the channel pairs "
    "or with heads of its own, instead of a run of pairs each (mean of their benchmarks 66.9 and 66.7 against 65.4).",
    source="Jie Huang, Xuejing Liu, Sibo Song, Ruibing Hou, Hong Chang, Junyang Lin, Shuai Bai. Revisiting Multimodal "
    "Positional Encoding in Vision-Language Models. arXiv 2510.23095, 2025",
    expected="Trained on pictures of up to 4 × 5 cells, both name the cell below the marked one, in such pictures and in "
    "larger ones, at least as often as M-RoPE.",
    settings={
        **PICTURES,
        "task": "picture_question(question=below, colours=4)",
        "encodings": (_INTERLEAVED, _HEADS, _CHUNKED),
        "encoder": True,
        "train_length": 4,
        "eval_lengths": _SIZES,
    },
    contrasts=(
        Contrast(_INTERLEAVED, _CHUNKED, "higher", _SIZES),
        Contrast(_HEADS, _CHUNKED, "higher", _SIZES),
    ),
    seconds=100,
    full=FULL_PICTURES,
    limits="Generated pictures with a question that has one answer. The gain in the paper is 1.5 points over benchmarks, of a "
    "model that knows language and pictures. The base is 100: with sixteen planes a head and the published base, a run of "
    "slow planes turns by nothing over six cells, and the difference would be larger than it ever is in a model of use.",
)
