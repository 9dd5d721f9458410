"""ReRoPE and SelfExtend: does a trained model read on at twice and four times its length?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE = "rope(pairing=half)"
_RECTIFIED = "rerope(window=32)"
_LEAKY = "rerope(window=32, leak=8)"
_GROUPED = "self_extend(group=6, window=32)"

EXPERIMENT = Experiment(
    name="rerope",
    slugs=("rerope", "self_extend"),
    claim="Without training, a model whose far keys are all seen at one distance (ReRoPE), or at distances counted in groups of "
    "tokens (SelfExtend), has no higher loss in contexts several times as long as it was trained on.",
    source="Jianlin Su. Rectified Rotary Position Embeddings, 2023 (bojone/rerope); Hongye Jin, Xiaotian Han, Jingfeng Yang, "
    "Zhimeng Jiang, Zirui Liu, Chia-Yuan Chang, Huiyuan Chen, Xia Hu. LLM Maybe LongLM: Self-Extend LLM Context Window Without "
    "Tuning. arXiv 2401.01325, 2024",
    expected="In models trained at 128 tokens both have a lower loss than RoPE at 512, and change little at 128.",
    settings={**TEXT, "encodings": (_ROPE,)},
    drop_in={_RECTIFIED: _ROPE, _LEAKY: _ROPE, _GROUPED: _ROPE},
    contrasts=(
        Contrast(_RECTIFIED, _ROPE, "lower", (512,)),
        Contrast(_GROUPED, _ROPE, "lower", (512,)),
        Contrast(_LEAKY, _ROPE, "lower", (512,), decides=False, because="distances that go on slowly"),
        Contrast(_RECTIFIED, _ROPE, "within", (128,), margin=0.05, decides=False, because="the trained length"),
        Contrast(_GROUPED, _ROPE, "within", (128,), margin=0.05, decides=False, because="the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}, whose loss depends little on what is more than a line away: it shows that far keys do no "
    "harm, and hardly that they help.",
)
