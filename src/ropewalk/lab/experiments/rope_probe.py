"""FreeFlux: do layers differ in how much they attend by position, and does a probe of their keys show it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_NEEDLE, NEEDLE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

_ROPE = "rope(pairing=half)"
_FIRST, _SECOND = "keys of the first layer do not turn", "keys of the second layer do not turn"

EXPERIMENT = Experiment(
    name="rope_probe",
    slugs=(),
    claim="Some layers attend by position and others by content, whatever their depth: with keys of one layer that do not turn "
    "the output of the model changes much or little.",
    source="Tianyi Wei, Yifan Zhou, Dongdong Chen, Xingang Pan. FreeFlux: Understanding and Exploiting Layer-Specific Roles in "
    "RoPE-Based MMDiT for Versatile Image Editing. arXiv 2503.16153, 2025",
    expected="Models of two layers, which look at the token before in the first one and for equal tokens in the second, find "
    "fewer needles in haystacks of 512 if keys of the first layer do not turn than if those of the second do not.",
    settings={**NEEDLE, "encodings": (_ROPE,), "eval_lengths": (64, 512), "windows": 256},
    altered={
        _FIRST: (_ROPE, f"{__name__}:stop_first"),
        _SECOND: (_ROPE, f"{__name__}:stop_second"),
    },
    contrasts=(
        Contrast(_FIRST, _SECOND, "lower", (512,)),
        Contrast(
            _SECOND,
            _ROPE,
            "within",
            (512,),
            margin=0.1,
            decides=False,
            because="whether the second one needs positions",
        ),
    ),
    seconds=50,
    full=FULL_NEEDLE,
    limits="A decoder of text-like sequences that names a token, where the paper compares images of FLUX by PSNR over 57 layers. "
    "Two layers show that roles differ, and nothing of how they are spread over depth. Editing by injected keys and values is in "
    "the tests alone. At the trained length, 64, no needle is lost in either case.",
)


def stop_first(model: Decoder, workload: Workload) -> None:
    """Leave keys of the first layer as they are."""
    _stop(model, 0)


def stop_second(model: Decoder, workload: Workload) -> None:
    """Leave keys of the second layer as they are."""
    _stop(model, 1)


def _stop(model: Decoder, layer: int) -> None:
    from ropewalk.analysis.rope_probe import RopeProbe

    RopeProbe(model, [layer], None).__enter__()  # for good: nobody leaves it
