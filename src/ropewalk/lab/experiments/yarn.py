"""Schedules: what happens to a trained model at four times its length when only its frequencies change?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE, _PI, _NTK = "rope(pairing=half)", "pi(factor=4)", "ntk(factor=4)"
_YARN, _DYNAMIC = "yarn(factor=4, original=128)", "dynamic_ntk(original=128, factor=4)"

EXPERIMENT = Experiment(
    name="yarn",
    slugs=("yarn", "pi", "ntk", "dynamic_ntk"),
    claim="Without training, interpolating slow planes alone with a temperature (YaRN) keeps more of a model than "
    "interpolating all planes (PI), within the trained length and beyond it, where plain RoPE breaks down.",
    source="Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole. YaRN: Efficient Context Window Extension of Large "
    "Language Models. arXiv 2309.00071, 2023; Shouyuan Chen, Sherman Wong, Liangjian Chen, Yuandong Tian. Extending Context "
    "Window of Large Language Models via Positional Interpolation. arXiv 2306.15595, 2023",
    expected="In models trained at 128 tokens and not trained further, YaRN has a lower loss than RoPE at 512, and a lower one "
    "than PI at 512 and at 128.",
    settings={**TEXT, "encodings": (_ROPE,)},
    drop_in={_PI: _ROPE, _NTK: _ROPE, _YARN: _ROPE, _DYNAMIC: _ROPE},
    contrasts=(
        Contrast(_YARN, _ROPE, "lower", (512,)),
        Contrast(_YARN, _PI, "lower", (512,)),
        Contrast(_YARN, _PI, "lower", (128,)),
        Contrast(_PI, _ROPE, "higher", (128,), decides=False, because="PI without tuning hurts the trained length"),
        Contrast(_NTK, _ROPE, "lower", (512,), decides=False, because="a larger base"),
        Contrast(_DYNAMIC, _ROPE, "lower", (512,), decides=False, because="a base that grows with the length"),
        Contrast(_DYNAMIC, _ROPE, "within", (128,), margin=1e-6, decides=False, because="nothing changes until then"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. Tuning after the change, which the papers are about, is in other experiments (psc, harpe, "
    "entropy_abf).",
)
