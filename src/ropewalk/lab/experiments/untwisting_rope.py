"""Untwisting RoPE: does a picture take from its reference what is the same, or what is at the same place?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_PLAIN = "untwisting_rope(high=1, low=1, base=100)"
_WEAK, _STRONG = "untwisting_rope(high=0.2, low=1, base=100)", "untwisting_rope(high=0.2, low=1.5, base=100)"

EXPERIMENT = Experiment(
    name="untwisting_rope",
    slugs=("untwisting_rope",),
    claim="In shared attention fast pairs draw a picture to what the reference has at the same place, and slow ones to what "
    "means the same; weaker fast pairs of reference keys, and stronger slow ones, make it borrow style and not copy content.",
    source="Aryan Mikaeili, Or Patashnik, Andrea Tagliasacchi, Daniel Cohen-Or, Ali Mahdavi-Amiri. Untwisting RoPE: Frequency "
    "Control for Shared Attention in DiTs. arXiv 2602.05013, 2026",
    expected="Trained on single pictures, models that share attention with a reference give a cell the colour that its label has "
    "there more often with weaker fast pairs of reference keys than with keys as they are.",
    settings={
        **FILLED,
        "task": "shared_picture",
        "shape": {"hidden_size": 64, "num_layers": 1, "num_heads": 2},
        "encodings": (_PLAIN,),
        "train_length": 6,
        "eval_lengths": (6,),
        "tokens": 400_000,
    },
    drop_in={_WEAK: _PLAIN, _STRONG: _PLAIN},
    contrasts=(
        Contrast(_WEAK, _PLAIN, "higher", (6,)),
        Contrast(_STRONG, _PLAIN, "higher", (6,), decides=False, because="slow pairs stronger as well"),
        Contrast(_STRONG, _WEAK, "higher", (6,), decides=False, because="what stronger slow pairs add"),
    ),
    seconds=20,
    full={"tokens": 6_000_000, "seeds": 5, "shape": {"hidden_size": 128, "num_layers": 1, "num_heads": 4}, "lr": 2e-3},
    limits="Models of one layer, so that the reference is attended to as it is, on pictures of 6 × 6 cells whose labels and "
    "colours are tokens; one step instead of fifty, with gains that stay.",
    out_of_reach="What gains take back is that trained diffusion transformers are drawn to the place of the reference, and "
    "models of a desk are not: in a first try they borrowed the right colour as they were, and their fast pairs carried the "
    "match of labels too. Of keys that are made to be so drawn `ropewalk.analysis.shared_attention` measures the shares.",
)
