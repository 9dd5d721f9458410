"""Orthogonal functions: are they better codes for places than sines?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_LEGENDRE, _WAVELET = "orthogonal_legendre(length=64, extension=clamp)", "orthogonal_wavelet(length=64)"

EXPERIMENT = Experiment(
    name="orthogonal",
    slugs=("orthogonal_legendre", "orthogonal_chebyshev", "orthogonal_cosine", "orthogonal_wavelet"),
    claim="Encodings made of Legendre polynomials or wavelets reach higher accuracy than sinusoids on synthetic tasks, at the "
    "trained length and beyond.",
    source="Yin Li. Theoretical Analysis of Positional Encodings in Transformer Models: Impact on Expressiveness and "
    "Generalization. arXiv 2506.06398, 2025",
    expected="Reversing strings, both answer more often than sinusoids at the trained size, and at a larger one.",
    settings={
        "task": "reverse(alphabet=8)",
        "encodings": (_LEGENDRE, _WAVELET, "sinusoidal"),
        "train_length": 6,
        "eval_lengths": (6, 8),
        "shape": SHAPE,
        "tokens": 500_000,
        "batch_size": 64,
        "lr": 3e-3,
    },
    contrasts=(
        Contrast(_LEGENDRE, "sinusoidal", "higher", (6,)),
        Contrast(_WAVELET, "sinusoidal", "higher", (6,)),
        Contrast(_LEGENDRE, "sinusoidal", "higher", (8,), decides=False, because="beyond the trained size"),
        Contrast(_WAVELET, "sinusoidal", "higher", (8,), decides=False, because="beyond the trained size"),
    ),
    seconds=150,
    full={"tokens": 6_000_000, "seeds": 5, "train_length": 32, "eval_lengths": (6, 8, 32)},
    limits="Only the direction of the paper's results could be read, not its tasks, sizes or normalisation; ours are a natural "
    "reading of it.",
)
