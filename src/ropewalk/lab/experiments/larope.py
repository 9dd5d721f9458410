"""LARoPE: is the letter of a frame found where it stands, and in longer utterances?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FILLED, FULL_FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_LENGTH, _ROPE = "larope", "rope(pairing=half)"

EXPERIMENT = Experiment(
    name="larope",
    slugs=("larope",),
    claim="With positions divided by the length of their own sequence speech and text are aligned better, training converges "
    "faster, and long utterances, in which RoPE fails, stay stable.",
    source="Hyeongju Kim, Juheon Lee, Jinhyeok Yang, Jacob Morton. Length-Aware Rotary Position Embedding for Text-Speech "
    "Alignment. arXiv 2509.11084, 2025",
    expected="Models with LARoPE name the letter of a frame more often than models with RoPE, in texts as long as those of "
    "training and in texts twice as long.",
    settings={
        **FILLED,
        "task": "alignment",
        "encodings": (_LENGTH, _ROPE),
        "train_length": 10,
        "eval_lengths": (5, 10, 20),
        "tokens": 300_000,
    },
    contrasts=(
        Contrast(_LENGTH, _ROPE, "higher", (10,)),
        Contrast(_LENGTH, _ROPE, "higher", (20,), because="twice as long as in training"),
        Contrast(
            _LENGTH, _ROPE, "higher", (5,), decides=False, because="short texts, of which training has all lengths"
        ),
    ),
    seconds=110,
    full=FULL_FILLED,
    limits="Made-up texts and blank frames, no speech. Frames and letters attend to each other in one bidirectional sequence, "
    "with positions and lengths of their own, where the paper has cross-attention alone. Which letters last longer is not said, "
    "so that nobody is always right.",
)
