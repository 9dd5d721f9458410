"""Condition-aware RoPE: is the subject of a box told by the group that reference and box have in common?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FILLED, FULL_FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

_SPECIAL = "condition_rope(t_ref=40, t_invalid=60, base=100)"
_FRAMES = "condition_rope(t_ref=40, t_invalid=60, special=False, base=100)"
_ALONE = "without groups"

EXPERIMENT = Experiment(
    name="condition_rope",
    slugs=("condition_rope",),
    claim="References at one time of their own are no frames, and what is added for their group says which of them belongs in "
    "which box.",
    source="Yujie Wei, Xinyu Liu, Shiwei Zhang, Hangjie Yuan, Jinbo Xing, Zhekai Chen, Xiang Wang, Haonan Qiu, Rui Zhao, Yutong "
    "Feng, Ruihang Chu, Yingya Zhang, Yike Guo, Xihui Liu, Hongming Shan. DreamVideo-Omni: Omni-Motion Controlled Multi-Subject "
    "Video Customization with Latent Identity Reinforcement Learning. arXiv 2603.12257, 2026",
    expected="Models give a box the colour of its reference more often than the same models whose tokens have lost their groups.",
    settings={
        **FILLED,
        "task": "reference_video(groups=True)",
        "encodings": (_SPECIAL, _FRAMES),
        "train_length": 2,
        "eval_lengths": (2,),
        "tokens": 250_000,
    },
    altered={_ALONE: (_SPECIAL, f"{__name__}:forget_groups")},
    contrasts=(
        Contrast(_SPECIAL, _ALONE, "higher", (2,)),
        Contrast(_SPECIAL, _FRAMES, "higher", (2,), decides=False, because="against times after the frames"),
    ),
    seconds=30,
    full={**FULL_FILLED, "task": "reference_video(groups=True, frames=4, rows=4)"},
    limits="Groups are words of the vocabulary and no vectors that are added to latents, and they are taken from trained models, "
    "where the paper's ablation trains without them. No trajectories, no empty slots, and a video of noise in a single step. The "
    "authors' times of references are not public.",
)


def forget_groups(model: Decoder, workload: Workload) -> None:
    """Give the tokens of a colour in either group one embedding: their mean."""
    import torch

    from ropewalk.lab.reference_video import REFERENCES, ReferenceVideo

    assert isinstance(workload, ReferenceVideo)
    with torch.no_grad():
        rows = model.embedding.weight.unflatten(0, (1 + REFERENCES, workload.colours))
        rows[1:] = rows[1:].mean(0, keepdim=True)
