"""Wavelet PE: do wavelets of the distance extrapolate?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="wavelet_pe",
    slugs=("wavelet_pe",),
    claim="Relative positions made of wavelets of many widths keep perplexity flat beyond the trained length (18.0 at five times "
    "the length), where RoPE's explodes (93.9), and are no worse than ALiBi at the trained length.",
    source="Yui Oka, Taku Hasegawa, Kyosuke Nishida, Kuniko Saito. Wavelet-based Positional Representation for Long Context. "
    "arXiv 2502.02004, 2025",
    expected="At four times the trained length wavelets have a lower loss than RoPE; at the trained length one no higher than "
    "ALiBi's.",
    settings={**TEXT, "encodings": ("wavelet_pe", "rope", "alibi")},
    contrasts=(
        Contrast("wavelet_pe", "rope", "lower", (512,)),
        Contrast("wavelet_pe", "alibi", "lower", (128,), decides=False, because="the trained length"),
        Contrast("wavelet_pe", "alibi", "lower", (512,), decides=False, because="another encoding that extrapolates"),
    ),
    seconds=110,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}, at 512 tokens at most.",
)
