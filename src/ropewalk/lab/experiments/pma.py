"""PMA: does a model of grids of one resolution take grids of two?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FILLED, FULL_FILLED
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

_PMA = "pma(base=100)"
_COARSE, _FINE = "positions of the coarse grid", "positions of the fine grid"

EXPERIMENT = Experiment(
    name="pma",
    slugs=("pma",),
    claim="A trained diffusion transformer takes tokens of several resolutions without training if each query counts distances "
    "in steps of its own grid; with all positions interpolated to one grid it breaks.",
    source="Haoyu Wu, Jingyi Xu, Qiaomu Miao, Dimitris Samaras, Hieu Le. Phase-Aligned RoPE for Mixed-Resolution Diffusion "
    "Transformer. arXiv 2511.19778, 2025",
    expected="Trained on grids of one resolution, and on grids whose middle is twice as fine, models name unknown cells more "
    "often with PMA than with the positions of the coarse or of the fine grid.",
    settings={
        **FILLED,
        "task": "mixed_picture",
        "encodings": (_PMA,),
        "train_length": 6,
        "eval_lengths": (6,),
        "tokens": 600_000,
    },
    altered={
        _COARSE: (_PMA, f"{__name__}:count_coarse_steps"),
        _FINE: (_PMA, f"{__name__}:count_fine_steps"),
    },
    contrasts=(
        Contrast(_PMA, _COARSE, "higher", (6,), because="fine tokens at half steps (PI-LR)"),
        Contrast(_PMA, _FINE, "higher", (6,), because="coarse tokens two steps apart (PI-HR)"),
    ),
    seconds=200,
    full=FULL_FILLED,
    limits="Pictures of two waves on 6 × 6 coarse cells, named in a single step by models of 100,000 parameters. Waves look "
    "alike at both resolutions, so that what was learned in steps of one grid is right in steps of the other. No boundary is "
    "refined, and NTK and YaRN are not measured.",
)


def count_coarse_steps(model: Decoder, workload: Workload) -> None:
    """Count all distances in coarse steps, so that fine tokens stand at halves."""
    _interpolate(model, 1.0)


def count_fine_steps(model: Decoder, workload: Workload) -> None:
    """Count all distances in fine steps, so that coarse tokens stand two apart."""
    from ropewalk.lab.mixed_picture import FINER

    _interpolate(model, FINER)


def _interpolate(model: Decoder, resolution: float) -> None:
    from ropewalk.coordinates.mixed_resolution import OnOneGrid
    from ropewalk.core.combinators import Sequential
    from ropewalk.rotary.axial import AxialRoPE
    from ropewalk.rotary.pma import PhaseAlignedRoPE

    for block, own in zip(model.blocks, model.encodings, strict=True):
        assert isinstance(own, PhaseAlignedRoPE)
        plain = AxialRoPE(model.config.width, len(own.widths), widths=own.widths, base=own.base, pairing=own.pairing)
        block.attention.encoding = Sequential(OnOneGrid(resolution), plain)  # type: ignore[union-attr]
