"""NoPE: does a decoder without any positions generalise to longer sequences?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_BEYOND = (8, 10)

EXPERIMENT = Experiment(
    name="nope",
    slugs=("nope", "t5", "alibi", "sinusoidal", "learned"),
    claim="Decoders without positional encoding generalise to longer sequences than they were trained on at least as well as "
    "decoders with rotary, ALiBi or absolute positions.",
    source="Amirhossein Kazemnejad, Inkit Padhi, Karthikeyan Natesan Ramamurthy, Payel Das, Siva Reddy. The Impact of Positional "
    "Encoding on Length Generalization in Transformers. arXiv 2305.19466, 2023",
    expected="Beyond the trained size of a reasoning task NoPE answers more often than RoPE, ALiBi and learned absolute "
    "positions; T5's bias is the closest to it.",
    settings={
        "task": "copy(alphabet=10)",
        "encodings": ("nope", "rope", "alibi", "t5", "learned"),
        "train_length": 6,
        "eval_lengths": (6, *_BEYOND),
        "shape": SHAPE,
        "tokens": 500_000,
        "batch_size": 64,
        "lr": 4e-3,
    },
    contrasts=(
        Contrast("nope", "rope", "higher", _BEYOND),
        Contrast("nope", "alibi", "higher", _BEYOND),
        Contrast("nope", "learned", "higher", _BEYOND),
        Contrast("nope", "t5", "higher", _BEYOND, decides=False, because="the closest one in the paper"),
    ),
    seconds=240,
    full={"tokens": 6_000_000, "seeds": 5, "shape": {"hidden_size": 128, "num_layers": 4, "num_heads": 4}},
    limits="One task of ten, with two layers. The claim is about the mean rank over tasks; single tasks may go either way. "
    "At twice these sizes nothing copied a whole string after as many steps, and nothing was seen.",
)
