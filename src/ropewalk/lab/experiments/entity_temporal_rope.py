"""Entity-temporal RoPE: does a frame find what is done in it, and by whom?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FILLED, FULL_FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_PLANE, _TIME = "entity_temporal_rope(base_t=100)", "entity_temporal_rope(base_t=100, entity_dim=0)"
_MIDDLE = "axial_rope(axes=2, widths=(24, 8), base=100)"  # the same rotation; its captions stand elsewhere

EXPERIMENT = Experiment(
    name="entity_temporal_rope",
    slugs=("entity_temporal_rope",),
    claim="Captions whose tokens are spread over the time of their event, on an axis of time and one of entities, let a video "
    "follow events of any length, several at once, and clips longer than those of training.",
    source="Sharath Girish, Tsai-Shien Chen, Zhikang Dong, Mukesh Singhal, Hao Chen, Sergey Tulyakov, Aliaksandr Siarohin. "
    "CineOrchestra: Unified Entity-Centric Conditioning for Cinematic Video Generation. arXiv 2606.13768, 2026",
    expected="Models say more often what an entity does in a frame if captions are spread over their events than if they stand "
    "in the middle of them, and more often with the axis of entities than without.",
    settings={
        **FILLED,
        "task": "event_frames",
        "encodings": (_PLANE, _MIDDLE, _TIME),
        "train_length": 8,
        "eval_lengths": (8, 32),
        "tokens": 400_000,
    },
    contrasts=(
        Contrast(_PLANE, _MIDDLE, "higher", (8,), because="captions in the middle of their events"),
        Contrast(_PLANE, _TIME, "higher", (8,), because="no axis of entities"),
        Contrast(_PLANE, _MIDDLE, "higher", (32,), decides=False, because="clips four times as long as in training"),
    ),
    seconds=230,
    full={**FULL_FILLED, "eval_lengths": (8, 16, 32), "task": "event_frames(entities=3)"},
    limits="Two entities with three events each, captions of one word said three times, and one bidirectional sequence of "
    "captions and frames where the paper has cross-attention. The rule of times, the widths and the place of frames are our "
    "reading. No descriptions, no reference images, no transitions.",
)
