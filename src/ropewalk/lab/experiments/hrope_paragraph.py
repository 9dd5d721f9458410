"""hRoPE: does a channel of paragraphs serve to find where one begins?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_HROPE, _ROPE = "hrope_paragraph(bases=(4, 4, 100))", "rope(base=100, pairing=half)"

EXPERIMENT = Experiment(
    name="hrope_paragraph",
    slugs=("hrope_paragraph",),
    claim="Models with rotary channels of paragraphs and sentences weaken attention across paragraphs at equal distances in "
    "tokens, deeper where the paragraphs are real ones than where they are drawn at random.",
    source="Shuyang Xiang. Paragraph Boundaries Are Not White Space: Compression Depth as the Signature of Hierarchical "
    "Structure. arXiv 2609.23551, 2026",
    expected="Models with these channels name the first word of a word's paragraph more often than models with RoPE.",
    settings={
        "task": "paragraph_start(words=16)",
        "encodings": (_HROPE, _ROPE),
        "encoder": True,
        "train_length": 6,
        "eval_lengths": (6, 10),
        "shape": SHAPE,
        "tokens": 400_000,
        "batch_size": 64,
        "lr": 3e-3,
        "windows": 256,
    },
    contrasts=(
        Contrast(_HROPE, _ROPE, "higher", (6,)),
        Contrast(_HROPE, _ROPE, "higher", (10,), decides=False, because="texts longer than those of training"),
    ),
    seconds=50,
    full={
        "task": "paragraph_start",
        "train_length": 16,
        "eval_lengths": (6, 10, 16, 24),
        "tokens": 6_000_000,
        "seeds": 5,
    },
    limits="A task that asks for paragraphs shows whether their channel is used, and nothing of how deep attention is "
    "compressed.",
    out_of_reach="The depth of compression is that of models of eight layers on three corpora against a control with random "
    "boundaries, and on made-up texts it still takes two models of thousands of steps for each seed; "
    "`ropewalk.analysis.paragraph_compression` measures it where there are such models.",
)
