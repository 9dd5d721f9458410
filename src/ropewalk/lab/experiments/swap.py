"""Swapping encodings: does a model that was trained with sinusoids take RoPE or ALiBi in their place after a little tuning?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEFORE, _HALF = "sinusoidal", "partial_rope(fraction=0.5)"

EXPERIMENT = Experiment(
    name="swap",
    slugs=(),
    claim="In a model that was trained with sinusoids, RoPE (on half of each head) or ALiBi can take their place: brief tuning "
    "recovers the quality at the trained length, and on longer texts RoPE is then better than ALiBi and sinusoids.",
    source="Varun Gumma, Pranjal A. Chitale, Kalika Bali. Towards Inducing Long-Context Abilities in Multilingual Neural Machine "
    "Translation Models. arXiv 2408.11382, 2024",
    expected="Models trained with sinusoids at 128 tokens, and then with each encoding for a fifth as long at 128, have with "
    "RoPE and with ALiBi a loss at 128 within 0.05 of going on with sinusoids, and a lower one at 512.",
    settings={
        **TEXT,
        "encodings": (_HALF, "alibi", "nope", _BEFORE),
        "tokens": 90_000,
        "lr": 2e-3,
    },
    before={**TEXT, "encodings": (_BEFORE,), "eval_lengths": (128,), "shape": SHAPE},
    start={_HALF: _BEFORE, "alibi": _BEFORE, "nope": _BEFORE, _BEFORE: _BEFORE},
    contrasts=(
        Contrast(_HALF, _BEFORE, "within", (128,), margin=0.05),
        Contrast("alibi", _BEFORE, "within", (128,), margin=0.05),
        Contrast(_HALF, _BEFORE, "lower", (512,)),
        Contrast("alibi", _BEFORE, "lower", (512,), decides=False, because="ALiBi beyond the trained length"),
        Contrast(
            _HALF, "alibi", "lower", (512,), decides=False, because="RoPE against ALiBi beyond the trained length"
        ),
        Contrast("nope", _BEFORE, "higher", (128,), decides=False, because="no positions at all"),
    ),
    seconds=200,
    full={"tokens": 1_000_000, "seeds": 5, "windows": 512},
    limits=f"Seen on {SMALL_MODEL}: decoders, not the encoder-decoders of the paper, whose encoder sees no order at all without "
    "positions.",
)
