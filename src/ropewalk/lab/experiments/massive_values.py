"""Massive values: do a model's largest channels of q and k carry what it reads from its context?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_NEEDLE, NEEDLE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from ropewalk.analysis.massive_values import Which
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

CHANNELS = 2
_ROPE = "rope(pairing=half)"
_LARGEST, _SMALLEST = "the largest channels disrupted", "the smallest channels disrupted"

EXPERIMENT = Experiment(
    name="massive_values",
    slugs=(),
    claim="A few channels of q and k hold values many times as large as the others; with those channels filled by their mean "
    "a model no longer finds a passkey (100 to at most 2 %), and with as many others it does (less than 1 % lost).",
    source="Mingyu Jin, Kai Mei, Wujiang Xu, Mingjie Sun, Ruixiang Tang, Mengnan Du, Zirui Liu, Yongfeng Zhang. Massive "
    "Values in Self-Attention Modules are the Key to Contextual Knowledge Understanding. arXiv 2502.01563, 2025",
    expected="Models trained to find needles in haystacks up to 64 find fewer at 512 with the two largest of 32 channels of q "
    "and k disrupted than with the two smallest.",
    settings={**NEEDLE, "encodings": (_ROPE,), "eval_lengths": (64, 512), "windows": 256},
    altered={
        _LARGEST: (_ROPE, f"{__name__}:disrupt_largest"),
        _SMALLEST: (_ROPE, f"{__name__}:disrupt_smallest"),
    },
    contrasts=(
        Contrast(_LARGEST, _SMALLEST, "lower", (512,)),
        Contrast(_LARGEST, _ROPE, "lower", (512,), decides=False, because="against the model as it is"),
        Contrast(_SMALLEST, _ROPE, "within", (512,), margin=0.02, decides=False, because="what as many others do"),
    ),
    seconds=150,
    full=FULL_NEEDLE,
    limits="Models of this size need not have channels five times as large as the mean, so the largest are taken whatever "
    "they are. What a model knows by heart, which the paper finds to suffer little, is not measured.",
)


def disrupt_largest(model: Decoder, workload: Workload) -> None:
    """Fill the largest channels of every head's turned q and k with their mean."""
    _disrupt(model, "massive")


def disrupt_smallest(model: Decoder, workload: Workload) -> None:
    """Fill as many of the smallest."""
    _disrupt(model, "other")


def _disrupt(model: Decoder, which: Which) -> None:
    from dataclasses import replace

    from ropewalk.analysis.massive_values import disrupt
    from ropewalk.core.attention import Attention
    from ropewalk.core.encoding import Encoding

    class Disrupted(Encoding):
        """An encoding whose turned q and k are disrupted."""

        def __init__(self, own: Encoding) -> None:
            super().__init__()
            self.own = own

        def rewrite(self, problem: Attention) -> Attention:
            turned = self.own(problem)
            assert isinstance(turned, Attention)
            q, k = disrupt(turned.q, turned.k, CHANNELS, which)
            return replace(turned, q=q, k=k)

    for block, own in zip(model.blocks, model.encodings, strict=True):
        block.attention.encoding = Disrupted(own)  # type: ignore[union-attr]
