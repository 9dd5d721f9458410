"""HiRoPE: may slow pairs count segments beyond the trained length?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE, _RECTIFIED = "rope(pairing=half)", "rerope(window=64)"
_HIERARCHICAL = "hirope(window=64, segment_length=32)"

EXPERIMENT = Experiment(
    name="hirope",
    slugs=("hirope",),
    claim="Slow pairs that count functions instead of tokens, beyond a window, keep the perplexity of a code model at several "
    "times its trained length (2.0 at 8,000 to 16,000 tokens, where plain RoPE explodes), as low as ReRoPE's or lower.",
    source="Kechi Zhang, Ge Li, Huangzhao Zhang, Zhi Jin. HiRoPE: Length Extrapolation for Code Models Using Hierarchical "
    "Position. arXiv 2403.19115, 2024",
    expected="In models trained at 128 tokens of source code HiRoPE, with a window of half that, has a lower loss at 512 than "
    "RoPE.",
    settings={**TEXT, "encodings": (_ROPE,)},
    drop_in={_HIERARCHICAL: _ROPE, _RECTIFIED: _ROPE},
    contrasts=(
        Contrast(_HIERARCHICAL, _ROPE, "lower", (512,)),
        Contrast(
            _HIERARCHICAL,
            _RECTIFIED,
            "lower",
            (512,),
            decides=False,
            because="against one distance for all that is far",
        ),
        Contrast(_HIERARCHICAL, _ROPE, "within", (128,), margin=0.05, decides=False, because="the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. Windows of the text begin anywhere, so segments are every 32 bytes and not functions, which "
    "is one of the paper's ablations; functions are read by `ropewalk extend`.",
)
