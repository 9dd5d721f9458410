"""Attention Buckets: do several bases together find more than one?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

BASES = (10_000.0, 13_000.0, 17_500.0, 25_000.0)
_ROPE = "rope(pairing=half)"
_BUCKETS = "attention buckets of four bases"
_LARGEST = "rope(base=25000, pairing=half)"

EXPERIMENT = Experiment(
    name="attention_buckets",
    slugs=(),
    claim="Copies of a model that differ in the base of RoPE alone, mixed by their confidence, miss less of what stands where "
    "the attention of one of them dips (a model of 7 billion parameters uses tools as well as GPT-4).",
    source="Yuhan Chen, Ang Lv, Ting-En Lin, Changyu Chen, Yuchuan Wu, Fei Huang, Yongbin Li, Rui Yan. Fortify the Shortest "
    "Stave in Attention: Enhancing Context Awareness of Large Language Models for Effective Tool Use. arXiv 2312.04455, 2023",
    expected="In models trained at 128 tokens the mixture has a lower loss at 256 than the model with its own base, or with "
    "the largest.",
    settings={**TEXT, "encodings": (_ROPE,), "eval_lengths": (128, 256)},
    drop_in={_LARGEST: _ROPE},
    altered={_BUCKETS: (_ROPE, f"{__name__}:mix")},
    contrasts=(
        Contrast(_BUCKETS, _ROPE, "lower", (256,)),
        Contrast(_BUCKETS, _LARGEST, "lower", (256,), decides=False, because="the largest base alone"),
        Contrast(_BUCKETS, _ROPE, "within", (128,), margin=0.02, decides=False, because="the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}, by loss, where the paper lets models choose tools and answer from documents. Of single "
    f"needles in haystacks up to 128, all these models miss none, so that nothing tells them apart.",
)


def mix(model: Decoder, workload: Workload) -> None:
    """Let a model answer as the mixture of its copies with other bases."""
    import torch
    from torch import Tensor

    from ropewalk.core.positions import Positions
    from ropewalk.frequencies.buckets import mixed
    from ropewalk.rotary.rope import RoPE

    rope = model.encodings[0]
    assert isinstance(rope, RoPE)
    copies = [RoPE(model.config.width, base, rope.pairing) for base in BASES]
    one = type(model).forward

    def together(tokens: Tensor, positions: Positions | None = None) -> Tensor:
        said = []
        for copy in copies:
            for block in model.blocks:
                block.attention.encoding = copy  # type: ignore[union-attr]
            said.append(one(model, tokens, positions))
        return mixed(torch.stack(said))

    vars(model)["forward"] = together  # beside the class's, for this model alone
