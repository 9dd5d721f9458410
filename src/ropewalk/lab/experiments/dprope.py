"""DPRoPE: does choosing by disturbance which planes to interpolate beat interpolating all?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_ROPE, _PI = "rope(pairing=half)", "pi(factor=2)"
_YARN, _CHOSEN = "yarn(factor=2, original=128)", "dprope(original=128, length=256)"

EXPERIMENT = Experiment(
    name="dprope",
    slugs=("dprope",),
    claim="Interpolating only those rotary planes whose distribution of angles would otherwise be disturbed extends the context "
    "better than interpolating all or by wavelength (LongBench-E 30.1 against 28.9 for PI and 28.7 for YaRN at four times).",
    source="Yingsheng Wu, Yuxuan Gu, Xiaocheng Feng, Weihong Zhong, Dongliang Xu, Qing Yang, Hongtao Liu, Bing Qin. Extending "
    "Context Window of Large Language Models from a Distributional Perspective. arXiv 2410.01490, 2024",
    expected="In models trained at 128 tokens and not tuned, DPRoPE has a lower loss at 256 than PI.",
    settings={**TEXT, "encodings": (_ROPE,)},
    drop_in={_CHOSEN: _ROPE, _PI: _ROPE, _YARN: _ROPE},
    contrasts=(
        Contrast(_CHOSEN, _PI, "lower", (256,)),
        Contrast(_CHOSEN, _YARN, "lower", (256,), decides=False, because="against YaRN"),
        Contrast(_CHOSEN, _ROPE, "lower", (256,), decides=False, because="against doing nothing"),
        Contrast(_CHOSEN, _PI, "lower", (128,), decides=False, because="the trained length"),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}, without the tuning that follows in the paper.",
)
