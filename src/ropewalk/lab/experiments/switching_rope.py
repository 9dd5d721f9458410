"""Switching-point RoPE: which reading of "inverted at a switch" helps where the words after switches decide?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE, _SINE = "rope(pairing=half)", "sinusoidal"
_TOKEN, _PARITY, _ZIGZAG = (f"switching_rope(form={form})" for form in ("token", "parity", "zigzag"))

EXPERIMENT = Experiment(
    name="switching_rope",
    slugs=("switching_rope",),
    claim="Rotary positions that are inverted where a text changes its language help models of mixed languages, more than rotary "
    "positions alone, and these more than sinusoids.",
    source="Mohsin Ali, Kandukuri Sai Teja, Neeharika Gupta, Parth Patwa, Anubhab Chatterjee, Vinija Jain, Aman Chadha, Amitava "
    "Das. CONFLATOR: Incorporating Switching Point based Rotatory Positional Encodings for Code-Mixed Language Modeling. arXiv "
    "2309.05270, 2023",
    expected="After little training models whose rotation is inverted at switch tokens are right about the words after switches "
    "more often than models with RoPE.",
    settings={
        "task": "code_words",
        "encodings": (_TOKEN, _PARITY, _ZIGZAG, _ROPE, _SINE),
        "encoder": True,
        "train_length": 12,
        "eval_lengths": (12, 16),
        "shape": SHAPE,
        "tokens": 250_000,
        "batch_size": 64,
        "lr": 3e-3,
        "windows": 512,
    },
    contrasts=(
        Contrast(_TOKEN, _ROPE, "higher", (12,)),
        Contrast(_PARITY, _ROPE, "higher", (12,), decides=False, because="inverted until the next switch"),
        Contrast(_ZIGZAG, _ROPE, "higher", (12,), decides=False, because="a walk that turns around at switches"),
        Contrast(_ROPE, _SINE, "higher", (12,), decides=False, because="rotary positions against sinusoids"),
        Contrast(_TOKEN, _ROPE, "higher", (16,), decides=False, because="texts longer than those of training"),
    ),
    seconds=210,
    full={"task": "code_words", "train_length": 24, "eval_lengths": (12, 16, 24, 32), "tokens": 6_000_000, "seeds": 5},
    limits="Two made-up languages of twelve words and a label that switches decide, so that the published direction is at its "
    "best. One stream of words; the stream of pairs of `ropewalk.lab.code_mixed` is not trained. What is inverted at a switch is "
    "known from a listener's note alone.",
)
